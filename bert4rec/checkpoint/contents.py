"""What a checkpoint holds of a training: each owner of a part gives its tensors, and takes them back."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from bert4rec.checkpoint.store import load
from bert4rec.checkpoint.stored_tensors import MODEL
from bert4rec.models.tables.table import saved_name
from bert4rec.runtime.collectives import gather_objects
from bert4rec.runtime.errors import DataError, in_one_line
from bert4rec.runtime.processes import Processes
from bert4rec.sharding.optimizer import Optimizers
from bert4rec.sharding.parallelize import unwrap
from bert4rec.sharding.sharded_tensors import local_parts
from bert4rec.sharding.torchrec_internals import ShardedTensor


class Owner(ABC):
    """Holds a part of what a training is resumed from."""

    @abstractmethod
    def tensors(self) -> dict[str, Any]:
        """Return the current tensors by their names in a checkpoint: Tensor or ShardedTensor."""

    def load(self, folder: Path) -> None:
        """Load them from a verified checkpoint, in place; every process calls this."""
        load(folder, self.tensors())


class Weights(Owner):
    """The weights of a parallelized model, independent of its sharding.

    `name`: `MODEL`, or `LATEST` if the model of the checkpoint is a mean of the weights.
    """

    def __init__(self, model: nn.Module, name: str = MODEL) -> None:
        self._model, self._name = unwrap(model), name

    def tensors(self) -> dict[str, Any]:
        """Return them by parameter."""
        return _named(self._name, self._model.state_dict())

    def load(self, folder: Path, name: str = MODEL) -> None:
        """Load the model of a checkpoint, or with `LATEST` its weights after the last step."""
        state = self._model.state_dict()
        load(folder, _named(name, state))
        self._model.load_state_dict(state)

    def load_latest(self, folder: Path) -> None:
        """Load the weights after the last step of a checkpoint."""
        self.load(folder, self._name)

    def load_package(self, file: Path) -> None:
        """Load the safetensors of a model package. Raises `DataError`, on every process, if they do not fit."""
        state, problem = self._model.state_dict(), ""
        try:
            with safe_open(file, "pt") as stored:
                for name, value in state.items():
                    rows = stored.get_slice(saved_name(name))
                    for part, place in _places(value):
                        if part.numel():
                            part.copy_(rows[place])
        except (OSError, SafetensorError, RuntimeError) as error:
            problem = in_one_line(error)
        if found := next(filter(None, gather_objects(problem)), ""):
            raise DataError(f"{file}: does not hold the weights of this model: {found}")
        self._model.load_state_dict(state)

    def local_parts(self) -> Iterator[Tensor]:
        """Yield the parts that this process holds."""
        return (part for value in self._model.state_dict().values() for part in local_parts(value))


class Moments(Owner):
    """The state of the optimizers, without the number of their steps."""

    def __init__(self, optimizers: Optimizers) -> None:
        self._optimizers = optimizers

    def tensors(self) -> dict[str, Any]:
        """Return it by parameter and slot."""
        return _named("optimizer.", self._optimizers.tensors())


class RandomState(Owner):
    """The random states from which dropout draws on this process; they fit as many processes on the same devices."""

    def __init__(self, world: Processes) -> None:
        self._world = world

    def tensors(self) -> dict[str, Any]:
        """Return them by device and rank."""
        states = {f"random.cpu.{self._world.rank}": torch.get_rng_state()}
        if self._world.device.type == "cuda":
            states[f"random.cuda.{self._world.rank}"] = torch.cuda.get_rng_state(self._world.device)
        return states

    def load(self, folder: Path) -> None:
        """Load them from a checkpoint."""
        states = self.tensors()
        load(folder, states)
        torch.set_rng_state(states[f"random.cpu.{self._world.rank}"])
        if self._world.device.type == "cuda":
            torch.cuda.set_rng_state(states[f"random.cuda.{self._world.rank}"], self._world.device)


def _places(value: Any) -> Iterator[tuple[Tensor, tuple[slice, ...]]]:
    """Yield the parts of a tensor that this process holds, and their places in the whole."""
    if not isinstance(value, ShardedTensor):
        yield value, tuple(slice(0, size) for size in value.shape)
        return
    for shard in value.local_shards():
        bounds = zip(shard.metadata.shard_offsets, shard.metadata.shard_sizes, strict=True)
        yield shard.tensor, tuple(slice(first, first + size) for first, size in bounds)


def _named(prefix: str, tensors: dict[str, Any]) -> dict[str, Any]:
    return {prefix + saved_name(name): value for name, value in tensors.items()}
