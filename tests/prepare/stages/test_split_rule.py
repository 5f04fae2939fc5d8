"""The settings choose the split, and the instant of a split by time."""

from pathlib import Path

import polars as pl
import pytest

from bert4rec.config.tables import Preprocessing
from bert4rec.prepare.order.spool import Parts
from bert4rec.prepare.split.splits import all_for_training, leave_one_out
from bert4rec.prepare.stages.split_rule import choose_split
from bert4rec.runtime.errors import DataError
from tests.prepare.stages.rows import ordered


def test_splits_without_an_instant(tmp_path: Path) -> None:
    parts = ordered(tmp_path / "parts", [(1, [0])]).parts
    assert choose_split(Preprocessing(), parts) == (leave_one_out, None)
    assert choose_split(Preprocessing(split="none"), parts) == (all_for_training, None)
    with pytest.raises(DataError, match="the source has no times"):
        choose_split(Preprocessing(split="time"), parts)


@pytest.mark.parametrize(("at", "instant"), [("30", 30), ("1970-01-01T00:00:20", 20), (0.5, 21)])
def test_the_instant_is_named_or_that_of_a_share_of_the_rows(tmp_path: Path, at: float | str, instant: int) -> None:
    parts = Parts(tmp_path / "parts")
    parts.add(pl.DataFrame({"time": [10, 20, 30, 40]}))
    rule, found = choose_split(Preprocessing(split="time", split_at=at), parts)
    assert found == instant
    marked = rule(pl.DataFrame({"times": [[10, 20, 30, 40]]}))
    assert marked["before"].to_list() == [sum(time < instant for time in (10, 20, 30, 40))]
