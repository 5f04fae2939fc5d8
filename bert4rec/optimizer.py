"""One optimizer for the tables, one for the dense part, and the schedule of both learning rates."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

from bert4rec.model import ITEM_TABLE
from bert4rec.parallelize import unwrap
from bert4rec.placement import EPSILON


def learning_rate_scale(step: int, *, n_steps: int, schedule: str, warmup_steps: int = 0) -> float:
    """The factor of the learning rates at `step` of `n_steps`, counted from 0: linear warm-up, then decay to 0."""
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    progress = min(1.0, (step - warmup_steps) / max(1, n_steps - warmup_steps))
    if schedule == "linear":
        return 1.0 - progress
    return 0.5 * (1.0 + math.cos(math.pi * progress)) if schedule == "cosine" else 1.0


class Optimizers:
    """The optimizers of a parallelized model.

    Under `dmp` the tables are updated inside backward by fbgemm's fused optimizers, under `ddp` by the ordinary
    optimizer of the same arithmetic.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        optimizer: str,
        learning_rate: float,
        sparse_optimizer: str,
        sparse_learning_rate: float,
        weight_decay: float = 0.0,
        max_grad_norm: float = 0.0,
    ) -> None:
        named = list(unwrap(model).named_parameters())
        self._dense_parameters = [p for name, p in named if not name.startswith(ITEM_TABLE)]
        self._max_grad_norm = max_grad_norm
        self._rates = {"sparse": sparse_learning_rate, "dense": learning_rate}
        self.dense = _dense_optimizer(optimizer, self._dense_parameters, learning_rate, weight_decay)
        self.sparse: Any
        shard = unwrap(model).shard
        if isinstance(model, DistributedModelParallel) and shard is None:
            self.sparse = model.fused_optimizer
        else:
            table = [p for name, p in named if name.startswith(ITEM_TABLE)] if shard is None else [shard.weight]
            self.sparse = _sparse_optimizer(sparse_optimizer, table, sparse_learning_rate)

    def begin_step(self, scale: float) -> None:
        """Set the learning rates and forget the gradients; in this order, since fused updates happen in backward."""
        for optimizer, rate in ((self.sparse, self._rates["sparse"]), (self.dense, self._rates["dense"])):
            for group in optimizer.param_groups:
                group["lr"] = rate * scale
            optimizer.zero_grad()

    def step(self) -> None:
        """Update, after backward. Only the dense gradient is clipped: fused updates never show theirs."""
        if self._max_grad_norm:
            nn.utils.clip_grad_norm_(self._dense_parameters, self._max_grad_norm)
        self.sparse.step()
        self.dense.step()

    def states(self) -> Iterator[Any]:
        """Every tensor of optimizer state that this process holds, sharded ones as ShardedTensor."""
        for optimizer in (self.sparse, self.dense):
            for state in optimizer.state_dict()["state"].values():
                yield from state.values()


def _dense_optimizer(
    name: str, parameters: list[nn.Parameter], learning_rate: float, weight_decay: float
) -> torch.optim.Optimizer:
    """Weight decay is for matrices; biases, norms and single vectors stay free."""
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    if name == "sgd":
        return torch.optim.SGD(groups, lr=learning_rate)
    return torch.optim.AdamW(groups, lr=learning_rate, eps=EPSILON)


def _sparse_optimizer(name: str, table: list[Tensor], learning_rate: float) -> torch.optim.Optimizer:
    if name == "sgd":
        return torch.optim.SGD(table, lr=learning_rate)
    if name == "adagrad":
        return torch.optim.Adagrad(table, lr=learning_rate, eps=EPSILON)
    if name == "rowwise_adagrad":
        return RowWiseAdagrad(table, lr=learning_rate, eps=EPSILON)
    return torch.optim.Adam(table, lr=learning_rate, eps=EPSILON)
