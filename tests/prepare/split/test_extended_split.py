"""A dataset that extends another: who is validated and tested, when new rows come."""

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import polars as pl
import pytest

from bert4rec.dataset.check import check_dataset
from tests.preparation import prepared

WEEKS = (600, 700, 850)  # rows that are there at the end of each week


def log() -> pl.DataFrame:
    """Rows of 60 users, some of whom come later and some of whom do not come again; users of few rows among them."""
    draw = np.random.default_rng(7)
    first, last = draw.integers(0, 800, 60), draw.integers(200, 1000, 60)
    at = np.arange(WEEKS[-1])
    present = [np.flatnonzero((first <= time) & (time <= last)) for time in at]
    user = [int(draw.choice(users if len(users) else 60)) for users in present]
    return pl.DataFrame({"user": user, "item": draw.integers(0, 40, len(at)), "time": 5000 + at // 3})


@pytest.mark.parametrize(
    "settings",
    [
        {"validation_users": 12}, {"validation_users": "all"}, {"validation_users": 12, "test_users": 30},
        {"validation_users": 12, "split": "time"}, {"validation_users": 12, "split": "leave_last_basket"},
    ],
    ids=json.dumps,
)  # fmt: skip
def test_no_version_has_trained_on_a_held_out_target(tmp_path: Path, settings: dict[str, Any]) -> None:
    trained: dict[int, int] = {}  # user → how many of the first interactions some version has trained on
    validated: set[int] = set()
    fingerprints, options = list[str](), [f"--preprocessing.{key}={value}" for key, value in settings.items()]
    for n_rows in WEEKS:
        folder = prepared(tmp_path, *options, table=log()[:n_rows], name=f"rows-{n_rows}")
        options.append(f"--data.extends={folder}")  # the last one counts
        metadata = check_dataset(folder)
        rows = datasets.load_from_disk(str(folder / "histories")).to_polars()
        assert isinstance(rows, pl.DataFrame)
        for user, validation, test in rows.select("user", "validation", "test").iter_rows():
            assert validation < 0 or validation >= trained.get(user, 0)
            assert test < 0 or test >= trained.get(user, 0)
        now = {*rows.filter(pl.col("validation") >= 0)["user"]}
        assert now & trained.keys() == validated
        n_new = len(now - trained.keys())
        eligible_new = rows.filter(~pl.col("user").is_in([*trained]) & (pl.col("test") >= 0))
        if settings["validation_users"] == "all":
            assert n_new == len(eligible_new)
        elif "split" not in settings:
            assert n_new == 12 if not trained else 0 <= n_new < len(eligible_new)
        previous = {"fingerprints": fingerprints, "validation_users": len(validated)} if trained else None
        assert metadata.get("previous") == previous
        trained |= {user: max(n, trained.get(user, 0)) for user, n in rows.select("user", "n_train").iter_rows()}
        validated, fingerprints = now, [metadata["fingerprint"], *fingerprints]
