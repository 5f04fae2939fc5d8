"""A batch on its way from a loader process: all of its tensors in one.

Torch passes each tensor to another process by a file descriptor of its own, which takes a connection: with the dozen
tensors of a batch that costs several times what it costs to make them.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from bert4rec.feed.batch import AnyBatch

ALIGNMENT = 64  # bytes: what torch gives a tensor that is alone


class Place(NamedTuple):
    """Where a tensor's bytes stand in a parcel."""

    first: int
    n_bytes: int
    dtype: torch.dtype


class Parcel(NamedTuple):
    """`content` [n_bytes] uint8, the one-dimensional tensors of a batch, and `batch`, with a `Place` for each."""

    content: Tensor
    batch: Any

    @classmethod
    def of(cls, batch: AnyBatch) -> "Parcel":
        """The batch, copied."""
        parts: list[Tensor] = []
        places = _places(batch, parts)
        return cls(torch.cat(parts), places)

    def unpack(self) -> AnyBatch:
        """The batch, whose tensors share the parcel's memory."""
        batch: AnyBatch = _filled(self.batch, self.content)
        return batch


def _places(batch: Any, parts: list[Tensor]) -> Any:
    """`batch` with places for tensors, whose bytes, each filled up to the alignment, come to `parts`."""
    if isinstance(batch, Tensor):
        content = batch.clone(memory_format=torch.contiguous_format).view(torch.uint8)
        filling = content.new_empty(-len(content) % ALIGNMENT)
        place = Place(sum(map(len, parts)), len(content), batch.dtype)
        parts += [content, filling]
        return place
    if isinstance(batch, tuple):
        return type(batch)(*(_places(part, parts) for part in batch))
    return batch


def _filled(batch: Any, content: Tensor) -> Any:
    if isinstance(batch, Place):
        return content[batch.first : batch.first + batch.n_bytes].view(batch.dtype)
    if isinstance(batch, tuple):
        return type(batch)(*(_filled(part, content) for part in batch))
    return batch
