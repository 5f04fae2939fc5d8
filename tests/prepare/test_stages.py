"""The stages of the preparation one by one: what is read, what the limits leave, ids of users, work in threads."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from bert4rec.prepare.files.bad_rows import BadRows
from bert4rec.prepare.order.spool import Parts
from bert4rec.prepare.progress import Progress
from bert4rec.prepare.stages import Filters, Histories, Ordered, in_order, limit, read
from bert4rec.runtime.errors import DataError


def test_the_share_of_bad_rows_is_that_of_all_rows_read_so_far() -> None:
    frame = pl.DataFrame({"user": [1] * 1000, "item": [1] * 1000})

    def source(bad: BadRows, *parts: tuple[int, int, int]) -> Iterator[tuple[pl.DataFrame, int]]:
        for n_bad, n_good, done in parts:
            bad.add("empty line", n_bad)
            bad.show(Path("t.csv"), "line", 7, "is empty")
            yield frame[:n_good], done

    def run(*parts: tuple[int, int, int], few: int = 0, share: float = 0.002) -> int:
        bad = BadRows()
        with tempfile.TemporaryDirectory() as place:
            return len(
                read(
                    source(bad, *parts), bad, folder=Path(place), run_bytes=10**6, n_bytes=100, max_bad_rows=share,
                    few_bad_rows=few, progress=Progress(),
                )
            )  # fmt: skip

    assert run((2, 3, 100), (0, 997, 100)) == 1000  # two bad rows before a quote that nothing closes, and all others
    with pytest.raises(DataError, match=r"t.csv, line 7: is empty; 3 of 1,003 rows cannot be used"):
        run((3, 1000, 100))
    with pytest.raises(DataError, match="50 of 1,250 rows"):  # said at once: as many again are to come
        run((50, 500, 50), (0, 75, 100), (0, 1000, 100))
    assert run((10, 90, 100), few=10) == 90  # ten rows pass, as a tenth of all
    with pytest.raises(DataError, match="11 of 500 rows"):
        run((11, 489, 100), few=10)
    with pytest.raises(DataError, match="3 of 29 rows"):
        run((3, 26, 100), few=10)
    with pytest.raises(DataError, match="a row cannot be used, more than"):
        run((1, 999, 100), few=10, share=0.0)
    # while reading, a tenth is one of all that are to come: here of 300 rows, the first third of which is read
    assert run((10, 90, 33), (0, 100, 66), (0, 100, 100), few=10) == 290


def test_threads_keep_the_order() -> None:
    begun: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(9):
            begun.append(number)
            yield number

    results = in_order(lambda number: number**2, numbers(), n_threads=2)
    assert next(results) == 0
    assert begun == [0, 1, 2]
    assert list(results) == [number**2 for number in range(1, 9)]


def ordered(folder: Path, *parts: list[tuple[object, list[int]]], n_known: int = 0) -> Ordered:
    """Rows of four items: of each part its users with the codes of their items."""
    rows = Parts(folder)
    for users in parts:
        cells = [(user, code) for user, codes in users for code in codes]
        kind = pl.Int64 if all(isinstance(user, int) for user, _ in cells) else pl.String
        rows.add(pl.DataFrame(cells, {"user": kind, "item": pl.Int32}, orient="row"))
    codes = [code for users in parts for _, some in users for code in some]
    return Ordered(rows, pl.Series(["a", "b", "c", "d"]), np.bincount(codes, minlength=4), n_known)


@pytest.mark.parametrize(
    ("k_core", "left", "counts", "dropped"),
    [  # without users 2 and 3, of whom one row each is left, item 1 has become rare
        (False, [[(1, 0), (1, 1), (1, 0)], []], [2, 1, 0, 0], {"min_item_interactions": 2, "min_user_interactions": 2}),
        (True, [[(1, 0), (1, 0)], []], [2, 0, 0, 0], {"min_item_interactions": 3, "min_user_interactions": 2}),
    ],
)
def test_the_limits_hold_for_users_and_items_together_where_it_is_asked_for(
    tmp_path: Path, k_core: bool, left: list[list[tuple[int, int]]], counts: list[int], dropped: dict[str, int]
) -> None:
    rows = ordered(tmp_path / "parts", [(1, [0, 1, 0]), (2, [0, 2])], [(3, [1, 3])])
    limit(rows, Filters(min_item_interactions=2, min_user_interactions=2, k_core=k_core), progress=Progress())
    assert [part.rows() for part in rows.parts] == left
    assert (rows.counts.tolist(), rows.dropped) == (counts, dropped)


def test_known_users_keep_their_ids_and_new_ones_come_behind_them(tmp_path: Path) -> None:
    parts = ordered(tmp_path / "parts", [(2, [1, 0])], [("p", [0]), ("q", [3, 3, 1])], [], [("r", [1])], n_known=1)
    histories = Histories(parts, np.array([5, 2, 0, 3], np.int32), known=pl.Series("original", ["x", "y", "z"]))
    assert [part.rows() for part in histories] == [[(2, [2, 5])], [(3, [5]), (4, [3, 3, 2])], [(5, [2])]]
    assert (histories.n_rows, histories.columns) == (7, ["user", "item"])
    assert [part.rows() for part in histories.users()] == [
        [(0, "x", 0), (1, "y", 0), (2, "z", 2)],
        [(3, "p", 1), (4, "q", 3)],
        [(5, "r", 1)],
    ]
