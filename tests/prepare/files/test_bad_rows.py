"""Bad rows: all are counted, the first ten are shown."""

from pathlib import Path

from bert4rec.prepare.files.bad_rows import BadRows


def test_every_row_is_counted_by_its_kind() -> None:
    bad = BadRows()
    bad.add("empty line")
    bad.add("rating is missing", 4)
    bad.add("empty line", 2)
    assert bad.counts == {"empty line": 3, "rating is missing": 4}
    assert bad.total == 7


def test_the_first_ten_are_shown_with_their_places() -> None:
    bad = BadRows()
    rooms = []
    for number in range(12):
        rooms.append(bad.room)
        bad.show(Path("log/t.csv"), "line" if number % 2 else "row", 5 * number, "is odd")
    assert rooms == [10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0]
    assert bad.shown[:2] == ["log/t.csv, row 0: is odd", "log/t.csv, line 5: is odd"]
    assert bad.shown[-1] == "log/t.csv, line 45: is odd"
    assert (len(bad.shown), bad.total) == (10, 0)
