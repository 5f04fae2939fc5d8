"""Folders that are as they must be, of every kind, are accepted; what reads them works in parts of any size."""

import re
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
from tests.dataset.check.folders import Event, Maker, accepted, load

N_ITEMS = 30
TIMES = st.integers(0, 30)  # few: many ties
EVENTS = st.lists(
    st.tuples(st.integers(2, 1 + N_ITEMS), TIMES, st.sampled_from([0.5, 1.0, 5.0])), min_size=1, max_size=16
)
ROWS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 14), TIMES, st.integers(1, 5)), min_size=8, max_size=90)


@st.composite
def makers(draw: st.DrawFn) -> Maker:
    histories = [
        [Event(*event) for event in sorted(events, key=lambda event: event[1])]
        for events in draw(st.lists(EVENTS, min_size=1, max_size=12))
    ]
    used = {event.item for history in histories for event in history}
    order = {item: 2 + place for place, item in enumerate(sorted(used))}
    split, extends = draw(st.sampled_from(["leave_one_out", "time", "none"])), draw(st.booleans())
    if not extends:  # every item occurs
        histories = [[event._replace(item=order[event.item]) for event in history] for history in histories]
    n_items = N_ITEMS if extends else len(used)
    max_len = draw(st.integers(2, 6))
    return Maker(
        [*histories, *([[]] if extends else [])],
        split=split,
        max_len=max_len,
        step=draw(st.integers(1, max_len)),
        wanted=draw(st.one_of(st.integers(1, 12), st.just("all"))),
        n_negatives=draw(st.integers(1, n_items + 1)),
        n_items=n_items,
        parallel=draw(st.sampled_from([(), ("times",), ("ratings",), ("times", "ratings")])),
        extends=extends,
        seed=draw(st.integers(0, 99)),
    )


@given(makers(), st.integers(1, 9))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
def test_a_folder_made_by_the_rules_is_accepted(maker: Maker, rows_per_batch: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        accepted(maker.make().save(Path(place) / "dataset", rows_per_batch))


def prepared(place: Path, rows: list[tuple[int, int, int, int]], columns: list[str], **chosen: Any) -> Path | None:
    """The folder that the script writes of `rows`, None where it refuses them."""
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
            "model.max_len": st.integers(3, 7),
            "preprocessing.sliding_step": st.integers(0, 3),
            "preprocessing.validation_users": st.one_of(st.integers(1, 14), st.just("all")),
            "preprocessing.n_eval_negatives": st.integers(1, 16),
            "preprocessing.min_user_interactions": st.integers(1, 3),
            "preprocessing.min_item_interactions": st.integers(1, 2),
            "preprocessing.max_user_interactions": st.sampled_from([0, 5]),
            "preprocessing.k_core": st.sampled_from(["true", "false"]),
            "preprocessing.drop_consecutive_duplicates": st.sampled_from(["true", "false"]),
            "preprocessing.repeats": st.sampled_from(["keep", "first", "last"]),
            "preprocessing.split": st.sampled_from(["leave_one_out", "time", "none"]),
            "preprocessing.split_at": st.sampled_from([0.1, 0.5, "1970-01-01T00:00:03"]),
            "preprocessing.seed": st.integers(0, 99),
        }
    ),
    st.sampled_from([engine.RUNS, 10**8]),
)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
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
    for name in ("train_windows", "train_positions", "validation_users", "test_users", "users", "items", "rows"):
        assert f"{metadata[name]:,}" in out


def test_a_catalogue_of_noise_may_have_items_that_nobody_took(tmp_path: Path) -> None:
    arguments = ["--data.source=random", "--data.n_users=20", "--data.n_items=900", "--data.n_rows=120"]
    with redirect_stdout(StringIO()):
        assert preprocessing.main(["--config=/dev/null", f"--data.dataset_dir={tmp_path / 'dataset'}", *arguments]) == 0
    assert 0 in {row["count"] for row in load(tmp_path / "dataset").tables["items"]}
    accepted(tmp_path / "dataset")


def test_users_without_negatives_are_counted(tmp_path: Path) -> None:
    histories = [[Event(2 + place, place, 1.0) for place in range(length)] for length in (5, 4, 3)]
    folder = Maker(histories, n_negatives=2, n_items=5).make()  # of five items they leave 0, 1 and 2 unseen
    out = accepted(folder.save(tmp_path / "dataset"))
    shares = {name: share["users"] for name, share in folder.metadata["left_out"].items()}
    assert sum(shares.values()) == 4
    for split, n in shares.items():
        assert re.search(rf"{split} .* {n}$", out, re.MULTILINE)
