"""Optimizers of the tables and of the dense part, their learning-rate schedule, and the average of the weights."""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

from bert4rec.config.kinds import Updates
from bert4rec.models.names import FEATURE_VALUES
from bert4rec.models.tables import Table, is_of_table, saved_name
from bert4rec.sharding.muon import Muon, is_for_muon
from bert4rec.sharding.parallelize import unwrap
from bert4rec.sharding.plan import EPSILON
from bert4rec.sharding.torchrec_internals import (
    Shard,
    ShardedTensor,
    ShardMetadata,
    copy_of,
    kernels,
    lerp_each,
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
CYCLE_UP, CYCLE_START, CYCLE_END = 0.3, 25, 10_000  # share of rising steps; peak / first rate; first / last rate
FUSED_STATE = {"momentum1": "sum"}  # fbgemm's names → those of torch.optim
FUSED_ADAM_STATE = {"momentum1": "exp_avg", "exp_avg_sq": "exp_avg_sq", "momentum2": "exp_avg_sq"}


def learning_rate_scale(step: float, *, n_steps: float, schedule: str, warmup_steps: int = 0) -> float:
    """Return the factor of the learning rates at `step` of `n_steps`, counted from 0: linear warm-up, then `schedule`.

    "one_cycle" (Smith and Topin 2017) includes a warm-up; it equals torch's OneCycleLR with its defaults.
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
    """Return the factor: a half cosine from 1/25 up to 1 over 0.3 of the steps, then one down to 1/250,000."""
    top, last = CYCLE_UP * n_steps - 1, n_steps - 1
    if step < top:
        return _between(1 / CYCLE_START, 1.0, step / top)
    return _between(1.0, 1 / (CYCLE_START * CYCLE_END), min(1.0, (step - top) / (last - top)))


def _between(first: float, last: float, share: float) -> float:
    """Return the value at `share` of a half cosine from `first` to `last`."""
    return last + (first - last) / 2 * (1 + math.cos(math.pi * share))


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """The settings of the optimizers: of the dense part and, `sparse`, of the tables."""

    optimizer: str
    learning_rate: float
    sparse_optimizer: str
    sparse_learning_rate: float
    weight_decay: float = 0.0
    sparse_weight_decay: float = 0.0
    max_grad_norm: float = 0.0


class Optimizers:
    """The optimizers of a parallelized model.

    If the `updates` of a table are fused, fbgemm updates it inside backward; else an ordinary optimizer with the same
    arithmetic does. Each step reduces all rows of tables that are not fused by the share `sparse_weight_decay` ×
    learning rate (decoupled, as in AdamW: Loshchilov and Hutter 2019).

    If each group of processes has a copy of the tables, every step uses the gradients of all groups.
    """

    def __init__(self, model: nn.Module, settings: OptimizerSettings, updates: Mapping[str, Updates]) -> None:
        named = {name: parameter for name, parameter in unwrap(model).named_parameters() if not is_of_table(name)}
        self._dense_names, self._dense_parameters = list(map(saved_name, named)), list(named.values())
        self._settings = settings
        tables: list[Table] = unwrap(model).tables
        self._ordinary_tables = [table for table in tables if updates[table.config.name] != "fused"]
        fused = [table for table in tables if updates[table.config.name] == "fused"]
        self._fused: Any = model.fused_optimizer if fused else None
        self._kernels = kernels(unwrap(model)) if fused else []
        self._dense, rate = _dense(named, settings), settings.sparse_learning_rate
        weights = [table.weight for table in self._ordinary_tables]
        self.sparse = _ordinary(settings.sparse_optimizer, weights, rate) if weights else None
        rates = ((self.sparse, rate), (self._fused, rate), *((each, settings.learning_rate) for each in self._dense))
        self._rates: list[tuple[Any, float]] = [each for each in rates if each[0] is not None]
        self.n_updates = 0  # since initialization
        for each, _ in self._rates:
            _make_state(each)

    def begin_step(self, scale: float) -> None:
        """Set the learning rates and reset the gradients, before forward: fused updates run in backward."""
        for kernel in self._kernels:  # they also count the lookups of evaluations
            set_step_count(kernel, self.n_updates)
        for optimizer, rate in self._rates:
            for group in optimizer.param_groups:
                group["lr"] = rate * scale
            optimizer.zero_grad()

    def step(self) -> None:
        """Update the weights after backward. Only dense gradients are clipped: fused ones are not visible."""
        if self._settings.max_grad_norm:
            nn.utils.clip_grad_norm_(self._dense_parameters, self._settings.max_grad_norm)
        self.n_updates += 1
        for table in self._ordinary_tables:
            assert table.weight.grad is not None, "every process has looked up rows"
            table.replicas.mean(table.weight.grad)
        if self._settings.sparse_weight_decay and self.sparse is not None:
            kept = 1 - self.sparse.param_groups[0]["lr"] * self._settings.sparse_weight_decay
            for table in self._ordinary_tables:  # before the update, as in AdamW
                table.weight.detach().mul_(kept)
        for optimizer, _ in self._rates:
            optimizer.step()

    def states(self) -> Iterator[Any]:
        """Yield every tensor of optimizer state of this process, sharded ones as ShardedTensor."""
        for optimizer, _ in self._rates:
            for state in optimizer.state_dict()["state"].values():
                yield from state.values()

    def tensors(self) -> dict[str, Any]:
        """Return the state without step counts, by names that depend on neither mode nor sharding.

        The state of a table is [rows, d] or, for row-wise Adagrad, [rows]; it is a ShardedTensor if the table is one.
        Raises `ValueError` if two tensors have the same name: a checkpoint would lose one of them.
        """
        tensors: dict[str, Any] = {}
        for name, value in itertools.chain(self._dense_state(), self._table_state()):
            if name in tensors:
                raise ValueError(f"two tensors of optimizer state are named {name}; give each table another name")
            tensors[name] = value
        return tensors

    def set_steps(self, n: int) -> None:
        """Set the number of past steps to `n`, for the bias correction of Adam."""
        for optimizer, _ in self._rates:
            for state in optimizer.state.values():
                if "step" in state:
                    state["step"].fill_(n)
        self.n_updates = n

    def _dense_state(self) -> Iterator[tuple[str, Any]]:
        state = {parameter: each.state[parameter] for each in self._dense for parameter in each.state}
        for name, parameter in zip(self._dense_names, self._dense_parameters, strict=True):
            for slot, value in state.get(parameter, {}).items():
                if slot != "step":
                    yield f"{name}.{slot}", value

    def _table_state(self) -> Iterator[tuple[str, Any]]:
        for table in self._ordinary_tables:
            assert self.sparse is not None
            for slot, value in self.sparse.state[table.weight].items():
                if slot != "step":
                    yield f"{table.config.name}_table.{slot}", self._like_table(table, value)
        slots = FUSED_ADAM_STATE if self._settings.sparse_optimizer == "adam" else FUSED_STATE
        for state in self._fused.state_dict()["state"].values() if self._fused else ():
            for name, value in state.items():
                table, _, slot = name.rpartition(".")
                yield f"{table}_table.{slots[slot]}", value

    def _like_table(self, table: Table, state: Tensor) -> Any:
        """Return the state of this process's rows as a tensor sharded like the table; unchanged if that is whole."""
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
    """The moving average of `weights`, by name, with the mean age `age` as a share of the past steps; 0 < `age` < 0.5.

    This is polynomial-decay averaging (Shamir and Zhang 2013, "Stochastic Gradient Descent for Non-smooth
    Optimization", section 4): the values at steps 1 … t are averaged with coefficients that grow as a power of the
    step, so that they are `age` × t steps old on average. The horizon grows with the training and needs no tuning. The
    average depends only on the weights and the step; every process averages the parts that it holds.
    """

    def __init__(self, weights: Mapping[str, Any], *, age: float) -> None:
        self._power = 1 / age - 2
        self._mean = {name: copy_of(value) for name, value in weights.items()}
        # This process's parts of the average and of the weights, which never move in memory.
        means, current = (itertools.chain.from_iterable(map(local_parts, v.values())) for v in (self._mean, weights))
        self._means, self._weights = list(means), [weight.detach() for weight in current]

    def tensors(self) -> dict[str, Any]:
        """Return the averaged weights by name, for a checkpoint."""
        return self._mean

    def note(self, step: int) -> None:
        """Update the average with the weights after `step`, counted from 1."""
        share = (self._power + 1) / (step + self._power)
        lerp_each(self._means, self._weights, share)

    def restart(self) -> None:
        """Set the average to the current weights."""
        for mean, weight in zip(self._means, self._weights, strict=True):
            mean.copy_(weight)

    @contextmanager
    def using_average(self) -> Iterator[None]:
        """Use the average as the weights of the model in a block, which must neither train nor save."""
        self.exchange()
        try:
            yield
        finally:
            self.exchange()

    def exchange(self) -> None:
        """Swap the weights of the model and the average."""
        for mean, weight in zip(self._means, self._weights, strict=True):
            kept = mean.clone()
            mean.copy_(weight)
            weight.copy_(kept)


def are_finite(tensors: Iterable[Tensor]) -> bool:
    """Return whether all values are finite, without temporary tensors as large as the inputs."""
    # A NaN makes both bounds NaN. Stacking them synchronizes with a GPU once, not once per tensor.
    bounds = [bound.float() for part in tensors if part.numel() for bound in part.detach().aminmax()]
    return not bounds or bool(torch.stack(bounds).isfinite().all())


def _make_state(optimizer: Any) -> None:
    """Create the state that Adam creates at its first step, so that a checkpoint can be loaded into it."""
    if isinstance(optimizer, torch.optim.Adam):  # AdamW too
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            steps = torch.zeros((), device=parameter.device)  # a fused optimizer counts on its device
            optimizer.state[parameter] = {"step": steps, **moments}


def _ordinary(name: str, parameters: Sequence[Any], learning_rate: float) -> torch.optim.Optimizer:
    adaptive: dict[str, Any] = {} if name == "sgd" else {"eps": EPSILON}
    if name in ("adam", "adamw"):  # updates all weights in one call, without copies of them
        adaptive["fused"] = True
    if name == "adagrad":  # on CUDA, foreach copies all weights twice at once, instead of one weight at a time
        adaptive["foreach"] = False
    return ORDINARY[name](parameters, lr=learning_rate, **adaptive)


def _dense(named: Mapping[str, nn.Parameter], settings: OptimizerSettings) -> list[torch.optim.Optimizer]:
    """Return the optimizers of the dense parameters: with "muon" that of the matrices of blocks, and AdamW."""
    name, rate, found = settings.optimizer, settings.learning_rate, list[torch.optim.Optimizer]()
    if name == "muon":
        matrices = {each: value for each, value in named.items() if is_for_muon(saved_name(each), value)}
        named, name = {each: value for each, value in named.items() if each not in matrices}, "adamw"
        if matrices:
            found.append(Muon(matrices.values(), rate, settings.weight_decay))
    return [*found, _ordinary(name, _dense_groups(named, settings.weight_decay), rate)]


def _dense_groups(named: Mapping[str, nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """Return parameter groups: weight decay for matrices, none for biases, norms, single vectors and embeddings."""
    is_decayed = {name: value.dim() > 1 and saved_name(name) != FEATURE_VALUES for name, value in named.items()}
    return [
        {"params": [value for name, value in named.items() if is_decayed[name]], "weight_decay": weight_decay},
        {"params": [value for name, value in named.items() if not is_decayed[name]], "weight_decay": 0.0},
    ]
