"""Optimizers of the tables and of the dense part, the schedule of their learning rates, the mean of the weights."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

from bert4rec.config.kinds import Updates
from bert4rec.models.tables import DeferredUpdate, Table, is_of_table, saved_name
from bert4rec.sharding.parallelize import unwrap
from bert4rec.sharding.plan import EPSILON
from bert4rec.sharding.torchrec_internals import (
    Shard,
    ShardedTensor,
    ShardMetadata,
    copy_of,
    kernels,
    local_parts,
    set_step_count,
    sharded_like,
)

ORDINARY: dict[str, Any] = {
    "sgd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "rowwise_adagrad": RowWiseAdagrad,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}
CYCLE_UP, CYCLE_START, CYCLE_END = 0.3, 25, 10_000  # share of the steps that rise; how far below the top both ends are
FUSED_STATE = {"momentum1": "sum"}  # fbgemm's names → those of torch.optim
FUSED_ADAM_STATE = {"momentum1": "exp_avg", "exp_avg_sq": "exp_avg_sq", "momentum2": "exp_avg_sq"}


def learning_rate_scale(step: float, *, n_steps: float, schedule: str, warmup_steps: int = 0) -> float:
    """Return the factor of the learning rates at `step` of `n_steps`, counted from 0: linear warm-up, then decay to 0.

    Or "one_cycle" (Smith and Topin 2017), which has both: the arithmetic of torch's OneCycleLR with its defaults.
    """
    if schedule == "one_cycle":
        return _one_cycle(step, n_steps)
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    progress = min(1.0, (step - warmup_steps) / max(1, n_steps - warmup_steps))
    if schedule == "linear":
        return 1.0 - progress
    return 0.5 * (1.0 + math.cos(math.pi * progress)) if schedule == "cosine" else 1.0


def _one_cycle(step: float, n_steps: float) -> float:
    """Return the factor: half cosines from 1/25 up to 1 for 0.3 of the steps, then down to 1/250,000."""
    top, last = CYCLE_UP * n_steps - 1, n_steps - 1
    if step < top:
        return _between(1 / CYCLE_START, 1.0, step / top)
    return _between(1.0, 1 / (CYCLE_START * CYCLE_END), min(1.0, (step - top) / (last - top)))


def _between(first: float, last: float, share: float) -> float:
    """Return `share` of the way along a half of a cosine."""
    return last + (first - last) / 2 * (1 + math.cos(math.pi * share))


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """Hold the settings of the optimizers: of the dense part and, `sparse`, of the tables."""

    optimizer: str
    learning_rate: float
    sparse_optimizer: str
    sparse_learning_rate: float
    weight_decay: float = 0.0
    sparse_weight_decay: float = 0.0
    max_grad_norm: float = 0.0
    can_skip: bool = False


class Optimizers:
    """The optimizers of a parallelized model.

    Where the `updates` of a table are fused, fbgemm makes them inside backward; else an ordinary optimizer of the
    same arithmetic does. With `can_skip` nothing is updated before `step`, so that a step can be left out. Each step
    takes the share `sparse_weight_decay` × learning rate off all rows of tables that are not fused (decoupled, as in
    AdamW: Loshchilov and Hutter 2019).

    Where each group of processes has a copy of the tables, every step is made of the gradients of all groups.
    """

    def __init__(self, model: nn.Module, settings: OptimizerSettings, updates: Mapping[str, Updates]) -> None:
        named = {name: parameter for name, parameter in unwrap(model).named_parameters() if not is_of_table(name)}
        self._dense_names, self._dense_parameters = list(map(saved_name, named)), list(named.values())
        self._settings, self.can_skip = settings, settings.can_skip
        tables: list[Table] = unwrap(model).tables
        self._ordinary_tables = [table for table in tables if updates[table.config.name] != "fused"]
        fused = [table for table in tables if updates[table.config.name] == "fused"]
        self._fused: Any = model.fused_optimizer if fused else None
        self._kernels = kernels(unwrap(model)) if fused else []
        self._deferred = DeferredUpdate() if self.can_skip and fused else None
        # Added up over all processes in backward, where every process has the whole model, as a number that is not
        # finite stays one in any sum.
        self.gradients_are_of_all = all(updates[table.config.name] == "replicated" for table in tables)
        for table in fused:
            table.deferred = self._deferred
        groups, rate = _dense_groups(self._dense_parameters, settings.weight_decay), settings.sparse_learning_rate
        self.dense = _ordinary(settings.optimizer, groups, settings.learning_rate)
        weights = [table.weight for table in self._ordinary_tables]
        self.sparse = _ordinary(settings.sparse_optimizer, weights, rate) if weights else None
        of_tables = [optimizer for optimizer in (self.sparse, self._fused) if optimizer is not None]
        self._rates: list[tuple[Any, float]] = [(optimizer, rate) for optimizer in of_tables]
        self._rates.append((self.dense, settings.learning_rate))
        self._ordinary_parameters, self._table_weights = self._dense_parameters + weights, weights
        self.n_updates = 0  # since they were fresh
        for each, _ in self._rates:
            _make_state(each)

    def begin_step(self, scale: float) -> None:
        """Set the learning rates and forget the gradients; in this order, since fused updates happen in backward.

        To be called before forward.
        """
        for kernel in self._kernels:  # they count every lookup, also those of evaluations and of steps left out
            set_step_count(kernel, self.n_updates)
        for optimizer, rate in self._rates:
            for group in optimizer.param_groups:
                group["lr"] = rate * scale
            optimizer.zero_grad()
        if self._deferred:
            self._deferred.discard()

    def gradients(self) -> list[Tensor]:
        """Return all gradients of this step that this process has, after backward."""
        found = [p.grad for p in self._ordinary_parameters if p.grad is not None]
        return found + (self._deferred.gradients() if self._deferred else [])

    def step(self) -> None:
        """Update the weights after backward. Only the dense gradient is clipped: fused updates never show theirs."""
        if self._settings.max_grad_norm:
            nn.utils.clip_grad_norm_(self._dense_parameters, self._settings.max_grad_norm)
        if self._deferred:
            self._deferred.apply()
        self.n_updates += 1
        for table in self._ordinary_tables:
            assert table.weight.grad is not None, "every process has looked rows up"
            table.replicas.mean(table.weight.grad)
        if self._settings.sparse_weight_decay and self.sparse is not None:
            self._decay(self.sparse.param_groups[0]["lr"])
        for optimizer, _ in self._rates:
            optimizer.step()

    @torch.no_grad()
    def _decay(self, learning_rate: float) -> None:
        """Decay tables before the update, as AdamW does."""
        for weight in self._table_weights:
            weight.mul_(1 - learning_rate * self._settings.sparse_weight_decay)

    def states(self) -> Iterator[Any]:
        """Yield every tensor of optimizer state that this process holds, sharded ones as ShardedTensor."""
        for optimizer, _ in self._rates:
            for state in optimizer.state_dict()["state"].values():
                yield from state.values()

    def tensors(self) -> dict[str, Any]:
        """Return the state by parameter without step counts, by names that depend on neither mode nor sharding.

        Of a table [rows, d] or, for row-wise Adagrad, [rows]: a ShardedTensor where the table is one.
        """
        found = {
            f"{name}.{slot}": value
            for name, parameter in zip(self._dense_names, self._dense_parameters, strict=True)
            for slot, value in self.dense.state[parameter].items()
            if slot != "step"
        }
        return found | dict(self._table_state())

    def set_steps(self, n: int) -> None:
        """Set the number of steps so far to `n`: Adam's correction of its bias needs it."""
        for optimizer, _ in self._rates:
            for state in optimizer.state.values():
                if "step" in state:
                    state["step"].fill_(n)
        self.n_updates = n

    def _table_state(self) -> Iterator[tuple[str, Any]]:
        for table in self._ordinary_tables:
            assert self.sparse is not None
            for slot, value in self.sparse.state[table.weight].items():
                if slot != "step":
                    yield f"{table.config.name}_table.{slot}", self._like_table(table, value)
        slots = FUSED_ADAM_STATE if self._settings.sparse_optimizer == "adam" else FUSED_STATE
        for path, state in self._fused.state_dict()["state"].items() if self._fused else ():
            for name, value in state.items():
                yield f"{path.partition('.')[0]}.{slots[name.rpartition('.')[2]]}", value

    def _like_table(self, table: Table, state: Tensor) -> Any:
        """Return the state of this process's rows as a tensor sharded like the table; itself if that is whole."""
        state = state.view(-1) if self._settings.sparse_optimizer == "rowwise_adagrad" else state
        (rows,) = table.collection.state_dict().values()
        if not isinstance(rows, ShardedTensor):
            return state
        n_dims = state.dim()

        def cut(shard: ShardMetadata) -> ShardMetadata:
            return ShardMetadata(shard.shard_offsets[:n_dims], shard.shard_sizes[:n_dims], shard.placement)

        local = [Shard(state, cut(shard.metadata)) for shard in rows.local_shards()]
        return sharded_like(rows, local, [cut(shard) for shard in rows.metadata().shards_metadata])


class WeightAverage:
    """The mean of `weights`, by name, of mean age `age` as a share of the steps so far; 0 < `age` < 0.5.

    The mean of weights at steps 1 … t with weights that grow as a power of the step, such that they are `age` × t
    steps old on average (Shamir and Zhang 2013, "Stochastic Gradient Descent for Non-smooth Optimization", section 4:
    polynomial-decay averaging). So it has nothing to be tuned: at any time what lies further back has been forgotten.
    It depends on the weights and the number of the step alone, and every process holds that of what it holds.
    """

    def __init__(self, weights: Mapping[str, Any], *, age: float) -> None:
        self._power = 1 / age - 2
        self._mean = {name: copy_of(value) for name, value in weights.items()}
        # What this process holds: of the mean, and of the weights themselves, which never move in memory.
        means, current = (chain.from_iterable(map(local_parts, of.values())) for of in (self._mean, weights))
        self._parts = [(mean, weight.detach()) for mean, weight in zip(means, current, strict=True)]

    def tensors(self) -> dict[str, Any]:
        """Return the mean as the model of a checkpoint."""
        return self._mean

    def note(self, step: int) -> None:
        """Take the weights after `step`, counted from 1, into the mean."""
        share = (self._power + 1) / (step + self._power)
        for mean, weight in self._parts:
            mean.lerp_(weight, share)

    def restart(self) -> None:
        """Forget all weights but the current ones."""
        for mean, weight in self._parts:
            mean.copy_(weight)

    @contextmanager
    def using_average(self) -> Iterator[None]:
        """Give the model the mean as its weights for a while; nothing may be trained or saved meanwhile."""
        self.exchange()
        try:
            yield
        finally:
            self.exchange()

    def exchange(self) -> None:
        """Exchange the weights of the model and the mean."""
        for mean, weight in self._parts:
            kept = mean.clone()
            mean.copy_(weight)
            weight.copy_(kept)


def are_finite(tensors: Iterable[Tensor]) -> bool:
    """Return whether all values are numbers; nothing as large as one of the tensors is made on the way."""
    # Neither bound is a number where one of the values is none. A GPU is waited for once, not for each of them.
    bounds = [bound.float() for part in tensors if part.numel() for bound in part.detach().aminmax()]
    return not bounds or bool(torch.stack(bounds).isfinite().all())


def _make_state(optimizer: Any) -> None:
    """Make the state that Adam makes at its first step, for a checkpoint to be read into."""
    if isinstance(optimizer, torch.optim.Adam):  # AdamW too
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            steps = torch.zeros((), device=parameter.device)  # where a fused optimizer counts them
            optimizer.state[parameter] = {"step": steps, **moments}


def _ordinary(name: str, parameters: Sequence[Any], learning_rate: float) -> torch.optim.Optimizer:
    adaptive: dict[str, Any] = {} if name == "sgd" else {"eps": EPSILON}
    if name in ("adam", "adamw"):  # all weights in one call, and without copies of their size
        adaptive["fused"] = True
    if name == "adagrad":  # on CUDA torch would make two copies of all weights at once instead of one of each in turn
        adaptive["foreach"] = False
    return ORDINARY[name](parameters, lr=learning_rate, **adaptive)


def _dense_groups(parameters: list[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """Return parameter groups: weight decay for matrices, none for biases, norms and single vectors."""
    return [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
