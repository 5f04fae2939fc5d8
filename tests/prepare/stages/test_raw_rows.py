"""What is read lies on the disk by user; too many bad rows are refused when all are counted, and said at once."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from bert4rec.config.tables import Preprocessing
from bert4rec.prepare.files.bad_rows import BadRows
from bert4rec.prepare.order.ids import Known
from bert4rec.prepare.progress import Progress
from bert4rec.prepare.stages.raw_rows import RawRows, read_rows
from bert4rec.runtime.errors import DataError


class Source:
    """A hundred bytes: of each part how many rows are bad, how many good, and how many bytes have been read."""

    n_bytes = 100

    def __init__(self, frame: pl.DataFrame, *parts: tuple[int, int, int]) -> None:
        self.bad, self._frame, self._parts = BadRows(), frame, parts

    def __iter__(self) -> Iterator[tuple[pl.DataFrame, int]]:
        for n_bad, n_good, done in self._parts:
            self.bad.add("empty line", n_bad)
            self.bad.show(Path("t.csv"), "line", 7, "is empty")
            yield self._frame[:n_good], done


def read(place: Path, source: Any, known: Known | None = None, **settings: Any) -> RawRows:
    return read_rows(source, Preprocessing(**settings), known, folder=place, run_bytes=10**6, progress=Progress())


def test_the_share_of_bad_rows_is_that_of_all_rows_read_so_far() -> None:
    frame = pl.DataFrame({"user": [1] * 1000, "item": [1] * 1000})

    def run(*parts: tuple[int, int, int], few: int = 0, share: float = 0.002) -> int:
        with tempfile.TemporaryDirectory() as place:
            return len(read(Path(place), Source(frame, *parts), max_bad_rows=share, few_bad_rows=few))

    assert run((2, 3, 100), (0, 997, 100)) == 1000  # two bad rows before a quote that nothing closes, and all others
    with pytest.raises(DataError, match=r"t.csv, line 7: is empty; 3 of 1,003 rows cannot be used"):
        run((3, 1000, 100))
    with pytest.raises(DataError, match="50 of 1,625 rows"):
        run((50, 500, 50), (0, 75, 100), (0, 1000, 100))
    with pytest.raises(DataError, match="150 of 153 rows"):  # those of the file, not those of its first parts
        run((50, 1, 30), (50, 1, 60), (50, 1, 100))
    with pytest.raises(DataError, match="none of the first 100 rows can be used"):  # said at once
        run((50, 0, 30), (50, 0, 60), (50, 1000, 100))
    assert run((10, 90, 100), few=10) == 90  # ten rows pass, as a tenth of all
    with pytest.raises(DataError, match="11 of 500 rows"):
        run((11, 489, 100), few=10)
    with pytest.raises(DataError, match="3 of 29 rows"):
        run((3, 26, 100), few=10)
    with pytest.raises(DataError, match="a row cannot be used, more than"):
        run((1, 999, 100), few=10, share=0.0)
    # while reading, a tenth is one of all that are to come: here of 300 rows, the first third of which is read
    assert run((10, 90, 33), (0, 100, 66), (0, 100, 100), few=10) == 290


def test_too_many_bad_rows_are_said_as_soon_as_they_are_seen(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    frame = pl.DataFrame({"user": [1] * 1000, "item": [1] * 1000})
    with caplog.at_level("INFO"), pytest.raises(DataError):
        read(tmp_path, Source(frame, (50, 500, 30), (0, 75, 60), (9, 75, 100)))
    lines = [record.getMessage() for record in caplog.records if "cannot be used" in record.getMessage()]
    assert len(lines) == 1
    assert "50 of the first 625 rows cannot be used (empty line); reading on to count all" in lines[0]


def test_users_of_an_older_dataset_lie_apart_by_their_ids(tmp_path: Path) -> None:
    known = Known(pl.DataFrame({"original": ["7", "x"], "user": [0, 1]}), pl.DataFrame())
    raw = read(tmp_path, Source(pl.DataFrame({"user": [7, 8, 7], "item": ["b", "a", "c"]}), (0, 3, 100)), known)
    assert [part.rows() for part in raw.known.partitions()] == [[(0, "b"), (0, "c")]]
    assert [part.rows() for part in raw.new.partitions()] == [[(8, "a")]]
    assert (len(raw), raw.item_type, raw.items.rows()["item"].to_list()) == (3, pl.String, ["b", "a", "c"])
