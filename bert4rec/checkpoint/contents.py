"""What a checkpoint holds of a training: weights, the optimizers' state, random states; and the way back of each."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bert4rec.checkpoint.store import Tensors, load
from bert4rec.models.item_table import saved_name
from bert4rec.runtime.processes import Processes
from bert4rec.sharding.optimizer import Optimizers
from bert4rec.sharding.parallelize import unwrap
from bert4rec.sharding.sharded_tensors import local_parts

WEIGHTS, MOMENTS = "model.", "optimizer."  # how the names of tensors begin


def tensors_of(model: nn.Module, optimizers: Optimizers, world: Processes) -> dict[str, Any]:
    """All of it, as it is now."""
    return {
        **{WEIGHTS + saved_name(name): value for name, value in unwrap(model).state_dict().items()},
        **{MOMENTS + name: value for name, value in optimizers.tensors().items()},
        **_random_state(world),
    }


def weights_in(tensors: Tensors) -> Iterator[Tensor]:
    """The parts of weights among `tensors` that this process holds."""
    return (part for name, value in tensors.items() if name.startswith(WEIGHTS) for part in local_parts(value))


def load_weights(model: nn.Module, folder: Path) -> None:
    """Read the weights of a checkpoint that was verified into a parallelized `model`, however either is sharded."""
    state = unwrap(model).state_dict()
    load(folder, {WEIGHTS + saved_name(name): value for name, value in state.items()})
    unwrap(model).load_state_dict(state)


def load_optimizers(optimizers: Optimizers, folder: Path, *, n_updates: int) -> None:
    """Read the state that the optimizers had after `n_updates`."""
    load(folder, {MOMENTS + name: value for name, value in optimizers.tensors().items()})
    optimizers.set_steps(n_updates)


def load_random_state(world: Processes, folder: Path) -> None:
    """Go on with the random numbers of this process; the checkpoint must be one of as many processes and as devices."""
    states = _random_state(world)
    load(folder, states)
    torch.set_rng_state(states[f"random.cpu.{world.rank}"])
    if world.device.type == "cuda":
        torch.cuda.set_rng_state(states[f"random.cuda.{world.rank}"], world.device)


def _random_state(world: Processes) -> dict[str, Tensor]:
    """Of the generators from which dropout draws, on this process."""
    states = {f"random.cpu.{world.rank}": torch.get_rng_state()}
    if world.device.type == "cuda":
        states[f"random.cuda.{world.rank}"] = torch.cuda.get_rng_state(world.device)
    return states
