"""A batch on its way from a loader process: all of its tensors in one.

Torch passes each tensor to another process by a file descriptor of its own, which takes a connection: with the dozen
tensors of a batch that costs several times what it costs to make them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bert4rec.feed.batch import AnyBatch

ALIGNMENT = 64  # bytes: what torch gives a tensor that is alone


class Place(NamedTuple):
    """Hold the place of a tensor's bytes in a parcel."""

    first: int
    n_bytes: int
    dtype: torch.dtype


class FlatBatch(NamedTuple):
    """`content` [n_bytes] uint8, the one-dimensional tensors of a batch, and `batch`, with a `Place` for each."""

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
        """Return the batch, whose tensors share the parcel's memory."""

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
