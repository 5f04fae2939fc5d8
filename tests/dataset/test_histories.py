"""Windows and pairs cut from histories, beside slices of Python lists."""

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
