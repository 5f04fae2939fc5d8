"""Batches: ragged sequences with the positions to predict, or pairs of a user and an item."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from bert4rec.dataset.format import NO_ITEM
from bert4rec.feed.negatives import Negatives
from bert4rec.runtime.arrays import Array

if TYPE_CHECKING:
    from bert4rec.dataset.histories import Rows  # imports Arrow

T = TypeVar("T")

Counts: TypeAlias = tuple[int, ...] | None
"""The number of positions of each rank's batch, those without a target included; None if they are not exchanged."""

ID_ROWS = 64  # rows of a KeyedJaggedTensor over which ids are spread evenly
# Largest id, as a multiple of the number of ids, for which an index by id replaces a sort. For 13,000 ids up to
# 1,000,000 the index takes 0.03 to 0.3 ms, the sort 0.5 to 0.9 ms.
LARGEST_COUNTED = 64
TENSOR_ALIGNMENT = 64  # bytes: torch's alignment of a newly allocated tensor


class TableBags(NamedTuple):
    """The values of n items in a feature with a table of its own.

    - `distinct`: the distinct values, which are rows of the table.
    - `places` [N] int64: the index into `distinct` of each value, those of an item from its `offsets` [n] on.
    - `weights` [N] float32: one over the square root of the number of values that the item has.
    """

    distinct: "Lookup"
    places: Tensor
    offsets: Tensor
    weights: Tensor


class FeatureBags(NamedTuple):
    """The features of n items.

    - `values` [N] int64: the numbers of all values with replicated vectors, those of an item from its `offsets` [n] on.
    - `weights` [N] float32: one over the square root of the number of values that the item has of that feature.
    - `vectors` [n · W] float32: the ready-made vectors, one after the other.
    - `is_warm` [n] float32: 1 for an item with training positions, else 0.
    - `tables`: the values of each feature with a table of its own.
    """

    values: Tensor
    offsets: Tensor
    weights: Tensor
    vectors: Tensor
    is_warm: Tensor
    tables: tuple[TableBags, ...] = ()

    def to(self, device: torch.device) -> "FeatureBags":
        """Return the features on `device`, copied asynchronously from pinned memory."""
        return _on_device(self, device)


class Lookup(NamedTuple):
    """The `ids` [U] int64 of rows of a table, and `lengths` [ID_ROWS] of the rows of their KeyedJaggedTensor.

    `features` are those of the items, for a model with item features; without them the model reads them.

    The model builds the KeyedJaggedTensor, which takes microseconds. Loader processes do not: importing TorchRec costs
    each of them seconds and memory.
    """

    ids: Tensor
    lengths: Tensor
    features: FeatureBags | None = None

    @classmethod
    def of(cls, ids: Tensor) -> "Lookup":
        """Return the lookup of `ids`."""
        return cls(ids, even_lengths(len(ids), ids.device))

    def to(self, device: torch.device) -> "Lookup":
        """Return the lookup on `device`, copied asynchronously from pinned memory."""
        return _on_device(self, device)


def even_lengths(n_ids: int | Tensor, device: torch.device) -> Tensor:
    """Return the lengths [ID_ROWS] of rows that share `n_ids` ids evenly: fbgemm shards each row in one thread.

    With a tensor [..., 1] of numbers of ids on the device, the lengths are [..., ID_ROWS].
    """
    return (torch.arange(ID_ROWS + 1, device=device) * n_ids // ID_ROWS).diff()


def unique_with_inverse(ids: Tensor) -> tuple[Lookup, Tensor]:
    """Return the distinct values of `ids` [N] int64, ascending, and the index [N] int64 of each id among them.

    `ids` are on the CPU and not negative.

    >>> distinct, places = unique_with_inverse(torch.tensor([7, 2, 7]))
    >>> distinct.ids.tolist(), places.tolist()
    ([2, 7], [1, 0, 1])
    """
    numbers = ids.numpy()
    if len(numbers) and numbers.max() < LARGEST_COUNTED * len(numbers):
        is_present = np.zeros(numbers.max() + 1, bool)
        is_present[numbers] = True
        distinct = np.flatnonzero(is_present)
        place_of = np.empty(len(is_present), np.int64)
        place_of[distinct] = np.arange(len(distinct))
        places = place_of[numbers]
    else:
        distinct, places = np.unique(numbers, return_inverse=True)
    return Lookup.of(torch.from_numpy(distinct)), torch.from_numpy(places)


class Candidates(NamedTuple):
    """The distinct `items` that a loss scores, and the indices of the targets and the negatives among them.

    `positives` [M] int64 and `negatives` [K] int64 are indices into `items`; a position without a target has the index
    of item 0. `log_expected` [K] float32 is the log of the expected count of each negative in the draw.
    """

    items: Lookup
    positives: Tensor
    negatives: Tensor
    log_expected: Tensor

    @classmethod
    def of(cls, targets: Tensor, negatives: Negatives | None = None) -> "Candidates":
        """Return the candidates for `targets` [M], some of them NO_ITEM, and `negatives`, if the loss needs any."""
        positives = targets.clamp(min=0)
        if negatives is None:
            negatives = Negatives(positives[:0], torch.empty(0))
        items, places = unique_with_inverse(torch.cat([positives, negatives.ids]))
        return cls(items, places[: len(targets)], places[len(targets) :], negatives.log_expected)


class Widths(NamedTuple):
    """The sizes of padded rows, known before a batch is on its device: a model need not wait to read them.

    `longest` is the length of the longest sequence, `most_positions` the largest number of positions to predict of one.
    """

    longest: int
    most_positions: int

    @classmethod
    def of(cls, lengths: Tensor, positions: Tensor) -> "Widths":
        """Return the widths of sequences of `lengths` [B] with ascending `positions` [M], all on the CPU."""
        ends = np.cumsum(lengths.numpy())
        n_positions = np.diff(np.searchsorted(positions.numpy(), ends), prepend=0)
        return cls(int(lengths.numpy().max(initial=0)), int(n_positions.max(initial=0)))


class Batch(NamedTuple):
    """Sequences to encode and the positions to predict.

    - `items`: the distinct input items.
    - `places` [total] int64: the index into `items` at each position of the concatenated sequences. The mask token,
      which is no row of a table, has the index `len(items.ids)`.
    - `lengths` [B] int64: the lengths of the sequences.
    - `positions` [M] int64: indices into `places`, ascending, of the positions to predict.
    - `targets` [M] int64: the items to predict, or NO_ITEM where nothing is predicted.
    - `n_sequences`: the number of sequences of the global batch, over all ranks.
    - `step`: the number of the training step, by which a model drops item ids.
    - `candidates`: for a loss that does not score the whole catalogue.
    - `gaps` [total] and `instants` [M] int64, for a model that uses timestamps: seconds between two items, and the time
      of each prediction.
    - `events` [total] int64: the kind of event at each position, if the dataset has kinds; 0 at a position to predict.
    - `weights` [M] float32: of the positions in the loss, if they differ.
    - `widths`: the sizes of the padded rows.
    - `counts`: the number M of each rank, if they have exchanged it.
    - `arrived`: the CUDA event after the copy to the device.
    """

    items: Lookup
    places: Tensor
    lengths: Tensor
    positions: Tensor
    targets: Tensor
    n_sequences: int = 0
    step: int = 0
    candidates: Candidates | None = None
    gaps: Tensor | None = None
    instants: Tensor | None = None
    events: Tensor | None = None
    weights: Tensor | None = None
    widths: Widths | None = None
    counts: Counts = None
    arrived: Any = None

    @classmethod
    def from_items(
        cls, shown: Tensor, lengths: Tensor, positions: Tensor, targets: Tensor, gaps: Tensor | None = None,
        instants: Tensor | None = None,
    ) -> "Batch":  # fmt: skip
        """Return the batch of sequences with the input ids `shown` [total], NO_ITEM for the mask token."""
        is_item = shown != NO_ITEM
        items, places_of_items = unique_with_inverse(shown[is_item])
        places = torch.full_like(shown, len(items.ids))
        places[is_item] = places_of_items
        widths = Widths.of(lengths, positions)
        return cls(items, places, lengths, positions, targets, gaps=gaps, instants=instants, widths=widths)

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on `device`, copied asynchronously; the loader pins the memory of named tuples."""
        return _on_device(self, device)


class Pairs(NamedTuple):
    """M pairs of a user and an item.

    - `users`: the distinct users.
    - `places` [M] int64: the index into `users` of each pair.
    - `targets` [M] int64: the items, or NO_ITEM for a pair that the loss ignores.
    - `ratings` [M] float32: if the loss needs them.
    - `n_sequences`: the number of pairs of the global batch, over all ranks.
    - `step`: the number of the training step, by which a model drops item ids.
    - `candidates`: for a loss that does not score the whole catalogue.
    - `weights` [M] float32: of the pairs in the loss, if they differ.
    - `counts`: the number M of each rank, if they have exchanged it.
    - `arrived`: the CUDA event after the copy to the device.
    """

    users: Lookup
    places: Tensor
    targets: Tensor
    ratings: Tensor | None = None
    n_sequences: int = 0
    step: int = 0
    candidates: Candidates | None = None
    weights: Tensor | None = None
    counts: Counts = None
    arrived: Any = None

    @classmethod
    def between(cls, users: Tensor, targets: Tensor, ratings: Tensor | None = None) -> "Pairs":
        """Return pairs of `users` [M] and `targets` [M]; with `ratings` [M], the targets are the candidates."""
        candidates = None if ratings is None else Candidates.of(targets)
        return cls(*unique_with_inverse(users), targets, ratings, candidates=candidates)

    def to(self, device: torch.device) -> "Pairs":
        """Return the pairs on `device`, copied asynchronously from pinned memory."""
        return _on_device(self, device)


AnyBatch: TypeAlias = Batch | Pairs


def weights_of(batch: AnyBatch) -> Tensor:
    """Return the weights [M] of the positions in the loss: 0 for the target NO_ITEM, else by default 1 (`True`)."""
    is_real = batch.targets != NO_ITEM
    return is_real if batch.weights is None else batch.weights * is_real


def seconds_of(rows: "Rows") -> Tensor | None:
    """Return the timestamps [total] int64 of the items of ragged rows, or None if the rows have none."""
    return None if rows.times is None else torch.from_numpy(rows.times)


def events_of(rows: "Rows") -> Tensor | None:
    """Return the kinds of events [total] int64 of ragged rows, or None if the rows have none."""
    return None if rows.events is None else long(rows.events)


def tensors_of(rows: "Rows") -> tuple[Tensor, Tensor]:
    """Return the items [total] int64 of ragged rows, and the lengths [B] of the rows."""
    return long(rows.items), torch.from_numpy(rows.lengths)


def long(values: Array) -> Tensor:
    """Return `values` as an int64 tensor."""
    return torch.from_numpy(values.astype(np.int64))


class Place(NamedTuple):
    """The first byte, the size and the dtype of a tensor in a flat batch."""

    first: int
    n_bytes: int
    dtype: torch.dtype


class FlatBatch(NamedTuple):
    """A batch with all of its tensors in one, to be sent from a loader process to the trainer.

    `content` [n_bytes] uint8 is the concatenation of the one-dimensional tensors; `batch` has a `Place` instead of each
    tensor. Torch opens a connection to pass the file descriptor of each tensor to another process: for the dozen
    tensors of a batch this takes several times as long as computing them.
    """

    content: Tensor
    batch: Any

    @classmethod
    def of(cls, batch: AnyBatch) -> "FlatBatch":
        """Return a flat copy of `batch`."""
        parts: list[Tensor] = []

        def pack(tensor: Tensor) -> Place:
            content = tensor.clone(memory_format=torch.contiguous_format).view(torch.uint8)
            place = Place(sum(map(len, parts)), len(content), tensor.dtype)
            parts.extend([content, content.new_empty(-len(content) % TENSOR_ALIGNMENT)])
            return place

        places = mapped(batch, Tensor, pack)
        return cls(torch.cat(parts), places)

    def unpack(self) -> AnyBatch:
        """Return the batch; its tensors share the memory of the flat batch."""

        def tensor_at(place: Place) -> Tensor:
            return self.content[place.first : place.first + place.n_bytes].view(place.dtype)

        batch: AnyBatch = mapped(self.batch, Place, tensor_at)
        return batch


def _on_device(value: T, device: torch.device) -> T:
    return cast(T, mapped(value, Tensor, lambda tensor: tensor.to(device, non_blocking=True)))


def mapped(value: Any, kind: type, function: Callable[[Any], Any]) -> Any:
    """Return `value` with `function` applied to each instance of `kind`, also inside nested tuples."""
    if isinstance(value, kind):
        return function(value)
    if isinstance(value, tuple):
        parts = [mapped(part, kind, function) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value
