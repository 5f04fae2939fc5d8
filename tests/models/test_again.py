"""Which items people take again is counted as by hand, whatever the parts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert4rec.models import transitions
from bert4rec.models.again import comes_again
from bert4rec.models.transitions import TrainingHistories
from tests.models.test_untrained import dataset_of

N_ITEMS = 5
EVENTS = st.lists(st.tuples(st.integers(0, N_ITEMS - 2), st.booleans()), max_size=12)  # item 4 has no position


@given(
    histories=st.lists(EVENTS, min_size=1, max_size=40).filter(any), n_held_out=st.integers(0, 2),
    has_kinds=st.booleans(), positions_at_once=st.sampled_from([1, 5, 12, 10**6]),
)  # fmt: skip
def test_the_rates_of_items_are_those_by_hand(
    histories: list[list[tuple[int, bool]]], n_held_out: int, has_kinds: bool, positions_at_once: int
) -> None:
    training = [items[: max(0, len(items) - n_held_out)] for items in histories]
    columns = {"events": [[1 + is_target for _, is_target in user] for user in histories], "target_kinds": [2]}
    items = [[item for item, _ in user] for user in histories]
    dataset = dataset_of(items, n_items=N_ITEMS, n_train=[*map(len, training)], **(columns if has_kinds else {}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transitions, "POSITIONS_AT_ONCE", positions_at_once)
        found = comes_again(TrainingHistories(dataset)).tolist()
    taken = [[item for item, is_target in user if is_target or not has_kinds] for user in training]
    users = [sum(item in user for user in taken) for item in range(N_ITEMS)]
    returning = [sum(user.count(item) >= 2 for user in taken) for item in range(N_ITEMS)]
    mean = sum(returning) / max(1, sum(users))
    rates = [(r + 20 * mean) / (n + 20) for r, n in zip(returning, users, strict=True)]
    assert found == [rate >= 0.05 for rate in rates]


def test_coffee_comes_again_and_a_bicycle_does_not() -> None:
    """40 of 100 users have coffee again and 1 a bicycle; an item of two users follows the mean of all items."""
    coffee, bicycle, tea, rare = range(4)
    histories = [[coffee, bicycle, *([coffee] * (user < 40)), *([bicycle] * (user < 1))] for user in range(100)]
    histories += [[tea] for _ in range(100)] + [[rare], [rare]]
    again = comes_again(TrainingHistories(dataset_of(histories, n_items=4)))
    assert again.tolist() == [True, False, False, True]
