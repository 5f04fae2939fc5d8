"""Training batches: one global order, split among the ranks and read ahead by loader processes."""

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from torch.utils.data import DataLoader

from bert4rec.dataset.columns import SmallPickle
from bert4rec.dataset.format import NO_ITEM
from bert4rec.dataset.histories import Rows, TrainingWindows
from bert4rec.feed.batch import AnyBatch, Batch, Candidates, FlatBatch
from bert4rec.feed.features import FeatureReader
from bert4rec.feed.fork_server import fork_server
from bert4rec.feed.negatives import NegativeSampler
from bert4rec.runtime.arrays import Int64s
from bert4rec.runtime.collectives import Partition
from bert4rec.runtime.errors import DataError
from bert4rec.runtime.seeded import Permutation
from bert4rec.runtime.signals import call_when_ended

WEIGHT_OF_NEW = 5.0  # of a new item in the loss of an update; benchmarks.nightly measures what it gives
MakeExamples: TypeAlias = Callable[[Rows, Int64s, int], Batch]
"""Some training windows, their numbers [B] and the epoch → the training batch."""


class EpochOrder:
    """The order of one epoch, split among the ranks; computed on demand and never stored.

    (`seed`, `epoch`) determine a permutation of `n_sequences`, without its first `n_seen`. It is cut into global
    batches of `per_device` sequences per process. The ranks of `partition` get even, contiguous shares of each global
    batch. The last global batch may be smaller; if it has fewer sequences than ranks, some ranks get an empty share.
    With `n_places`, the epoch has so many sequences: after the last one, the permutation begins again.
    """

    def __init__(
        self, n_sequences: int, partition: Partition, *, per_device: int, seed: int, epoch: int, n_seen: int = 0,
        n_places: int = 0,
    ) -> None:  # fmt: skip
        self._permutation, self._n_sequences = Permutation(n_sequences, (seed, epoch)), n_sequences
        self._places, self._partition = range(n_seen, n_places or n_sequences), partition
        self._global_batch = per_device * partition.n_processes

    def __len__(self) -> int:
        return -(-len(self._places) // self._global_batch)

    def places(self, step: int) -> range:
        """Return the positions in the permutation of the sequences of `step`, over all ranks."""
        return self._places[step * self._global_batch : (step + 1) * self._global_batch]

    def first(self, step: int) -> Int64s:
        """Return the first sequence [1] of the global batch of `step`."""
        return self._sequences(self.places(step)[:1])

    def __getitem__(self, step: int) -> Int64s:
        """Return this rank's sequences of `step`."""
        places = self.places(step)
        share = self._partition.of(len(places))
        return self._sequences(places[share.start : share.stop])

    def _sequences(self, places: range) -> Int64s:
        return self._permutation.at(np.arange(places.start, places.stop) % self._n_sequences)


@dataclass(frozen=True)
class Position:
    """The position in the data: whole `epochs`, `sequences` of the next epoch, and the `steps` taken so far."""

    epochs: int = 0
    sequences: int = 0
    steps: int = 0


AT_START = Position()


class HostShare(NamedTuple):
    """The `partition` of a process among those of its host, if each host has examples of its own.

    The host takes `n_places` of them in an epoch, all `n_processes` of all hosts equally many each.
    """

    partition: Partition
    n_places: int
    n_processes: int


class Examples(Protocol):
    """A source of training examples with a small pickle, since it is sent to the loader processes."""

    def __len__(self) -> int:
        """Return the number of examples of an epoch."""
        ...

    def batch(self, indices: Int64s, epoch: int) -> AnyBatch:
        """Return the examples at `indices` [B] in `epoch`; their order in the batch may differ."""
        ...


class Windows:
    """Training windows, turned into batches by `make`."""

    def __init__(self, windows: TrainingWindows, make: MakeExamples) -> None:
        self._windows, self._make = windows, make

    def __len__(self) -> int:
        return len(self._windows)

    def batch(self, indices: Int64s, epoch: int, n_new: Int64s | None = None) -> Batch:
        """Return the windows at `indices` [B], sorted by length to keep the padding of attention small.

        The last `n_new` [B] items of each have `WEIGHT_OF_NEW` in the loss, the others 1.
        """
        order = np.argsort(self._windows.lengths(indices), kind="stable")
        indices, rows = indices[order], self._windows.read(indices[order])
        if n_new is not None:
            is_new = rows.lengths.cumsum()[rows.numbers] - np.arange(len(rows.items)) <= n_new[order][rows.numbers]
            rows = replace(rows, weights=np.where(is_new, WEIGHT_OF_NEW, 1.0).astype(np.float32))
        return self._make(rows, self._windows.first_number + indices, epoch)


class ChosenWindows(SmallPickle):
    """Read those of the `windows` that the file `chosen` lists, which all processes of a host map.

    It has a row for each window [n, 2]: its number, and how many of its last items are new.
    """

    def __init__(self, windows: Windows, chosen: Path) -> None:
        self._windows, self._file = windows, chosen

    def __len__(self) -> int:
        return len(self._chosen)

    def batch(self, indices: Int64s, epoch: int) -> AnyBatch:
        """Return the windows at `indices` [B] of the chosen ones."""
        numbers, n_new = self._chosen[indices].T
        return self._windows.batch(numbers, epoch, n_new)

    @cached_property
    def _chosen(self) -> Int64s:
        return np.load(self._file, mmap_mode="r").view(np.ndarray)


class TrainingBatches:
    """One rank's training batches, indexed by step from `start` over all epochs: its share of the `examples`.

    `sampler` draws the negatives of a sampled loss, `features` reads those of the items. A batch depends only on the
    arguments and the step: loader processes can compute it, and a run can resume at any position, also with another
    global batch size. Memory does not grow with the data.

    The `share` is a partition of all processes; or a `HostShare`, if the `examples` are those of this host. Then each
    host has an order of its own.
    """

    def __init__(
        self, examples: Examples, share: Partition | HostShare, *, n_epochs: int, per_device: int, seed: int,
        sampler: NegativeSampler | None = None, features: FeatureReader | None = None, start: Position = AT_START,
    ) -> None:  # fmt: skip
        self._examples, self._sampler, self._features, self._n_epochs = examples, sampler, features, n_epochs
        if isinstance(share, Partition):
            share = HostShare(share, len(examples), share.n_processes)
        partition, n_places, self._n_processes = share
        self.start, self._n_local = start, partition.n_processes
        self.n_sequences = self._on_all_hosts(n_places)
        self._make_order = partial(
            EpochOrder, len(examples), partition, per_device=per_device, seed=seed, n_places=n_places
        )
        self._epoch, self._order = start.epochs, self._order_of(start.epochs)
        self._steps_of_first = len(self._order)
        self.steps_per_epoch = -(-n_places // (per_device * partition.n_processes))

    def steps_of(self, epoch: int) -> int:
        """Return the number of steps that remain in `epoch` at `start`, the same on every rank."""
        return self._steps_of_first if epoch == self.start.epochs else self.steps_per_epoch

    def __len__(self) -> int:
        return sum(map(self.steps_of, range(self.start.epochs, self._n_epochs)))

    def __getitem__(self, step: int) -> AnyBatch:
        """Return the batch of this rank at `step`, counted from `start`.

        An empty share becomes one example whose targets are NO_ITEM, which every loss ignores: every rank must run
        every forward pass.
        """
        epoch, step_in_epoch = self._find(step)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self._order_of(epoch)
        share = self._order[step_in_epoch]
        indices = share if len(share) else self._order.first(step_in_epoch)
        examples = self._examples.batch(indices, epoch)
        targets = examples.targets if len(share) else torch.full_like(examples.targets, NO_ITEM)
        n_sequences = self._on_all_hosts(len(self._order.places(step_in_epoch)))
        candidates = examples.candidates
        if self._sampler:
            candidates = Candidates.of(targets, self._sampler.draw(self.start.steps + step))
        step += self.start.steps
        batch = examples._replace(targets=targets, n_sequences=n_sequences, step=step, candidates=candidates)
        return batch if self._features is None else self._features.read_batch(batch)

    def batches(self, *, num_workers: int = 0, pin_memory: bool = False) -> Iterator[AnyBatch]:
        """Yield all batches in order, read ahead by `num_workers` loader processes. Raises `DataError`."""
        loader: DataLoader[FlatBatch | AnyBatch | DataError] = DataLoader(
            range(len(self)),  # type: ignore[arg-type]  # the steps; a loader process computes the batch of each
            batch_size=None,
            shuffle=False,
            collate_fn=partial(self._batch_or_error, is_flat=num_workers > 0),
            num_workers=num_workers,
            pin_memory=pin_memory,
            generator=torch.Generator(),  # else the loader would draw its unused seed from the generator of dropout
            multiprocessing_context=fork_server() if num_workers else None,
            worker_init_fn=partial(_end_with, os.getpid()),
        )
        for result in loader:
            if isinstance(result, DataError):
                raise result
            yield result.unpack() if isinstance(result, FlatBatch) else result

    def _batch_or_error(self, step: Any, *, is_flat: bool) -> AnyBatch | FlatBatch | DataError:
        """Return the batch of `step`, or its error: raised in a loader process, it would be printed as a traceback."""
        try:
            return FlatBatch.of(self[step]) if is_flat else self[step]
        except DataError as error:
            return error

    def _find(self, step: int) -> tuple[int, int]:
        """Return the epoch of `step`, and the step within the remaining part of that epoch."""
        if step < self._steps_of_first:
            return self.start.epochs, step
        epochs, step_in_epoch = divmod(step - self._steps_of_first, self.steps_per_epoch)
        return self.start.epochs + 1 + epochs, step_in_epoch

    def _order_of(self, epoch: int) -> EpochOrder:
        n_seen = self.start.sequences * self._n_local // self._n_processes
        return self._make_order(epoch=epoch, n_seen=n_seen if epoch == self.start.epochs else 0)

    def _on_all_hosts(self, n_sequences: int) -> int:
        """Return the number of sequences of all hosts at a place where this one has `n_sequences`."""
        return n_sequences * self._n_processes // self._n_local


def _end_with(pid: int, _worker: int) -> None:
    """End this loader process as soon as the training process `pid` has ended, for any reason.

    Torch's own watch checks the parent, which is the fork server: after a killed training, both would keep running.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # after Ctrl-C the training process still needs batches
    call_when_ended([pid], lambda: os._exit(1))
