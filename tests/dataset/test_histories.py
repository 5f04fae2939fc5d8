"""Windows and pairs cut from histories, beside slices of Python lists."""

import pickle
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from bert4rec.dataset.histories import TrainingPairs, TrainingWindows
from tests.folders import histories_of


def windows_of(windows: TrainingWindows) -> list[list[int]]:
    rows = windows.read(np.arange(len(windows)))
    assert windows.lengths(np.arange(len(windows))).tolist() == rows.lengths.tolist()
    assert windows.mean_length == pytest.approx(rows.lengths.mean())
    return [part.tolist() for part in np.split(rows.items, rows.lengths.cumsum()[:-1])]


def test_windows_end_at_the_end_of_the_training_part_and_step_back(tmp_path: Path) -> None:
    items = [[0, 1, 2, 3, 4, 5, 6], [7, 8], [9], [0, 1, 2, 3]]
    histories = histories_of(tmp_path, items, times=items, n_train=[7, 2, 0, 3])
    windows = TrainingWindows(histories, max_len=4, step=2)
    assert windows_of(windows) == [[0, 1, 2], [1, 2, 3, 4], [3, 4, 5, 6], [7, 8], [0, 1, 2]]
    assert windows_of(TrainingWindows(histories, max_len=3, step=3))[:3] == [[0], [1, 2, 3], [4, 5, 6]]
    rows = windows.read(np.array([4, 1]))
    assert rows.times.tolist() == rows.items.tolist() == [0, 1, 2, 1, 2, 3, 4]
    for step in (0, 4):
        with pytest.raises(ValueError, match=f"step = {step} "):
            TrainingWindows(histories, max_len=3, step=step)


@pytest.mark.parametrize(("max_len", "step"), [(4, 3), (5, 1), (3, 3)])
@pytest.mark.parametrize("target_kinds", [[], [2]])
@pytest.mark.parametrize("per_batch", [1, 7, 1000])
def test_windows_and_pairs_of_many_histories_of_which_many_have_none(
    tmp_path: Path, per_batch: int, target_kinds: list[int], max_len: int, step: int
) -> None:
    draw = np.random.default_rng(per_batch)
    lengths = draw.integers(0, 12, 300) * (np.arange(300) // 40 % 2)
    items = [draw.integers(0, 99, n + 1).tolist() for n in lengths]
    events = [draw.choice([1, 2], n + 1, p=[0.8, 0.2]).tolist() for n in lengths]
    histories = histories_of(
        tmp_path, items, n_train=lengths.tolist(), per_batch=per_batch, events=events, target_kinds=target_kinds
    )
    parts = [(user, user_items[:n]) for user, (user_items, n) in enumerate(zip(items, lengths, strict=True))]
    cut = [
        part[max(0, end - max_len) : end]
        for user, part in parts
        if part and (not target_kinds or 2 in events[user][: len(part)])
        for end in range(len(part) - step * max(0, -(-(len(part) - max_len) // step)), len(part) + 1, step)
    ]
    windows, pairs = TrainingWindows(histories, max_len=max_len, step=step), TrainingPairs(histories)
    assert windows_of(windows) == cut
    numbers = draw.permutation(len(cut))[:50]
    assert windows.read(numbers).items.tolist() == [item for number in numbers for item in cut[number]]
    whole = [(user, item) for user, part in parts for item in part]
    for numbers in (np.arange(len(whole)), np.array([9, 0, 5, 5])):
        users, found, ratings = pairs.read(numbers)
        assert list(zip(users.tolist(), found.tolist(), strict=True)) == [whole[number] for number in numbers]
        assert ratings is None


@pytest.mark.parametrize("target_kinds", [[], [2]])
def test_windows_and_pairs_take_less_than_a_byte_a_user_and_nothing_of_a_pickle(
    tmp_path: Path, target_kinds: list[int]
) -> None:
    n_users, pickles = 50_000, set()
    for n in (10, n_users):
        place = tmp_path / f"{n:06}"
        lists = [[1, 2]] * n
        histories = histories_of(place, lists, per_batch=n, events=lists, target_kinds=target_kinds)
        entries = [TrainingWindows(histories, max_len=3, step=2), TrainingPairs(histories)]
        histories.read(np.array([0]), np.array([0]), np.array([1]))  # opens the files
        tracemalloc.start()
        for read in entries:
            read.read(np.array([0, len(read) - 1]))
        resident = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        pickles.add(len(pickle.dumps(entries)))
    assert resident < 1.5 * n_users
    assert len(pickles) == 1
