"""Histories put together again of windows: every position once, whatever the windows and the parts."""

import random
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from bert4rec.dataset.reader import open_dataset, read_metadata
from bert4rec.models.untrained import histories
from bert4rec.models.untrained.histories import TrainingHistories
from tests.conftest import LOG, prepare_log
from tests.models.untrained.windows import dataset_of


@pytest.mark.parametrize(("max_len", "step"), [(50, 0), (5, 0), (5, 2), (5, 1), (2, 1), (3, 3)])
@pytest.mark.parametrize("positions_at_once", [1, 7, 10**6])
def test_every_position_once(monkeypatch: pytest.MonkeyPatch, max_len: int, step: int, positions_at_once: int) -> None:
    monkeypatch.setattr(histories, "POSITIONS_AT_ONCE", positions_at_once)
    draw = random.Random(max_len + step)
    items = [[draw.randrange(9) for _ in range(draw.choice([0, 1, 2, 4, 5, 6, 11, 23]))] for _ in range(30)]
    times = [[100 * user + place for place in range(len(of_user))] for user, of_user in enumerate(items)]
    calls: list[None] = []
    found = TrainingHistories(
        dataset_of(items, n_items=9, max_len=max_len, step=step, times=times), lambda: calls.append(None)
    )
    parts = list(found.parts())
    assert len(parts) == len(calls) == found.n_parts
    together = {
        name: np.concatenate([getattr(part, name) for part in parts]).tolist()
        for name in ("users", "items", "lengths", "left", "times")
    }
    places = [(user, place) for user, of_user in enumerate(items) for place in range(len(of_user))]
    assert together == {
        "users": [user for user, _ in places],
        "items": [items[user][place] for user, place in places],
        "lengths": [len(items[user]) for user, _ in places],
        "left": [len(items[user]) - 1 - place for user, place in places],
        "times": [times[user][place] for user, place in places],
    }
    assert found.n_positions == len(places)


@pytest.mark.parametrize("changes", [{}, {"model.max_len": 3, "preprocessing.sliding_step": 2}])
def test_a_dataset_folder(tmp_path: Path, changes: dict[str, int]) -> None:
    """Of each user all but the last two items, which are held out; times are seconds from an instant on."""
    folder = prepare_log(tmp_path, **changes)
    metadata = read_metadata(folder)
    dataset = open_dataset(folder, max_len=metadata["max_len"], preprocessing=metadata["preprocessing"])
    (part,) = TrainingHistories(dataset).parts()
    users = pq.read_table(folder / "users.parquet")["original"].to_pylist()
    items = dataset.originals(8)
    found: dict[str, list[int]] = {}
    for user, item in zip(part.users.tolist(), part.items.tolist(), strict=True):
        found.setdefault(str(users[user]), []).append(int(items[item]))
    assert found == {user: of_user[:-2] for user, of_user in LOG.items()}
    assert part.times is not None
    assert (part.times - 1_600_000_000 == part.lengths - 1 - part.left).all()
    assert np.bincount(part.items, minlength=8).tolist() == dataset.popularity.tolist()


def test_times_need_not_be_known() -> None:
    (part,) = TrainingHistories(dataset_of([[3, 1], [2]], n_items=4)).parts()
    assert part.times is None
    assert part.items.tolist() == [3, 1, 2]
