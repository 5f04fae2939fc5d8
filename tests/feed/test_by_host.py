"""The order of an epoch whose windows are on several hosts: each host draws from its own."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.dataset.format import NO_ITEM
from bert4rec.feed.batch import Pairs, long
from bert4rec.feed.batches import HostShare, Position, TrainingBatches
from bert4rec.runtime.arrays import Int64s
from bert4rec.runtime.collectives import Partition
from bert4rec.runtime.seeded import Permutation

SEED = 5


class Numbers:
    """Examples whose targets are their numbers."""

    def __init__(self, n: int) -> None:
        self._n = n

    def __len__(self) -> int:
        return self._n

    def batch(self, indices: Int64s, epoch: int) -> Pairs:
        return Pairs.between(long(indices), long(indices))


Hosts = list[tuple[int, int]]
HOSTS = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 3)), min_size=1, max_size=3)


def batches_of(hosts: Hosts, *, per_device: int, n_epochs: int = 1, start: Position = Position()) -> list[list[Pairs]]:  # noqa: B008
    """The batches of each process of hosts with these numbers of examples and processes."""
    per_process, n_processes = max(-(-n // k) for n, k in hosts), sum(k for _, k in hosts)
    return [
        [*source.batches()]
        for n, k in hosts
        for place in range(k)
        for source in [
            TrainingBatches(
                Numbers(n), HostShare(Partition(place, k), per_process * k, n_processes), n_epochs=n_epochs,
                per_device=per_device, seed=SEED, start=start,
            )
        ]
    ]  # fmt: skip


@settings(deadline=None)
@given(HOSTS, st.integers(1, 9))
def test_all_processes_make_equal_steps_and_each_host_draws_its_own_in_its_order(hosts: Hosts, size: int) -> None:
    by_process = batches_of(hosts, per_device=size)
    assert len({tuple(len(batch.targets) for batch in batches) for batches in by_process}) == 1
    w, processes = max(-(-n // k) for n, k in hosts), iter(by_process)
    for n, k in hosts:
        own = [next(processes) for _ in range(k)]
        drawn = [np.concatenate([batches[step].targets for batches in own]) for step in range(len(own[0]))]
        order = Permutation(n, (SEED, 0)).at(np.arange(w * k) % n)
        assert np.concatenate(drawn).tolist() == order.tolist()
        assert {*order.tolist()} == {*range(n)}
        assert NO_ITEM not in order
    n_processes = sum(k for _, k in hosts)
    assert sum(batch.n_sequences for batch in by_process[0]) == w * n_processes


@pytest.mark.parametrize("n_done", range(1, 7))
def test_a_resumed_training_draws_what_is_left(n_done: int) -> None:
    hosts = [(23, 2), (9, 1)]  # 12 examples a process in an epoch: 3 steps of 4 or 5
    whole = batches_of(hosts, per_device=5, n_epochs=3)
    epochs = n_done // 3
    sequences = sum(batch.n_sequences for batch in whole[0][3 * epochs : n_done])
    rest = batches_of(hosts, per_device=5, n_epochs=3, start=Position(epochs, sequences, n_done))
    for one, other in zip(whole, rest, strict=True):
        assert [batch.targets.tolist() for batch in one[n_done:]] == [batch.targets.tolist() for batch in other]
        assert [batch.step for batch in one[n_done:]] == [batch.step for batch in other]


def test_one_host_with_all_windows_draws_as_without_parts() -> None:
    (by_host,), whole = (
        batches_of([(23, 1)], per_device=5),
        TrainingBatches(Numbers(23), Partition(), n_epochs=1, per_device=5, seed=SEED),
    )
    assert [batch.targets.tolist() for batch in by_host] == [batch.targets.tolist() for batch in whole.batches()]
