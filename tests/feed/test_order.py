"""One global order, whatever the processes."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.feed.order import EpochOrder
from bert4rec.runtime.collectives import Partition


def orders(n: int, world_size: int, per_device: int, epoch: int = 0) -> list[EpochOrder]:
    return [
        EpochOrder(n, Partition(rank, world_size), per_device=per_device, seed=5, epoch=epoch)
        for rank in range(world_size)
    ]


@given(st.integers(1, 60), st.sampled_from([1, 2, 3]), st.integers(1, 3))
@settings(max_examples=80, deadline=None)
def test_the_ranks_together_walk_the_global_order(n: int, world_size: int, share: int) -> None:
    global_batch = 6 * share
    ranks, (alone,) = orders(n, world_size, global_batch // world_size), orders(n, 1, global_batch)
    assert {len(order) for order in ranks} == {len(alone)} == {-(-n // global_batch)}
    seen = []
    for step in range(len(alone)):
        dealt = [order[step] for order in ranks]
        np.testing.assert_array_equal(np.concatenate(dealt), alone[step])
        assert max(map(len, dealt)) - min(map(len, dealt)) <= 1
        seen += alone[step].tolist()
    assert sorted(seen) == list(range(n))


@given(st.integers(1, 60), st.integers(0, 59), st.sampled_from([1, 2, 3]), st.integers(1, 7))
@settings(max_examples=80, deadline=None)
def test_an_epoch_continues_after_what_was_seen(n: int, n_seen: int, world_size: int, per_device: int) -> None:
    n_seen = min(n_seen, n)
    whole = EpochOrder(n, Partition(), per_device=n, seed=5, epoch=2)[0].tolist()
    ranks = [
        EpochOrder(n, Partition(rank, world_size), per_device=per_device, seed=5, epoch=2, n_seen=n_seen)
        for rank in range(world_size)
    ]
    dealt = [sequence for step in range(len(ranks[0])) for order in ranks for sequence in order[step].tolist()]
    assert dealt == whole[n_seen:]


def test_epochs_differ() -> None:
    assert orders(50, 1, 50, epoch=0)[0][0].tolist() != orders(50, 1, 50, epoch=1)[0][0].tolist()
