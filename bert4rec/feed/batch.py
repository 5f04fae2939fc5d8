"""A batch: ragged sequences with the positions to predict, or pairs of a user and an item."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bert4rec.dataset.format import NO_ITEM
from bert4rec.dataset.histories import Rows
from bert4rec.feed.negatives import Negatives

ID_ROWS = 64  # rows of a KeyedJaggedTensor over which ids are spread evenly
# With a table of places, for ids up to so many times their number; that was faster than a sort for 13,000 ids up to
# 1,000,000 (0.03 … 0.3 ms against 0.5 … 0.9).
LARGEST_COUNTED = 64


class Lookup(NamedTuple):
    """`ids` [U] int64 of rows of a table, and `lengths` [ID_ROWS], of the rows that they make in a KeyedJaggedTensor.

    The tensor itself is made beside the table: to import TorchRec takes a loader process seconds and memory, to make
    it takes microseconds.
    """

    ids: Tensor
    lengths: Tensor

    @classmethod
    def of(cls, ids: Tensor) -> "Lookup":
        """Return the lookup of `ids`."""
        return cls(ids, even_lengths(len(ids), ids.device))

    def to(self, device: torch.device) -> "Lookup":
        """Return it on `device`, asynchronously from pinned memory."""
        return Lookup(*(tensor.to(device, non_blocking=True) for tensor in self))


def even_lengths(n_ids: int, device: torch.device) -> Tensor:
    """Return even lengths of `ID_ROWS` rows with `n_ids` ids: fbgemm shards each row by a thread."""
    return (torch.arange(ID_ROWS + 1, device=device) * n_ids // ID_ROWS).diff()


def unique_with_inverse(ids: Tensor) -> tuple[Lookup, Tensor]:
    """Return the distinct ones of `ids` [N] int64, ascending, and the index [N] int64 of each of `ids` among them.

    `ids` are on the CPU and not below 0.

    >>> found, places = distinct(torch.tensor([7, 2, 7]))
    >>> found.ids.tolist(), places.tolist()
    ([2, 7], [1, 0, 1])
    """
    numbers = ids.numpy()
    if len(numbers) and numbers.max() < LARGEST_COUNTED * len(numbers):
        is_there = np.zeros(numbers.max() + 1, bool)
        is_there[numbers] = True
        found = np.flatnonzero(is_there)
        place_of = np.empty(len(is_there), np.int64)
        place_of[found] = np.arange(len(found))
        places = place_of[numbers]
    else:
        found, places = np.unique(numbers, return_inverse=True)
    return Lookup.of(torch.from_numpy(found)), torch.from_numpy(places)


class Candidates(NamedTuple):
    """The items that a loss scores: `items`, distinct, and which of them the targets and the negatives are.

    `positives` [M] int64 and `negatives` [K] int64 are places in `items`, of item 0 for a position without a target;
    `log_expected` [K] float32, the log of how often each negative was to be expected among them.
    """

    items: Lookup
    positives: Tensor
    negatives: Tensor
    log_expected: Tensor

    @classmethod
    def of(cls, targets: Tensor, negatives: Negatives | None = None) -> "Candidates":
        """Return the candidates of `targets` [M], some NO_ITEM, and of `negatives`, if the loss has any."""
        positives = targets.clamp(min=0)
        if negatives is None:
            negatives = Negatives(positives[:0], torch.empty(0))
        items, places = unique_with_inverse(torch.cat([positives, negatives.ids]))
        return cls(items, places[: len(targets)], places[len(targets) :], negatives.log_expected)

    def to(self, device: torch.device) -> "Candidates":
        """Return it on `device`, asynchronously from pinned memory."""
        return Candidates(self.items.to(device), *(tensor.to(device, non_blocking=True) for tensor in self[1:]))


class Batch(NamedTuple):
    """Sequences to encode and the positions to predict.

    `items`, the distinct items that are shown; `places` [total] int64, which of them stands where in the sequences, one
    after another, and one past the last for the mask token, which is no row of a table; `lengths` [B] int64;
    `positions` [M] int64, indices into `places`, ascending; `targets` [M] int64, the items that were there, or NO_ITEM
    where nothing is to be predicted; `n_sequences`, how many the global batch has, this rank's among them;
    `candidates`, for a loss that does not score the whole catalogue; for a model that knows times `gaps` [total]
    int64, seconds between two items, and `instants` [M] int64, when each prediction is made.
    """

    items: Lookup
    places: Tensor
    lengths: Tensor
    positions: Tensor
    targets: Tensor
    n_sequences: int = 0
    candidates: Candidates | None = None
    gaps: Tensor | None = None
    instants: Tensor | None = None

    @classmethod
    def from_items(
        cls, shown: Tensor, lengths: Tensor, positions: Tensor, targets: Tensor, gaps: Tensor | None = None,
        instants: Tensor | None = None,
    ) -> "Batch":  # fmt: skip
        """Return the sequences of the ids `shown` [total], NO_ITEM for the mask token."""
        is_item = shown != NO_ITEM
        items, places_of_items = unique_with_inverse(shown[is_item])
        places = torch.full_like(shown, len(items.ids))
        places[is_item] = places_of_items
        return cls(items, places, lengths, positions, targets, gaps=gaps, instants=instants)

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on `device`, asynchronously from pinned memory, where the loader puts named tuples."""
        places, lengths, positions, targets = (tensor.to(device, non_blocking=True) for tensor in self[1:5])
        candidates = self.candidates and self.candidates.to(device)
        gaps, instants = (None if of is None else of.to(device, non_blocking=True) for of in self[-2:])
        items = self.items.to(device)
        return Batch(items, places, lengths, positions, targets, self.n_sequences, candidates, gaps, instants)


class Pairs(NamedTuple):
    """M pairs of a user and an item.

    `users`, distinct; `places` [M] int64, which of them stands in each pair; `targets` [M] int64, the items, or NO_ITEM
    where nothing is to be learnt; `ratings` [M] float32, where they are wanted; `n_sequences`, how many pairs the
    global batch has, this rank's among them; `candidates`, for a loss that does not score the whole catalogue.
    """

    users: Lookup
    places: Tensor
    targets: Tensor
    ratings: Tensor | None = None
    n_sequences: int = 0
    candidates: Candidates | None = None

    @classmethod
    def between(cls, users: Tensor, targets: Tensor, ratings: Tensor | None = None) -> "Pairs":
        """Return pairs of `users` [M] and `targets` [M]; with `ratings` [M] the targets are to be rated."""
        candidates = None if ratings is None else Candidates.of(targets)
        return cls(*unique_with_inverse(users), targets, ratings, candidates=candidates)

    def to(self, device: torch.device) -> "Pairs":
        """Return the same pairs on `device`, as `Batch.to`."""
        places, targets = (tensor.to(device, non_blocking=True) for tensor in self[1:3])
        ratings = None if self.ratings is None else self.ratings.to(device, non_blocking=True)
        candidates = self.candidates and self.candidates.to(device)
        return Pairs(self.users.to(device), places, targets, ratings, self.n_sequences, candidates)


AnyBatch: TypeAlias = Batch | Pairs


def seconds_of(rows: Rows) -> Tensor | None:
    """Return the timestamps [total] of the items of ragged rows, int64; None if they are not read."""
    return None if rows.times is None else torch.from_numpy(rows.times)


def tensors_of(rows: Rows) -> tuple[Tensor, Tensor]:
    """Return the items [total] of ragged rows, int64, and their lengths [B]."""
    return long(rows.items), torch.from_numpy(rows.lengths)


def long(values: npt.NDArray[Any]) -> Tensor:
    """Return numbers as int64."""
    return torch.from_numpy(values.astype(np.int64))


ALIGNMENT = 64  # bytes: what torch gives a tensor that is alone


class Place(NamedTuple):
    """Hold the place of a tensor's bytes in a flat batch."""

    first: int
    n_bytes: int
    dtype: torch.dtype


class FlatBatch(NamedTuple):
    """Hold a batch on its way from a loader process: all of its tensors in one.

    `content` [n_bytes] uint8, the one-dimensional tensors, and `batch`, with a `Place` for each. Torch passes each
    tensor to another process by a file descriptor of its own, which takes a connection: with the dozen tensors of a
    batch that costs several times what it costs to make them.
    """

    content: Tensor
    batch: Any

    @classmethod
    def of(cls, batch: AnyBatch) -> "FlatBatch":
        """Return the batch, copied."""
        parts: list[Tensor] = []

        def pack(tensor: Tensor) -> Place:
            content = tensor.clone(memory_format=torch.contiguous_format).view(torch.uint8)
            place = Place(sum(map(len, parts)), len(content), tensor.dtype)
            parts.extend([content, content.new_empty(-len(content) % ALIGNMENT)])
            return place

        places = _mapped(batch, Tensor, pack)
        return cls(torch.cat(parts), places)

    def unpack(self) -> AnyBatch:
        """Return the batch, whose tensors share the flat batch's memory."""

        def tensor_at(place: Place) -> Tensor:
            return self.content[place.first : place.first + place.n_bytes].view(place.dtype)

        batch: AnyBatch = _mapped(self.batch, Place, tensor_at)
        return batch


def _mapped(value: Any, kind: type, function: Callable[[Any], Any]) -> Any:
    """Return `value` with what `function` makes of each `kind` in its place, in whatever named tuples these stand."""
    if isinstance(value, kind):
        return function(value)
    if isinstance(value, tuple):
        return type(value)(*(_mapped(part, kind, function) for part in value))
    return value
