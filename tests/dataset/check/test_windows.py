"""What is wrong with a row by itself."""

from pathlib import Path

import pytest

from tests.dataset.check.damages import LONG, Cases, Damage, Sound, cases, change, damaged, put
from tests.dataset.check.folders import refused

LEAVE_ONE_OUT: Cases = {
    "negative twice": (
        put("test", LONG, "popular_negatives", 0, lambda _, row: row["popular_negatives"][2]),
        r"test: row 1 \(user 2\): popular_negatives has item \d+ twice",
    ),
    "negative out of range": (
        put("test", LONG, "uniform_negatives", 1, 62),
        r"\(user 2\): uniform_negatives\[1\] is 62, items have ids from 2 to 61",
    ),
    "negative is padding": (
        put("test", LONG, "popular_negatives", 0, 0),
        r"\(user 2\): popular_negatives\[0\] is 0, items",
    ),
    "item is the mask": (
        put("train", 0, "items", 0, 1),
        r"train: row 0 \(user 0\): items\[0\] is 1, items have ids from 2",
    ),
    "item too large": (
        put("test", 0, "items", 3, 62),
        r"test: row 0 \(user 0\): items\[3\] is 62, items have ids .* to 61",
    ),
    "target too large": (
        change("test", 0, target=62),
        r"test: row 0 \(user 0\): target is 62, items have ids from 2 to 61",
    ),
    "times decrease": (
        put("test", LONG, "times", 3, -1),
        r"test: row 1 \(user 2\): times\[3\] is -1, earlier than the one",
    ),
    "target before its history": (
        change("test", LONG, target_time=lambda _, row: row["times"][-1] - 1),
        r"test: row 1 \(user 2\): target_time is -?\d+, earlier than the last of times, -?\d+",
    ),
    "rating without end": (
        put("train", 0, "ratings", 2, float("inf")),
        r"train: .* ratings\[2\] is inf, must be finite",
    ),
    "rating is no number": (
        put("test", 0, "ratings", 0, float("nan")),
        r"test: .* ratings\[0\] is nan, must be finite",
    ),
}

BY_TIME: Cases = {
    "earlier instant": (
        lambda f: f.metadata.update(split_instant=f.metadata["split_instant"] - 10),
        r": row \d+ \(user \d+\): times\[\d+\] is \d+, not before \d+, when the test begins",
    ),
}


@pytest.mark.parametrize(("split", "damage", "words"), cases(leave_one_out=LEAVE_ONE_OUT, time=BY_TIME))
def test_a_row_that_is_wrong_by_itself_is_refused(
    sound: Sound, tmp_path: Path, split: str, damage: Damage, words: str
) -> None:
    refused(damaged(sound[split], damage, tmp_path / "dataset"), words)
