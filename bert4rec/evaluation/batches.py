"""What is evaluated, cut into batches once, whatever the number of processes, and dealt whole to them."""

from collections.abc import Iterator

from torch import Tensor

from bert4rec.runtime.collectives import Partition


def cut(n: int, size: int) -> Iterator[slice]:
    """0 … `n` in slices of `size`, the last perhaps smaller.

    >>> list(cut(5, 2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    for first in range(0, n, size):
        yield slice(first, min(first + size, n))


def dealt(n_batches: int, partition: Partition) -> Iterator[tuple[int, bool]]:
    """The batches that this process runs, as many as every other one, and whether each is its own.

    One that has none left runs another's: the lookups of a sharded table need every process.

    >>> list(dealt(3, Partition(rank=1, n_processes=2)))
    [(1, True), (2, False)]
    """
    for first in range(0, n_batches, partition.n_processes):
        number = first + partition.rank
        yield min(number, n_batches - 1), number < n_batches


def collected(own: Tensor, n: int, partition: Partition) -> Tensor:
    """What all processes found for `n` things, [n, ...] in their order.

    `own` [turns, size, ...] is what this one found in each of its turns, as `dealt` has them: for batches of `size`,
    of which the last may be smaller, and its place that of nobody's.
    """
    return partition.stack(own).transpose(0, 1).flatten(0, 2)[:n]
