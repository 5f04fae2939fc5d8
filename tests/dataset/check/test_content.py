"""Folders that are as they must be, of every kind, are accepted, in parts of any size."""

import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.dataset import check as check_module
from tests.dataset.check.folders import Event, Folder, accepted, make

N_ITEMS = 30
TIMES = st.integers(0, 30)  # few: many ties
EVENTS = st.lists(
    st.tuples(st.integers(0, N_ITEMS - 1), TIMES, st.sampled_from([0.5, 1.0, 5.0])), min_size=1, max_size=16
)


@st.composite
def folders(draw: st.DrawFn) -> Folder:
    histories = [
        [Event(*event) for event in sorted(events, key=lambda event: event[1])]
        for events in draw(st.lists(EVENTS, min_size=1, max_size=12))
    ]
    used = {event.item for history in histories for event in history}
    order = {item: place for place, item in enumerate(sorted(used))}
    split, extends = draw(st.sampled_from(["leave_one_out", "time", "none"])), draw(st.booleans())
    if not extends:  # every item occurs
        histories = [[event._replace(item=order[event.item]) for event in history] for history in histories]
    n_items = N_ITEMS if extends else len(used)
    return make(
        [*histories, *([[]] if extends else [])],
        split=split,
        wanted=draw(st.one_of(st.integers(1, 12), st.just("all"))),
        n_negatives=draw(st.integers(1, n_items + 1)),
        n_items=n_items,
        has_times=split == "time" or draw(st.booleans()),
        has_ratings=draw(st.booleans()),
        extends=extends,
        seed=draw(st.integers(0, 99)),
    )


@given(folders(), st.integers(1, 9))
@settings(max_examples=25, deadline=None)
def test_a_folder_made_by_the_rules_is_accepted(folder: Folder, rows_per_batch: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        accepted(folder.save(Path(place) / "dataset", rows_per_batch))


def test_the_counts_are_shown(tmp_path: Path) -> None:
    """Of five items the users leave 0, 1 and 2 unseen, and have two negatives of a kind."""
    histories = [[Event(place, place, 1.0) for place in range(length)] for length in (5, 4, 3)]
    folder = make(histories, n_negatives=2, n_items=5)
    folder.metadata["new"] = {"key": 1}  # which does not matter
    out = accepted(folder.save(tmp_path / "dataset"))
    counts = {name.replace("_", " "): folder.metadata[name] for name in ("rows", "train_positions", "test_users")}
    for name, n in (counts | {"validation users without negatives": 2, "test users without negatives": 2}).items():
        assert re.search(rf"^  {name} +{n}$", out, re.MULTILINE)


@pytest.mark.parametrize("extends", [False, True])
@pytest.mark.parametrize("originals", [["", "a", "aa", "ä"], [-1, -2, 1, 2**62], [0.5, 1.5, -1.0, 2.0]])
def test_originals_may_be_of_any_type(tmp_path: Path, originals: list[Any], extends: bool) -> None:
    accepted(_with_originals(originals, extends=extends).save(tmp_path / "dataset"))


def test_different_originals_may_have_the_same_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_module, "hash", len, raising=False)
    accepted(_with_originals(["a", "b", "aa", "c"]).save(tmp_path / "dataset"))


def _with_originals(originals: list[Any], **settings: Any) -> Folder:
    folder = make([[Event(user, 0, 1.0)] for user in range(4)], n_items=4, **settings)
    for name in ("users", "items"):
        for row, original in zip(folder.tables[name], originals, strict=True):
            row["original"] = original
    return folder
