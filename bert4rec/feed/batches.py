"""Batches in one global order: what a step trains on depends on (seed, epoch, step), not on the number of processes."""

import multiprocessing.context
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from bert4rec.dataset.reader import Rows, Split
from bert4rec.dataset.schema import MASK_ID, PAD_ID
from bert4rec.feed.masking import mask_items
from bert4rec.feed.negatives import Negatives, NegativeSampler
from bert4rec.feed.permutation import Permutation
from bert4rec.runtime.collectives import Partition
from bert4rec.runtime.errors import DataError

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """Sequences to encode and the positions to predict.

    `items` [total] int64, the sequences one after another; `lengths` [B] int64; `positions` [M] int64, indices into
    `items`, ascending; `targets` [M] int64, the items that were there, or PAD_ID where nothing is to be predicted;
    `n_sequences`, how many the global batch has, this rank's among them; `negatives`, for a sampled loss.
    """

    items: Tensor
    lengths: Tensor
    positions: Tensor
    targets: Tensor
    n_sequences: int = 0
    negatives: Negatives | None = None

    def to(self, device: torch.device) -> "Batch":
        """The same batch on `device`; asynchronous from pinned memory."""
        return self._of(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> "Batch":
        """The same batch in page-locked memory (called by the loader)."""
        return self._of(Tensor.pin_memory)

    def _of(self, move: Callable[[Tensor], Tensor]) -> "Batch":
        return Batch(
            move(self.items),
            move(self.lengths),
            move(self.positions),
            move(self.targets),
            self.n_sequences,
            self.negatives.map(move) if self.negatives else None,
        )


class EpochOrder:
    """The order of one epoch, dealt to the ranks; computed for the steps that are asked for, never held.

    A permutation of `n_sequences` by (`seed`, `epoch`) is cut into global batches of `per_device` × `world_size`; each
    is dealt to the ranks in even, contiguous shares. The last global batch may be smaller; where it has fewer
    sequences than there are ranks, the ranks left over get an empty share. The first `n_seen` are left out.
    """

    def __init__(
        self, n_sequences: int, *, per_device: int, rank: int, world_size: int, seed: int, epoch: int, n_seen: int = 0
    ) -> None:
        self._permutation = Permutation(n_sequences, (seed, epoch))
        self._places = range(n_seen, n_sequences)
        self._global_batch = per_device * world_size
        self._partition = Partition(rank, world_size)

    def __len__(self) -> int:
        return -(-len(self._places) // self._global_batch)

    def places(self, step: int) -> range:
        """Where the sequences of `step` on all ranks stand in the permutation."""
        return self._places[step * self._global_batch : (step + 1) * self._global_batch]

    def first(self, step: int) -> Indices:
        """The first sequence [1] of `step` on any rank."""
        return self._sequences(self.places(step)[:1])

    def __getitem__(self, step: int) -> Indices:
        """This rank's share of step `step`."""
        if not 0 <= step < len(self):
            raise IndexError(step)
        places = self.places(step)
        mine = self._partition.of(len(places))
        return self._sequences(places[mine.start : mine.stop])

    def _sequences(self, places: range) -> Indices:
        return self._permutation.at(np.arange(places.start, places.stop))


@dataclass(frozen=True)
class Position:
    """How far a training is in its data: whole `epochs`, `sequences` of the one after, and the steps that took."""

    epochs: int = 0
    sequences: int = 0
    steps: int = 0


class MaskedBatches(TorchDataset[Batch]):
    """The training batches of one rank, by step from `start` over all epochs: its share of rows, masked.

    `sampler` draws the negatives of a sampled loss, `masking` are the shares that `mask_items` takes. Batches depend
    on the arguments and the step alone, so loader processes can make them, and a run can begin anywhere: also where a
    global batch of another size has left off. Nothing that grows with the split is held.
    """

    def __init__(
        self,
        split: Split,
        *,
        n_epochs: int,
        per_device: int,
        rank: int,
        world_size: int,
        seed: int,
        n_rows: int,
        sampler: NegativeSampler | None = None,
        start: Position = Position(),
        **masking: float,
    ) -> None:
        self._sampler, self._start = sampler, start
        self._split = split
        self._n_epochs, self._seed, self._n_rows = n_epochs, seed, n_rows
        self._dealing = {"per_device": per_device, "rank": rank, "world_size": world_size}
        self._masking = masking
        self._epoch, self._order = start.epochs, self._order_of(start.epochs)
        self._steps_of_first = len(self._order)
        self.steps_per_epoch = -(-len(split) // (per_device * world_size))

    def steps_of(self, epoch: int) -> int:
        """Steps that are left of an epoch at the start, the same on every rank."""
        return self._steps_of_first if epoch == self._start.epochs else self.steps_per_epoch

    def __len__(self) -> int:
        return sum(map(self.steps_of, range(self._start.epochs, self._n_epochs)))

    def __getitem__(self, step: int) -> Batch:
        """The batch of this rank at `step`, counted from the start.

        An empty share becomes one sequence whose targets are padding, which no loss counts: every rank must run every
        forward pass. The rows come sorted by length, so that attention pads little.
        """
        epoch, step_in_epoch = self._find(step)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self._order_of(epoch)
        share = self._order[step_in_epoch]
        indices = share if len(share) else self._order.first(step_in_epoch)
        indices = indices[np.argsort(self._split.lengths(indices), kind="stable")]
        items, lengths = _tensors(self._split.read(indices))
        masked = mask_items(
            items,
            lengths,
            torch.from_numpy(indices),
            epoch=epoch,
            seed=self._seed,
            n_rows=self._n_rows,
            **self._masking,
        )
        targets = masked.targets if len(share) else torch.full_like(masked.targets, PAD_ID)
        n_sequences = len(self._order.places(step_in_epoch))
        negatives = self._sampler.draw(self._start.steps + step) if self._sampler else None
        return Batch(masked.items, lengths, masked.positions, targets, n_sequences, negatives)

    def batches(self, *, num_workers: int = 0, pin_memory: bool = False) -> Iterator[Batch]:
        """All batches in order, read ahead by `num_workers` processes that live as long as the training."""
        loader = DataLoader(
            _ErrorsAsValues(self),
            batch_size=None,
            shuffle=False,
            num_workers=num_workers,
            pin_memory=pin_memory,
            generator=torch.Generator(),  # from which it draws a seed that nobody uses, rather than from dropout's
            multiprocessing_context=_fork_server() if num_workers else None,
            worker_init_fn=partial(_end_with, os.getpid()),
        )
        for batch in loader:
            if isinstance(batch, DataError):
                raise batch
            yield batch

    def _find(self, step: int) -> tuple[int, int]:
        """The epoch of `step`, and the step within what is left of it."""
        if step < self._steps_of_first:
            return self._start.epochs, step
        epochs, step_in_epoch = divmod(step - self._steps_of_first, self.steps_per_epoch)
        return self._start.epochs + 1 + epochs, step_in_epoch

    def _order_of(self, epoch: int) -> EpochOrder:
        n_seen = self._start.sequences if epoch == self._start.epochs else 0
        return EpochOrder(len(self._split), **self._dealing, seed=self._seed, epoch=epoch, n_seen=n_seen)


def _fork_server() -> multiprocessing.context.ForkServerContext:
    """Starts loader processes from one that has imported what they need, so that they share it, and nothing else.

    Forked from the training process, they would inherit the thread pools of torch and Arrow in an unknown state.
    """
    # A training that is asked to end leaves at once; what it held is freed without a word about it on the screen.
    os.environ.setdefault("PYTHONWARNINGS", "ignore::UserWarning:multiprocessing.resource_tracker")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bert4rec.feed.own_group", __name__])
    return context


def _end_with(pid: int, _worker: int) -> None:
    """End this loader process as soon as the process `pid` has ended, however it did.

    Torch's own watch looks at the parent, which is the fork server: both would stay behind a training that was killed.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the training process, which still wants batches
    try:
        training = os.pidfd_open(pid)
    except ProcessLookupError:
        os._exit(1)

    def watch() -> None:
        select.select([training], [], [])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class _ErrorsAsValues(TorchDataset[Batch | DataError]):
    """The batches of `source`, and errors in their places: raised in a loader process, one would be a traceback."""

    def __init__(self, source: MaskedBatches) -> None:
        self._source = source

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, step: int) -> Batch | DataError:
        try:
            return self._source[step]
        except DataError as error:
            return error


def inference_batch(rows: Rows, max_len: int) -> Batch:
    """Histories as the model meets them at inference: their last `max_len` - 1 items and the mask token after them.

    `targets` holds the rows' targets, or nothing but zeros where they have none.
    """
    items, lengths = _tensors(rows)
    kept = lengths.clamp(max=max_len - 1)
    ends = (kept + 1).cumsum(0)
    shown = torch.full((int(ends[-1]),), MASK_ID, dtype=torch.int64)
    rows_of = torch.repeat_interleave(torch.arange(len(kept)), kept)
    from_end = torch.arange(len(rows_of)) - torch.repeat_interleave(kept.cumsum(0), kept)
    shown[ends[rows_of] - 1 + from_end] = items[lengths.cumsum(0)[rows_of] + from_end]
    targets = torch.zeros(len(kept), dtype=torch.int64) if rows.targets is None else _long(rows.targets)
    return Batch(shown, kept + 1, ends - 1, targets)


def _tensors(rows: Rows) -> tuple[Tensor, Tensor]:
    return _long(rows.items), torch.from_numpy(rows.lengths)


def _long(values: npt.NDArray[Any]) -> Tensor:
    return torch.from_numpy(values.astype(np.int64))
