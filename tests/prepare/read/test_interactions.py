"""What is read apart, as the first rows are, leaves no trace in what is read as a whole."""

from pathlib import Path

from bert4rec.prepare.read.interactions import find_decimal_ids
from tests.prepare.files.log import opened


def test_what_is_met_while_reading_stands_beside_the_rows(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("user,item,name\n1,2,Two\n,3,Three\n")
    found = opened("table", path=str(tmp_path), title_column="name")
    assert found.first_of({"title": "name"})["title"].to_list() == ["Two", "Three"]
    assert [rows.rows() for rows, _ in found.again().usable()] == [[(1, 2, "Two")]]
    assert found.bad.total == 0
    assert [rows.rows() for rows, _ in found] == [[(1, 2)]]
    assert found.bad.counts == {"user is missing": 1}
    assert found.order == {"by": "file", "column": None, "newest_first": False}


def test_ids_are_looked_at_in_the_fields_that_are_named(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("user,item\n1.0,2.0\n")
    found = opened("table", path=str(tmp_path))
    assert (found.decimal_ids, find_decimal_ids(found, ["item"]), find_decimal_ids(found, [])) == (
        ["user", "item"], ["item"], [],
    )  # fmt: skip
