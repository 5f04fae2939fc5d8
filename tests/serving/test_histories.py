"""Histories of known items, and those of a dataset's users put together again."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bert4rec import TimedHistory
from bert4rec.runtime.errors import DataError
from bert4rec.serving import users as module
from bert4rec.serving.histories import ItemIds, KnownHistory
from bert4rec.serving.stored_items import StoredItemIds
from bert4rec.serving.users import UserHistories
from tests.conftest import LOG, prepare_log
from tests.folders import write_users

IDS = ItemIds(pa.array(["a", "b", "c"]))


def test_known_items_keep_their_times() -> None:
    history = TimedHistory(["c", "z", "a"], [1, 2.5, 9])
    known, indices = KnownHistory.of(history, IDS, with_times=True)
    assert indices.tolist() == [2, -1, 0]
    assert known.seconds is not None
    assert (known.items.tolist(), known.seconds.tolist(), known.at) == ([2, 0], [1, 9], 9)
    last = known.last(1)
    assert last.seconds is not None
    assert (last.items.tolist(), last.seconds.tolist(), last.at, len(last)) == ([0], [9], 9, 1)
    later, _ = KnownHistory.of(history._replace(at=20.5), IDS, with_times=True)
    assert later.at == 20
    for empty in (TimedHistory([], []), []):
        nothing, _ = KnownHistory.of(empty, IDS, with_times=True)
        assert (len(nothing), nothing.at) == (0, 0)


def test_the_items_of_a_plain_list_are_as_of_now_and_a_model_without_times_ignores_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("time.time", lambda: 1_650_000_000.7)
    known, _ = KnownHistory.of(["b", "z", "a"], IDS, with_times=True)
    assert known.seconds is not None
    assert (known.items.tolist(), known.seconds.tolist(), known.at) == ([1, 0], [1_650_000_000] * 2, 1_650_000_000)
    for history in (["a", "b"], TimedHistory(["a", "b"], [2, 1])):
        known, _ = KnownHistory.of(history, IDS, with_times=False)
        assert (known.items.tolist(), known.seconds) == ([0, 1], None)


@pytest.mark.parametrize(
    ("history", "problem"),
    [
        (TimedHistory(["a", "b"], [1]), "2 .* 1 "),
        (TimedHistory(["a", "b"], [2, 1]), "descend"),
        (TimedHistory(["a", "b"], [1, float("nan")]), "seconds"),
        (TimedHistory(["a"], [5], at=4), "00:04.*00:05"),
        (TimedHistory(["a"], [1e17], at=1e16), "at = 10000.* 100000"),
        (TimedHistory(["a"], [5], at=[7]), "seconds"),  # type: ignore[arg-type]
        (TimedHistory(["a"], [5], at=float("nan")), "nan.*seconds"),
    ],
)
def test_times_that_cannot_be_are_refused(history: TimedHistory, problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        KnownHistory.of(history, IDS, with_times=True)


BEGIN = 1_600_000_000  # seconds, of each history


@pytest.mark.parametrize(("changes", "at_once"), [({}, 4), ({"preprocessing.split": "none", "model.max_len": 5}, 4096)])
def test_histories_of_users_are_those_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], at_once: int,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(module, "AT_ONCE", at_once)
    folder = prepare_log(tmp_path, **changes)
    users = UserHistories(folder, StoredItemIds(folder))
    found = {user: items for part in users.all() for user, items in part}
    assert found == LOG
    assert users.of(["f", "a"]) == [("f", LOG["f"]), ("a", LOG["a"])]
    capsys.readouterr()
    with pytest.raises(DataError, match=r"^2 of 3 users .*: z, y; .* such as a, b, c$"):
        users.of(["z", "a", "y"])
    assert users.of(["z", "a", "y"], allow_unknown=True) == [("z", []), ("a", LOG["a"]), ("y", [])]
    assert re.search(r"2 of 3 users .*: z, y\n$", capsys.readouterr().out)
    timed = UserHistories(folder, StoredItemIds(folder), with_times=True, at=7.0)
    assert timed.of(["z"], allow_unknown=True) == [("z", TimedHistory([], [], 7.0))]
    times = {user: [BEGIN + place for place in range(len(items))] for user, items in LOG.items()}
    assert {user: history for part in timed.all() for user, history in part} == {
        user: TimedHistory(items, times[user], 7.0) for user, items in LOG.items()
    }


def test_users_without_times_are_refused_where_they_are_asked_for(tmp_path: Path) -> None:
    folder = prepare_log(tmp_path, **{"data.time_column": ""})
    with pytest.raises(DataError, match="time"):
        UserHistories(folder, StoredItemIds(folder), with_times=True)


def test_what_looks_like_a_number_and_is_none_is_no_user(small_folder: Path) -> None:
    users = UserHistories(small_folder, StoredItemIds(small_folder))
    assert [user for user, _ in users.of(["7", 7, 7.0, " 7.0 ", np.int32(7)])] == [7] * 5
    for name in ("²", "--5", "9" * 20):
        assert users.of([name], allow_unknown=True) == [(name, [])]


@pytest.mark.parametrize(
    "segments",
    [
        [sorted(f"u{number}" for number in range(200)), sorted(f"t{number}" for number in range(99))],  # extended
        [[*range(2, 200)], sorted(f"{number}x" for number in range(99))],  # the first ids were whole numbers
        [sorted(str(number) for number in range(300))],
    ],
)
def test_each_user_is_found_in_whatever_segment(tmp_path: Path, segments: list[list[Any]]) -> None:
    """Only the first few have a history."""
    folder, names = prepare_log(tmp_path), [str(name) for segment in segments for name in segment]
    write_users(folder, segments)
    users = UserHistories(folder, StoredItemIds(folder))
    every = [history for part in users.all() for history in part]
    assert users.of(names[::-1]) == every[::-1]
    assert users.of(["", "u", "z", "u1x"], allow_unknown=True) == [(name, []) for name in ("", "u", "z", "u1x")]
