"""Batches of users, the same for any number of processes, and whole batches assigned to each process."""

from collections.abc import Iterator

from torch import Tensor

from bert4rec.runtime.collectives import Partition


def chunks(n: int, size: int) -> Iterator[slice]:
    """Yield consecutive slices of `size` that cover range(`n`); the last may be smaller.

    >>> list(chunks(5, 2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    for first in range(0, n, size):
        yield slice(first, min(first + size, n))


def assigned(n_batches: int, partition: Partition) -> Iterator[tuple[int, bool]]:
    """Yield the number of each batch that this process runs, and whether the batch is assigned to it.

    A process without a batch runs the last one: the lookups of a sharded table need every process.

    >>> list(assigned(3, Partition(rank=1, n_processes=2)))
    [(1, True), (2, False)]
    """
    for first in range(0, n_batches, partition.n_processes):
        number = first + partition.rank
        yield min(number, n_batches - 1), number < n_batches


def gathered(own: Tensor, n: int, partition: Partition) -> Tensor:
    """Return the results [n, ...] of all processes for `n` rows, in the order of the rows.

    `own` [turns, size, ...] are this process's results for its batches of `size`, in the order of `assigned`; entries
    after the last row are dropped.
    """
    return partition.stack(own).transpose(0, 1).flatten(0, 2)[:n]
