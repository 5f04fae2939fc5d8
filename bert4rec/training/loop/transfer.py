"""How batches come to the device: on CUDA the next one travels while a step runs."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bert4rec.feed.batch import AnyBatch


class Sent(NamedTuple):
    """A batch on the device, or on its way there, until `arrival`; None where it is there already."""

    batch: AnyBatch
    arrival: torch.cuda.Event | None = None


class Transfer:
    """Sends batches to `device`, on CUDA from pinned memory and beside what that computes, by a stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def send(self, batch: AnyBatch) -> Sent:
        """Begin; the device is not waited for."""
        if self._stream is None:
            return Sent(batch.to(self._device))
        with torch.cuda.stream(self._stream):
            return Sent(batch.to(self._device), self._stream.record_event())

    def receive(self, sent: Sent) -> AnyBatch:
        """The batch for whatever the device is given to do from now on; only the device waits for it."""
        if sent.arrival is not None:
            stream = torch.cuda.current_stream(self._device)
            stream.wait_event(sent.arrival)
            for tensor in tensors_in(sent.batch):
                tensor.record_stream(stream)  # else its memory would be given to the next batch while a step reads it
        return sent.batch


def tensors_in(batch: Any) -> Iterator[Tensor]:
    """All of them, in whatever named tuples they stand."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, tuple):
        for part in batch:
            yield from tensors_in(part)
