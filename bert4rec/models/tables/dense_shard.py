"""A row-wise shard that is trained as an ordinary parameter, where every row has a gradient at every step.

The softmax over the catalogue is such a case. TorchRec holds the rows and looks them up, but fbgemm's kernels do not
fit: the fused ones, which update in backward, want each row as a lookup (a copy of the shard, several times over, and a
microsecond a row), and the dense one cannot look up sequences on CPU. So lookups are made without autograd, and here
is the way back for their gradient.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bert4rec.runtime.collectives import Partition


class DenseShard:
    """Rows `first` … of a table, of which every process but the last holds `rows_per_process`.

    `weight` [rows, d] is a parameter that shares its memory with TorchRec's. Its gradient comes averaged over the
    processes, as DistributedDataParallel and TorchRec's own do, in messages of type `message`.
    """

    def __init__(
        self, weight: Tensor, *, first: int, rows_per_process: int, partition: Partition,
        message: torch.dtype = torch.float32,
    ) -> None:  # fmt: skip
        self.weight = nn.Parameter(weight.detach())
        self.first, self._rows_per_process, self._partition = first, rows_per_process, partition
        self._message = message
        self._gradient: Tensor | None = None  # memory as large as the shard, which is not to be found anew each step

    def connect(self, vectors: Tensor, ids: Tensor) -> Tensor:
        """`vectors` [N, d], looked up for rows `ids` [N] of the table, as a source of gradients for their owners."""
        vectors = vectors.detach().requires_grad_()
        vectors.register_hook(lambda gradient: self._take_back(gradient, ids))
        return vectors

    def _take_back(self, gradient: Tensor, ids: Tensor) -> None:
        """Send each row's gradient to the process that holds it; every process calls this."""
        if self._partition.n_processes > 1:
            order = ids.argsort(stable=True)
            sent = torch.bincount(ids // self._rows_per_process, minlength=self._partition.n_processes)
            received = torch.empty_like(sent)
            dist.all_to_all_single(received, sent, group=self._partition.group)
            arrived = self._exchange(gradient[order].to(self._message), sent.tolist(), received.tolist())
            gradient = arrived.to(gradient.dtype)
            ids = self._exchange(ids[order], sent.tolist(), received.tolist())
        if self.weight.grad is None:
            self._gradient = torch.zeros_like(self.weight) if self._gradient is None else self._gradient.zero_()
            self.weight.grad = self._gradient
        self.weight.grad.index_add_(0, ids - self.first, gradient, alpha=1 / self._partition.n_processes)

    def _exchange(self, values: Tensor, sent: list[int], received: list[int]) -> Tensor:
        arrived = values.new_empty(sum(received), *values.shape[1:])
        dist.all_to_all_single(arrived, values.contiguous(), received, sent, group=self._partition.group)
        return arrived
