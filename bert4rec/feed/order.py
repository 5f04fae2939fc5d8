"""One global order: which sequences a step trains on depends on (seed, epoch, step), not on the number of processes."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bert4rec.feed.seeded.permutation import Permutation
from bert4rec.runtime.collectives import Partition

Indices = npt.NDArray[np.int64]


class EpochOrder:
    """The order of one epoch, dealt to the ranks; computed for the steps that are asked for, never stored.

    A permutation of `n_sequences` by (`seed`, `epoch`) is cut into global batches of `per_device` sequences a process;
    each is dealt to the ranks of `partition` in even, contiguous shares. The last global batch may be smaller; where it
    has fewer sequences than there are ranks, the ranks left over get an empty share. The first `n_seen` are skipped.
    """

    def __init__(
        self, n_sequences: int, partition: Partition, *, per_device: int, seed: int, epoch: int, n_seen: int = 0
    ) -> None:
        self._permutation = Permutation(n_sequences, (seed, epoch))
        self._places, self._partition = range(n_seen, n_sequences), partition
        self._global_batch = per_device * partition.n_processes

    def __len__(self) -> int:
        return -(-len(self._places) // self._global_batch)

    def places(self, step: int) -> range:
        """Return the places of the sequences of `step` on all ranks in the permutation."""
        return self._places[step * self._global_batch : (step + 1) * self._global_batch]

    def first(self, step: int) -> Indices:
        """Return the first sequence [1] of `step` on any rank."""
        return self._sequences(self.places(step)[:1])

    def __getitem__(self, step: int) -> Indices:
        """Return this rank's share of step `step`."""
        if not 0 <= step < len(self):
            raise IndexError(step)
        places = self.places(step)
        share = self._partition.of(len(places))
        return self._sequences(places[share.start : share.stop])

    def _sequences(self, places: range) -> Indices:
        return self._permutation.at(np.arange(places.start, places.stop))


@dataclass(frozen=True)
class Position:
    """Hold the position in the data: whole `epochs`, `sequences` of the next one, and their steps."""

    epochs: int = 0
    sequences: int = 0
    steps: int = 0


START = Position()
