"""Histories of known items, with and without times."""

import pyarrow as pa
import pytest

from bert4rec import TimedHistory
from bert4rec.inference.history import Known
from bert4rec.inference.item_ids import ItemIds
from bert4rec.runtime.errors import DataError

IDS = ItemIds(pa.array(["a", "b", "c"]))


def test_known_items_keep_their_times() -> None:
    history = TimedHistory(["c", "z", "a"], [1, 2.5, 9])
    known, indices = Known.of(history, IDS, with_times=True)
    assert indices.tolist() == [2, -1, 0]
    assert known.seconds is not None
    assert (known.items.tolist(), known.seconds.tolist(), known.at) == ([2, 0], [1, 9], 9)
    last = known.last(1)
    assert last.seconds is not None
    assert (last.items.tolist(), last.seconds.tolist(), last.at, len(last)) == ([0], [9], 9, 1)
    later, _ = Known.of(history._replace(at=20.5), IDS, with_times=True)
    assert later.at == 20
    for empty in (TimedHistory([], []), []):
        nothing, _ = Known.of(empty, IDS, with_times=True)
        assert (len(nothing), nothing.at) == (0, 0)


def test_a_model_that_knows_no_times_does_not_look_at_them() -> None:
    for history in (["a", "b"], TimedHistory(["a", "b"], [2, 1])):
        known, _ = Known.of(history, IDS, with_times=False)
        assert (known.items.tolist(), known.seconds) == ([0, 1], None)


@pytest.mark.parametrize(
    ("history", "problem"),
    [
        (["a"], "this model knows times, and a history has none; give it those of its items"),
        (TimedHistory(["a", "b"], [1]), "a history has 2 items and 1 times; each item needs one"),
        (TimedHistory(["a", "b"], [2, 1]), "the times of a history descend; items must come the oldest first"),
        (TimedHistory(["a"], ["now"]), "the times of a history must be numbers, seconds since 1970"),  # type: ignore[list-item]
        (TimedHistory(["a", "b"], [1, float("nan")]), "the times of a history must be numbers, seconds since 1970"),
        (
            TimedHistory(["a"], [5], at=4),
            "recommendations for the instant 4: the last item of a history is from 5, later",
        ),
    ],
)
def test_times_that_cannot_be_are_refused(history: TimedHistory | list[str], problem: str) -> None:
    with pytest.raises(DataError, match=f"^{problem}"):
        Known.of(history, IDS, with_times=True)
