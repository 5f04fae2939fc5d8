"""What the preparation writes is accepted, in parts of any size."""

import tempfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

import preprocessing
from bert4rec.dataset import check as check_module
from bert4rec.prepare import engine
from tests.dataset.check.folders import Folder, accepted, load, prepared

TIMES = st.integers(0, 30)  # few: many ties
ROWS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 14), TIMES, st.integers(1, 5)), min_size=8, max_size=90)


@given(
    ROWS,
    st.sampled_from([["at", "stars"], ["at"], ["stars"], []]),
    st.fixed_dictionaries(
        {
            "validation_users": st.one_of(st.integers(1, 14), st.just("all")),
            "test_users": st.one_of(st.integers(1, 14), st.just("all")),
            "n_eval_negatives": st.integers(1, 16),
            "min_user_interactions": st.integers(1, 3),
            "min_item_interactions": st.integers(1, 2),
            "max_user_interactions": st.sampled_from([0, 5]),
            "repeats": st.sampled_from(["keep", "first", "last", "first_in_a_row"]),
            "split": st.sampled_from(["leave_one_out", "leave_last_basket", "time", "none"]),
            "ties": st.sampled_from(["file", "shuffle"]),
            "split_at": st.sampled_from([0.1, 0.5, "1970-01-01T00:00:03"]),
            "seed": st.integers(0, 99),
        }
    ),
    st.sampled_from([engine.RUNS, 10**8]),
)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
def test_what_the_script_writes_is_accepted(
    rows: list[tuple[int, int, int, int]], columns: list[str], chosen: dict[str, Any], n_runs: int
) -> None:
    with tempfile.TemporaryDirectory() as place, patch.object(engine, "RUNS", n_runs):  # many: a few rows in each
        wanted = [0, 1, *({"at": 2, "stars": 3}[name] for name in columns)]
        folder = prepared(Path(place), [[row[at] for at in wanted] for row in rows], columns, **chosen)
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


def with_originals(folder: Folder, originals: Sequence[Any]) -> Folder:
    """The folder with these original ids of the first users and items."""
    for name in ("users", "items"):
        for row, original in zip(folder.tables[name], originals, strict=False):
            row["original"] = original
    return folder


def test_originals_may_be_of_any_type_and_different_ones_may_have_the_same_hash(
    log_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for originals in (["", "a", "aa", "ä", *"bcde"], [-1, -2, 1, 2**62, 2, 3, 4, 5], [at / 2 for at in range(8)]):
        accepted(with_originals(load(log_folder), originals).save(tmp_path / "dataset"))
    monkeypatch.setattr(check_module, "hash", len, raising=False)
    accepted(with_originals(load(log_folder), ["a", "b", "aa", "c", "d", "e", "bb", "ccc"]).save(tmp_path / "dataset"))
