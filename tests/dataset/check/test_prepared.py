"""What the preparation writes is accepted."""

import tempfile
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import polars as pl
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

import preprocessing
from bert4rec.prepare import engine
from tests.dataset.check.folders import accepted, load

TIMES = st.integers(0, 30)  # few: many ties
ROWS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 14), TIMES, st.integers(1, 5)), min_size=8, max_size=90)


def prepared(place: Path, rows: list[tuple[int, int, int, int]], columns: list[str], **chosen: Any) -> Path | None:
    """Return the folder that the script writes of `rows`, None where it refuses them."""
    frame = pl.DataFrame(rows, schema=["user", "item", "at", "stars"], orient="row").select("user", "item", *columns)
    frame.with_columns(pl.col("user", "item").cast(pl.String)).write_csv(place / "log.csv")
    named = {"at": "--data.time_column=at", "stars": "--data.rating_column=stars"}
    arguments = [
        "--config=/dev/null", "--data.source=table", f"--data.path={place / 'log.csv'}",
        f"--data.dataset_dir={place / 'dataset'}", *(named[name] for name in columns),
        *(f"--{key}={value}" for key, value in chosen.items()),
    ]  # fmt: skip
    with redirect_stdout(StringIO()):
        return place / "dataset" if preprocessing.main(arguments) == 0 else None


@given(
    ROWS,
    st.sampled_from([["at", "stars"], ["at"], ["stars"], []]),
    st.fixed_dictionaries(
        {
            "preprocessing.validation_users": st.one_of(st.integers(1, 14), st.just("all")),
            "preprocessing.test_users": st.one_of(st.integers(1, 14), st.just("all")),
            "preprocessing.n_eval_negatives": st.integers(1, 16),
            "preprocessing.min_user_interactions": st.integers(1, 3),
            "preprocessing.min_item_interactions": st.integers(1, 2),
            "preprocessing.max_user_interactions": st.sampled_from([0, 5]),
            "preprocessing.repeats": st.sampled_from(["keep", "first", "last", "first_in_a_row"]),
            "preprocessing.split": st.sampled_from(["leave_one_out", "leave_last_basket", "time", "none"]),
            "preprocessing.ties": st.sampled_from(["file", "shuffle"]),
            "preprocessing.split_at": st.sampled_from([0.1, 0.5, "1970-01-01T00:00:03"]),
            "preprocessing.seed": st.integers(0, 99),
        }
    ),
    st.sampled_from([engine.RUNS, 10**8]),
)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
def test_what_the_script_writes_is_accepted(
    rows: list[tuple[int, int, int, int]], columns: list[str], chosen: dict[str, Any], n_runs: int
) -> None:
    with tempfile.TemporaryDirectory() as place, patch.object(engine, "RUNS", n_runs):  # many: a few rows in each
        folder = prepared(Path(place), rows, columns, **chosen)
        if folder is None:
            reject()
        accepted(folder)


def test_synthetic_data_is_accepted_and_the_counts_are_shown(small_folder: Path) -> None:
    metadata = load(small_folder).metadata
    out = accepted(small_folder)
    for name in ("train_positions", "validation_users", "test_users", "users", "items", "rows"):
        assert f"{metadata[name]:,}" in out


def test_a_catalogue_of_noise_may_have_items_that_nobody_took(tmp_path: Path) -> None:
    arguments = ["--data.source=random", "--data.n_users=20", "--data.n_items=100", "--data.n_rows=120"]
    with redirect_stdout(StringIO()):
        assert preprocessing.main(["--config=/dev/null", f"--data.dataset_dir={tmp_path / 'dataset'}", *arguments]) == 0
    assert 0 in {row["count"] for row in load(tmp_path / "dataset").tables["items"]}
    accepted(tmp_path / "dataset")
