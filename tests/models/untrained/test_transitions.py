"""Counts of transitions beside those of a loop over whole histories."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.models.untrained import histories as module
from bert4rec.models.untrained.histories import TrainingHistories
from bert4rec.models.untrained.transitions import Transitions
from tests.models.untrained.windows import dataset_of

N_ITEMS = 6


def by_hand(histories: Sequence[Sequence[int]], reach: int, decay: float) -> dict[tuple[int, int], float]:
    found: dict[tuple[int, int], float] = defaultdict(float)
    for items in histories:
        for later in range(len(items)):
            for earlier in range(max(0, later - reach), later):
                found[items[earlier], items[later]] += decay ** (later - earlier - 1)
    return found


def as_dict(transitions: Transitions) -> dict[tuple[int, int], float]:
    keys, weights = transitions.pairs
    pairs = [divmod(key, transitions.n_items) for key in keys.tolist()]
    assert pairs == sorted(set(pairs))
    return dict(zip(pairs, weights.tolist(), strict=True))


def test_a_history_by_hand() -> None:
    histories = TrainingHistories(dataset_of([[0, 1, 0, 1], [1, 2]], n_items=3))
    direct = Transitions.count(histories, reach=1, decay=0.5)
    assert as_dict(direct) == {(0, 1): 2, (1, 0): 1, (1, 2): 1}
    assert direct.totals.tolist() == [2, 2, 0]
    further = Transitions.count(histories, reach=3, decay=0.5)
    assert as_dict(further) == {(0, 0): 0.5, (0, 1): 2.25, (1, 0): 1, (1, 1): 0.5, (1, 2): 1}
    assert further.totals.tolist() == [2.75, 2.5, 0]


@settings(max_examples=60, deadline=None)
@given(
    histories=st.lists(st.lists(st.integers(0, N_ITEMS - 1), max_size=14), min_size=1, max_size=8).filter(any),
    max_len=st.integers(2, 6), step=st.integers(0, 6), reach=st.integers(1, 5),
    positions_at_once=st.sampled_from([1, 5, 12, 10**6]),
)  # fmt: skip
def test_the_counts_are_those_of_whole_histories(
    histories: list[list[int]], max_len: int, step: int, reach: int, positions_at_once: int
) -> None:
    """None is lost between two windows or two parts, none counts twice where windows overlap."""
    dataset = dataset_of(histories, n_items=N_ITEMS, max_len=max_len, step=min(step, max_len))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "POSITIONS_AT_ONCE", positions_at_once)
        found = Transitions.count(TrainingHistories(dataset), reach=reach, decay=0.5)
    assert as_dict(found) == by_hand(histories, reach, 0.5)  # halves are exact
    totals = np.zeros(N_ITEMS)
    for (source, _), weight in by_hand(histories, reach, 0.5).items():
        totals[source] += weight
    assert found.totals.tolist() == totals.tolist()


def test_pairs_are_looked_up_one_by_one_and_row_by_row() -> None:
    histories = [[0, 3, 1, 0, 3, 2], [4, 4, 0]]
    graph = Transitions.count(TrainingHistories(dataset_of(histories, n_items=N_ITEMS)), reach=2, decay=0.5)
    expected = by_hand(histories, 2, 0.5)
    sources, targets = (values.ravel() for values in np.mgrid[:N_ITEMS, :N_ITEMS])
    assert graph.weights(sources, targets).tolist() == [
        expected.get(pair, 0.0) for pair in zip(sources.tolist(), targets.tolist(), strict=True)
    ]
    lengths, columns, weights = graph.rows(np.array([3, 5, 0, 3]), 1, 4)
    assert lengths.tolist() == [2, 0, 3, 2]
    assert columns.tolist() == [0, 1, *[0, 1, 2], 0, 1]
    of_3, of_0 = [expected[3, 1], expected[3, 2]], [expected[0, 1], expected[0, 2], expected[0, 3]]
    assert weights.tolist() == [*of_3, *of_0, *of_3]


def test_histories_of_one_item_have_no_transitions() -> None:
    graph = Transitions.count(TrainingHistories(dataset_of([[1], [2]], n_items=3)), reach=2, decay=0.5)
    assert as_dict(graph) == {}
    assert graph.weights(np.array([1]), np.array([2])).tolist() == [0.0]
    assert [values.tolist() for values in graph.rows(np.array([0, 2]), 0, 3)] == [[0, 0], [], []]
