"""What a checkpoint holds of a training: each owner of a part gives its tensors, and takes them back."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from bert4rec.checkpoint.store import load
from bert4rec.checkpoint.stored_tensors import LATEST, MODEL, StoredTensors
from bert4rec.dataset.schema import MASK_ID
from bert4rec.models.names import MASK, TABLE
from bert4rec.models.tables.table import saved_name
from bert4rec.runtime.collectives import gather_objects
from bert4rec.runtime.errors import DataError, in_one_line
from bert4rec.runtime.processes import Processes
from bert4rec.sharding.optimizer import Optimizers
from bert4rec.sharding.parallelize import unwrap
from bert4rec.sharding.sharded_tensors import local_parts
from bert4rec.sharding.torchrec_internals import ShardedTensor


class Owner(ABC):
    """Who has a part of what a training is resumed from."""

    @abstractmethod
    def tensors(self) -> dict[str, Any]:
        """All of it as it is now, by the names that it has in a checkpoint: Tensor or ShardedTensor."""

    def load(self, folder: Path) -> None:
        """Take it back from a checkpoint that was verified, here in place; every process calls this."""
        load(folder, self.tensors())


class Weights(Owner):
    """Of a parallelized model; they fit it however either is sharded.

    `name`: `MODEL`, or `LATEST` where the model that is saved is a mean of them.
    """

    def __init__(self, model: nn.Module, name: str = MODEL) -> None:
        self._model, self._name = unwrap(model), name

    def tensors(self) -> dict[str, Any]:
        """By parameter."""
        return _named(self._name, self._model.state_dict())

    def load_latest(self, folder: Path) -> bool:
        """Of a checkpoint, those after its last step; whether its model is a mean of these and others."""
        is_mean = any(name.startswith(LATEST) for name in StoredTensors(folder))
        self._load(folder, LATEST if is_mean else MODEL)
        return is_mean

    def load(self, folder: Path) -> None:
        """The model of a checkpoint."""
        self._load(folder, MODEL)

    def _load(self, folder: Path, name: str) -> None:
        """In a checkpoint of an earlier version of this program the mask token's vector is a row of a table."""
        state = self._model.state_dict()
        tensors = _named(name, state)
        if MASK in state and MODEL + MASK not in (stored := StoredTensors(folder)):
            mask = tensors.pop(MODEL + MASK)
            mask.copy_(stored.row(MODEL + TABLE, MASK_ID)[: len(mask)])
        load(folder, tensors)
        self._model.load_state_dict(state)

    def load_package(self, file: Path) -> None:
        """Of a model package, from its safetensors. Raises `DataError`, on every process, where they do not fit."""
        state, problem = self._model.state_dict(), ""
        try:
            with safe_open(file, "pt") as stored:
                for name, value in state.items():
                    if name == MASK and name not in stored.keys():  # noqa: SIM118  # it is no dict
                        value.copy_(stored.get_slice(TABLE)[MASK_ID : MASK_ID + 1, : len(value)][0])
                        continue
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
        """What this process holds of them."""
        return (part for value in self._model.state_dict().values() for part in local_parts(value))


class Moments(Owner):
    """The state of the optimizers, but for the number of their steps."""

    def __init__(self, optimizers: Optimizers) -> None:
        self._optimizers = optimizers

    def tensors(self) -> dict[str, Any]:
        """By parameter and slot."""
        return _named("optimizer.", self._optimizers.tensors())


class RandomState(Owner):
    """Of the generators from which dropout draws on this process; it fits as many processes, on the same devices."""

    def __init__(self, world: Processes) -> None:
        self._world = world

    def tensors(self) -> dict[str, Any]:
        """By device and rank."""
        states = {f"random.cpu.{self._world.rank}": torch.get_rng_state()}
        if self._world.device.type == "cuda":
            states[f"random.cuda.{self._world.rank}"] = torch.cuda.get_rng_state(self._world.device)
        return states

    def load(self, folder: Path) -> None:
        """Of a checkpoint."""
        states = self.tensors()
        load(folder, states)
        torch.set_rng_state(states[f"random.cpu.{self._world.rank}"])
        if self._world.device.type == "cuda":
            torch.cuda.set_rng_state(states[f"random.cuda.{self._world.rank}"], self._world.device)


def _places(value: Any) -> Iterator[tuple[Tensor, tuple[slice, ...]]]:
    """What this process holds of a tensor, and where it stands in the whole."""
    if not isinstance(value, ShardedTensor):
        yield value, tuple(slice(0, size) for size in value.shape)
        return
    for shard in value.local_shards():
        bounds = zip(shard.metadata.shard_offsets, shard.metadata.shard_sizes, strict=True)
        yield shard.tensor, tuple(slice(first, first + size) for first, size in bounds)


def _named(prefix: str, tensors: dict[str, Any]) -> dict[str, Any]:
    return {prefix + saved_name(name): value for name, value in tensors.items()}
