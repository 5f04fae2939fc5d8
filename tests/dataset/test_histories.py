"""Windows and pairs cut from histories, beside slices of Python lists."""

import pickle
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bert4rec.dataset.histories import Histories, TrainingPairs, TrainingWindows
from tests.folders import histories_of

ITEMS = [[0, 1, 2, 3, 4, 5, 6], [7, 8], [9], [0, 1, 2, 3]]


def windows_of(windows: TrainingWindows) -> list[list[int]]:
    rows = windows.read(np.arange(len(windows)))
    assert windows.lengths(np.arange(len(windows))).tolist() == rows.lengths.tolist()
    assert windows.mean_length == pytest.approx(rows.lengths.mean())
    return [part.tolist() for part in np.split(rows.items, rows.lengths.cumsum()[:-1])]


def test_windows_end_at_the_end_of_the_training_part_and_step_back(tmp_path: Path) -> None:
    histories = histories_of(tmp_path, ITEMS, times=ITEMS, n_train=[7, 2, 0, 3])
    windows = TrainingWindows(histories, max_len=4, step=2)
    assert windows_of(windows) == [[0, 1, 2], [1, 2, 3, 4], [3, 4, 5, 6], [7, 8], [0, 1, 2]]
    assert windows_of(TrainingWindows(histories, max_len=3, step=3))[:3] == [[0], [1, 2, 3], [4, 5, 6]]
    rows = windows.read(np.array([4, 1]))
    assert rows.times is not None
    assert (rows.times.tolist(), rows.items.tolist()) == ([0, 1, 2, 1, 2, 3, 4], [0, 1, 2, 1, 2, 3, 4])


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 30), min_size=1, max_size=8).filter(any), st.integers(1, 9), st.data())
def test_windows_cover_every_position(
    tmp_path_factory: pytest.TempPathFactory, n_train: list[int], max_len: int, data: st.DataObject
) -> None:
    step = data.draw(st.integers(1, max_len))
    items = [list(range(100 * user, 100 * user + n + 2)) for user, n in enumerate(n_train)]
    histories = histories_of(tmp_path_factory.mktemp("histories"), items, n_train=n_train)
    found = windows_of(TrainingWindows(histories, max_len=max_len, step=step))
    for user, n in enumerate(n_train):
        mine = [window for window in found if window[0] // 100 == user]
        ends = [window[-1] - 100 * user + 1 for window in mine]
        assert ends == [n - step * later for later in reversed(range(len(mine)))]
        assert {item for window in mine for item in window} == set(items[user][:n])
        assert [len(window) for window in mine] == [min(end, max_len) for end in ends]
        assert [window[0] == 100 * user for window in mine] == [True] * (n > 0) + [False] * (len(mine) - 1)
        assert all(window == list(range(window[0], window[-1] + 1)) for window in mine)
    assert found == sorted(found)


@pytest.mark.parametrize("step", [0, 4])
def test_a_step_that_would_leave_gaps_is_refused(tmp_path: Path, step: int) -> None:
    with pytest.raises(ValueError, match=f"step = {step} "):
        TrainingWindows(Histories(tmp_path, 10), max_len=3, step=step)


def test_pairs_are_those_of_the_training_parts(tmp_path: Path) -> None:
    pairs = TrainingPairs(histories_of(tmp_path, ITEMS, n_train=[5, 2, 0, 3]))
    whole = [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 7), (1, 8), (3, 0), (3, 1), (3, 2)]
    assert len(pairs) == len(whole)
    for numbers in (np.arange(10), np.array([9, 0, 5, 5])):
        users, items, ratings = pairs.read(numbers)
        assert list(zip(users.tolist(), items.tolist(), strict=True)) == [whole[number] for number in numbers]
        assert ratings is None


@pytest.mark.parametrize("target_kinds", [[], [2]])
@pytest.mark.parametrize("per_batch", [1, 7, 1000])
def test_many_histories_of_which_many_have_no_entries(tmp_path: Path, per_batch: int, target_kinds: list[int]) -> None:
    draw = np.random.default_rng(per_batch)
    lengths = draw.integers(0, 12, 300) * (np.arange(300) // 40 % 2)
    items = [draw.integers(0, 99, n + 1).tolist() for n in lengths]
    events = [draw.choice([1, 2], n + 1, p=[0.8, 0.2]).tolist() for n in lengths]
    histories = histories_of(
        tmp_path, items, n_train=lengths.tolist(), per_batch=per_batch, events=events, target_kinds=target_kinds
    )
    windows, pairs = TrainingWindows(histories, max_len=4, step=3), TrainingPairs(histories)
    parts = [(user, user_items[:n]) for user, (user_items, n) in enumerate(zip(items, lengths, strict=True))]
    cut = [
        part[max(0, end - 4) : end]
        for user, part in parts
        if not target_kinds or 2 in events[user][: len(part)]
        for end in range(_first_end(len(part)), len(part) + 1, 3)
        if end
    ]
    assert windows_of(windows) == cut
    numbers = draw.permutation(len(cut))[:50]
    assert windows.read(numbers).items.tolist() == [item for number in numbers for item in cut[number]]
    whole = [(user, item) for user, part in parts for item in part]
    users, found, _ = pairs.read(np.arange(len(pairs)))
    assert list(zip(users.tolist(), found.tolist(), strict=True)) == whole


def _first_end(n: int) -> int:
    """The end of the first window of four that are three apart and end at `n`."""
    return n - 3 * max(0, -(-(n - 4) // 3))


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
