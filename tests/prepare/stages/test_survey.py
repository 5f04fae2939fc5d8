"""One look at all histories: lengths, popularity of what is trained on, who is validated."""

from pathlib import Path

import numpy as np
import pytest

from bert4rec.config.tables import Preprocessing
from bert4rec.prepare.progress import Progress
from bert4rec.prepare.split.splits import leave_one_out
from bert4rec.prepare.stages.numbered_histories import NumberedHistories
from bert4rec.prepare.stages.survey import Survey, survey_histories
from bert4rec.runtime.errors import DataError
from tests.prepare.stages.rows import ordered


def survey(place: Path, *users: tuple[object, list[int]], **settings: int | str) -> Survey:
    histories = NumberedHistories(ordered(place / "parts", [*users]), np.array([2, 3, 4, 5], np.int32), known=None)
    return survey_histories(
        histories, leave_one_out, Preprocessing(**settings), n_users=len(users), n_items=4, progress=Progress()
    )  # type: ignore[arg-type]


def test_what_is_held_out_does_not_count_as_popular(tmp_path: Path) -> None:
    found = survey(tmp_path, (1, [0, 1, 2]), (2, [3, 0]), (3, [1, 0, 0, 3]))
    assert (found.lengths.tolist(), found.validated.tolist()) == ([3, 2, 4], [True, False, True])
    assert found.train_counts.tolist() == [3, 1, 0, 1]  # of users 1, 2, 3: item 0; 3 and 0; 1 and 0
    assert found.time_span is None


@pytest.mark.parametrize(
    ("lengths", "step", "length", "longest"),
    [
        ([3, 50, 50, 900], 0, 50, "50 items"),  # three quarters are not above 50
        ([3, 51, 51, 900], 0, 100, "51 items"),
        ([3, 0, 101], 0, 200, "101 items"),  # who has nothing does not count
        ([300, 400], 0, 200, "400 items"),
        ([1], 0, 50, "1 item"),
        ([3, 50, 50, 900], 70, 70, "50 items"),  # no less than the step between two windows
    ],
)
def test_windows_hold_most_histories_whole(lengths: list[int], step: int, length: int, longest: str) -> None:
    found = Survey(np.array(lengths, np.int64), np.zeros(4, np.int64), np.zeros(len(lengths), bool), None)
    assert found.window_length(at_least=step) == (length, f"three quarters of the histories have at most {longest}")


NOW = 1_700_000_000


def warnings(lengths: list[int], times: tuple[int, int] | None, *, are_alike: bool = False) -> list[str]:
    found = Survey(np.array(lengths, np.int64), np.zeros(4, np.int64), np.zeros(len(lengths), bool), times, are_alike)
    return found.warnings(is_table=True, now=NOW)


def test_what_is_usual_is_not_warned_of() -> None:
    assert warnings([3, 4], (NOW - 5, NOW + 3600)) == []  # an hour ahead: a time zone
    assert warnings([3, 0, 4], None) == []
    assert warnings([1, 0], (NOW, NOW))[1:] == []  # a single row is no reason to doubt the times


@pytest.mark.parametrize(
    ("lengths", "times", "are_alike", "words"),
    [
        ([3, 4], (NOW, NOW), False, "all times are 2023-11-14T22:13:20Z: the order of the file's rows counts"),
        ([3, 4], (5, NOW + 90_000), False, "times go up to 2023-11-15T23:13:20Z, which is in the future"),
        ([5, 0], None, True, "all 5 rows are of one user"),
        ([3, 3, 0], None, True, "all 2 users have the same history of 3 items"),
    ],
)
def test_what_is_probably_wrong_is_warned_of(
    lengths: list[int], times: tuple[int, int] | None, are_alike: bool, words: str
) -> None:
    (line,) = warnings(lengths, times, are_alike=are_alike)
    assert words in line
    assert "--" in line


def test_whether_all_users_are_alike(tmp_path: Path) -> None:
    assert survey(tmp_path / "a", (1, [0, 1, 2]), (2, [0, 1, 2]), (3, [0, 1, 2])).are_alike
    assert not survey(tmp_path / "b", (1, [0, 1, 2]), (2, [0, 1, 2]), (3, [0, 2, 1])).are_alike
    assert not survey(tmp_path / "c", (1, [0, 1, 2]), (2, [0, 1, 2, 3])).are_alike


def test_without_anybody_to_test_the_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="none of the 2 users has 3 interactions, as leave-one-out needs"):
        survey(tmp_path, (1, [0, 1]), (2, [3]))
