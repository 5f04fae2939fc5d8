"""A row-wise shard that is trained as an ordinary parameter, where every row has a gradient at every step.

The softmax over the catalogue is such a case. TorchRec holds the rows and looks them up, but fbgemm's kernels do not
fit: the fused ones, which update in backward, want each row as a lookup (a copy of the shard, several times over, and a
microsecond a row), and the dense one cannot look up sequences on CPU. So lookups are made without autograd, and here
is the way back for their gradient.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bert4rec.runtime.collectives import Partition


class Route(NamedTuple):
    """The way that ids took in a lookup, which the gradients of its vectors go back.

    `rows` of this process's shard, counted from its first: those that it was asked for, process after process.
    `places` [N]: where each of this process's N ids stands among those that it has sent. `sent` and `received`: how
    many to and from each process. All but the rows is left out where one process holds the whole table.
    """

    rows: Tensor
    places: Tensor | None = None
    sent: Sequence[int] = ()
    received: Sequence[int] = ()


class DenseShard:
    """Rows of a table that this process holds, row-wise.

    `weight` [rows, d], of the rows `first` …, is a parameter that shares its memory with TorchRec's. Its gradient comes
    averaged over the processes, as DistributedDataParallel and TorchRec's own do, in messages of type `message`.
    """

    def __init__(
        self, weight: Tensor, *, first: int, partition: Partition, message: torch.dtype = torch.float32
    ) -> None:
        self.weight, self.first = nn.Parameter(weight.detach()), first
        self._partition, self._message = partition, message
        self._gradient: Tensor | None = None  # memory as large as the shard, which is not to be found anew each step

    def connect(self, vectors: Tensor, route: Route) -> Tensor:
        """Return `vectors` [N, d] of a lookup by `route`, whose gradients go to the owners of their rows."""
        vectors = vectors.detach().requires_grad_()
        vectors.register_hook(lambda gradient: self._take_back(gradient, route))
        return vectors

    def _take_back(self, gradient: Tensor, route: Route) -> None:
        """Send each row's gradient to the process that holds it; every process calls this."""
        if route.places is not None:
            sent = torch.empty_like(gradient, dtype=self._message)
            sent.index_copy_(0, route.places, gradient.to(self._message))
            arrived = sent.new_empty(len(route.rows), gradient.shape[1])
            dist.all_to_all_single(arrived, sent, list(route.received), list(route.sent), group=self._partition.group)
            gradient = arrived.to(gradient.dtype)
        if self.weight.grad is None:
            self._gradient = torch.zeros_like(self.weight) if self._gradient is None else self._gradient.zero_()
            self.weight.grad = self._gradient
        self.weight.grad.index_add_(0, route.rows, gradient, alpha=1 / self._partition.n_processes)
