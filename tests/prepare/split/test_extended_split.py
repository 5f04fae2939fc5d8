"""A dataset that extends another: who is validated and tested, when new rows come."""

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import polars as pl
import pytest

from bert4rec.config.tables import Config
from bert4rec.dataset.check import check_dataset
from bert4rec.prepare.engine import prepare

WEEKS = (600, 700, 850)  # rows that are there at the end of each week


def log() -> pl.DataFrame:
    """Rows of 60 users, some of whom come later and some of whom do not come again; users of few rows among them."""
    draw = np.random.default_rng(7)
    first, last = draw.integers(0, 800, 60), draw.integers(200, 1000, 60)
    at = np.arange(WEEKS[-1])
    present = [np.flatnonzero((first <= time) & (time <= last)) for time in at]
    user = [int(draw.choice(users if len(users) else 60)) for users in present]
    return pl.DataFrame({"user": user, "item": draw.integers(0, 40, len(at)), "time": 5000 + at // 3})


def versions(place: Path, **preprocessing: Any) -> list[Path]:
    """The datasets of the weeks, each of which extends the one before."""
    folders: list[Path] = []
    for week, n_rows in enumerate(WEEKS):
        log()[:n_rows].write_csv(place / f"{week}.csv")
        data = {"source": "table", "path": str(place / f"{week}.csv"), "dataset_dir": str(place / f"week-{week}")}
        data |= {"extends": str(folders[-1])} if folders else {}
        settings = {"n_eval_negatives": 5, **preprocessing}
        folders.append(prepare(Config.model_validate({"data": data, "preprocessing": settings})))
    return folders


def histories(folder: Path) -> pl.DataFrame:
    rows = datasets.load_from_disk(str(folder / "histories")).to_polars()
    assert isinstance(rows, pl.DataFrame)
    return rows


@pytest.mark.parametrize(
    ("settings", "all_are_drawn"),
    [
        ({"validation_users": 12}, False),
        ({"validation_users": "all"}, True),
        ({"validation_users": 12, "test_users": 30}, False),
        ({"validation_users": 12, "split": "time"}, False),
        ({"validation_users": 12, "split": "leave_last_basket"}, False),
    ],
    ids=lambda value: json.dumps(value),
)
def test_no_version_has_trained_on_a_held_out_target(
    tmp_path: Path, settings: dict[str, Any], all_are_drawn: bool
) -> None:
    trained: dict[int, int] = {}  # user → how many of the first interactions some version has trained on
    validated: dict[int, bool] = {}
    for folder in versions(tmp_path, **settings):
        check_dataset(folder)
        rows = histories(folder)
        n_new = 0
        for user, validation, test in rows.select("user", "validation", "test").iter_rows():
            assert validation < 0 or validation >= trained.get(user, 0)
            assert test < 0 or test >= trained.get(user, 0)
            if user in trained and validation >= 0:
                assert validated[user]
            n_new += user not in trained and validation >= 0
        kept = {user for user, is_validated in validated.items() if is_validated}
        found = {*rows.filter(pl.col("validation") >= 0)["user"]}
        assert kept <= found
        eligible_new = rows.filter(~pl.col("user").is_in([*trained]) & (pl.col("test") >= 0))
        if all_are_drawn:
            assert n_new == len(eligible_new)
        elif "split" not in settings:
            assert n_new == 12 if not trained else 0 <= n_new < len(eligible_new)
        previous = json.loads((folder / "metadata.json").read_text()).get("previous")
        assert (previous["validation_users"] if previous else 0) == len(kept)
        trained |= {user: max(n, trained.get(user, 0)) for user, n in rows.select("user", "n_train").iter_rows()}
        validated = {user: user in found for user in trained}


def test_a_user_whose_rows_are_missing_now_is_no_longer_validated(tmp_path: Path) -> None:
    old, *_ = versions(tmp_path, validation_users="all")
    user, n_train = histories(old).filter(pl.col("validation") > 4).select("user", "n_train").row(0)
    original = pl.read_parquet(old / "users.parquet")["original"][user]
    rows = log()[: WEEKS[0]]
    fewer = pl.concat([rows.filter(pl.col("user") != original), rows.filter(pl.col("user") == original)[:n_train]])
    fewer.write_csv(tmp_path / "fewer.csv")
    data = {"source": "table", "path": str(tmp_path / "fewer.csv"), "extends": str(old)}
    settings = {"n_eval_negatives": 5, "validation_users": "all"}
    config = Config.model_validate({"data": data | {"dataset_dir": str(tmp_path / "x")}, "preprocessing": settings})
    places = histories(prepare(config)).filter(user=user)["validation"].to_list()
    assert places == [-1]


def test_a_dataset_names_all_that_it_extends(tmp_path: Path) -> None:
    first, second, third = (
        json.loads((folder / "metadata.json").read_text()) for folder in versions(tmp_path, validation_users=12)
    )
    assert "previous" not in first
    assert second["previous"]["fingerprints"] == [first["fingerprint"]]
    assert third["previous"]["fingerprints"] == [second["fingerprint"], first["fingerprint"]]
