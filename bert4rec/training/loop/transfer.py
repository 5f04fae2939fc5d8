"""How batches come to the device: on CUDA the next one travels while the device still computes the step before."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from bert4rec.feed.batch import AnyBatch


class Transfer:
    """Brings batches to `device`, on CUDA from pinned memory and by a stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def bring(self, batch: AnyBatch) -> AnyBatch:
        """Return the batch on the device; on CUDA only the device waits for it."""
        if self._stream is None:
            return batch.to(self._device)
        with torch.cuda.stream(self._stream):
            there = batch.to(self._device)
        current = torch.cuda.current_stream(self._device)
        current.wait_stream(self._stream)
        for tensor in tensors_in(there):
            tensor.record_stream(current)  # else its memory would be given to the next batch while a step reads it
        return there


def tensors_in(batch: Any) -> Iterator[Tensor]:
    """Yield all tensors of nested named tuples."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, tuple):
        for part in batch:
            yield from tensors_in(part)
