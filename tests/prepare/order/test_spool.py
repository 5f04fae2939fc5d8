"""The external sort, and the parts that lie on the disk."""

import tempfile
from pathlib import Path

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.prepare.order.spool import Parts, Spool

FRAMES = st.lists(st.lists(st.tuples(st.integers(-3, 20), st.integers(0, 5)), max_size=30), max_size=8)


def frame_of(rows: list[tuple[int, int]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema={"user": pl.Int64, "item": pl.Int64}, orient="row")


@settings(max_examples=60, deadline=None)
@given(FRAMES, st.sampled_from([50, 400, 10**6]), st.integers(0, 8))
def test_rows_come_back_user_by_user_in_the_order_in_which_they_came(
    frames: list[list[tuple[int, int]]], run_bytes: int, as_text_from: int
) -> None:
    """From frame `as_text_from` on ids are text: those before become text, and sort as such."""
    with tempfile.TemporaryDirectory() as place:
        spool = Spool(Path(place) / "spool", run_bytes=run_bytes)
        for i, rows in enumerate(frames):
            spool.add(frame_of(rows).cast({"user": pl.String} if i >= as_text_from else {}))
        parts = list(spool.partitions())
        spool.remove()
        assert not list(Path(place).iterdir())
    rows = [row for part in frames for row in part]
    is_text = any(part for part in frames[as_text_from:])
    key = (lambda row: str(row[0])) if is_text else (lambda row: row[0])
    wanted = sorted(((str(user) if is_text else user, item) for user, item in rows), key=lambda row: key(row))
    assert [row for part in parts for row in part.sort("user", maintain_order=True).rows()] == wanted
    users = [set(part["user"]) for part in parts]
    assert sum(map(len, users)) == len({user for user, _ in wanted})  # no user stands in two parts
    assert spool.n_rows == len(rows)


def test_parts_are_replaced_and_read_by_columns(tmp_path: Path) -> None:
    parts = Parts(tmp_path / "parts")
    for rows in ([(1, 2)], [(3, 4), (5, 6)]):
        parts.add(frame_of(rows))
    parts.replace(0, frame_of([(7, 8)]))
    assert [part.rows() for part in parts] == [[(7, 8)], [(3, 4), (5, 6)]]
    assert [part.rows() for part in parts.read("item")] == [[(8,)], [(4,), (6,)]]
    assert (len(parts), parts.columns) == (2, ["user", "item"])
