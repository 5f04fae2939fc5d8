"""Histories of a dataset's users put together again."""

from pathlib import Path

import pytest

from bert4rec.inference import user_histories as module
from bert4rec.inference.history import TimedHistory
from bert4rec.inference.item_ids import ItemIds
from bert4rec.inference.user_histories import UserHistories
from bert4rec.runtime.errors import DataError
from tests.conftest import LOG, prepare_log

BEGIN = 1_600_000_000  # seconds, of each history


@pytest.mark.parametrize("at_once", [1, 4, 4096])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"preprocessing.split": "none", "model.max_len": 5},
        {"preprocessing.split": "none", "model.max_len": 5, "preprocessing.sliding_step": 2},
    ],
)
def test_histories_of_users_are_those_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], at_once: int,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(module, "AT_ONCE", at_once)
    folder = prepare_log(tmp_path, **changes)
    users = UserHistories(folder, ItemIds.read(folder))
    found = {user: items for part in users.all() for user, items in part}
    assert found == LOG
    assert users.of(["f", "a"]) == [("f", LOG["f"]), ("a", LOG["a"])]
    capsys.readouterr()
    assert users.of(["z", "a", "y"]) == [("z", []), ("a", LOG["a"]), ("y", [])]
    assert capsys.readouterr().out == "warning: 2 of 3 users not in the dataset: z, y\n"
    timed = UserHistories(folder, ItemIds.read(folder), with_times=True, at=7.0)
    assert timed.of(["z"]) == [("z", TimedHistory([], [], 7.0))]
    times = {user: [BEGIN + place for place in range(len(items))] for user, items in LOG.items()}
    assert {user: history for part in timed.all() for user, history in part} == {
        user: TimedHistory(items, times[user], 7.0) for user, items in LOG.items()
    }


def test_users_without_times_are_refused_where_they_are_asked_for(tmp_path: Path) -> None:
    folder = prepare_log(tmp_path, **{"data.time_column": ""})
    with pytest.raises(DataError, match="does not say when items were taken"):
        UserHistories(folder, ItemIds.read(folder), with_times=True)


@pytest.mark.parametrize("name", ["²", "--5", "9" * 20])
def test_what_looks_like_a_number_and_is_none_is_no_user(small_folder: Path, name: str) -> None:
    users = UserHistories(small_folder, ItemIds.read(small_folder))
    assert users.of(["7"])[0][0] == 7
    assert users.of([name]) == [(name, [])]
