"""What the processes of a pool do in the tests of several folders."""

import itertools
import os
import pkgutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._shard.sharded_tensor import ShardedTensor

from bert4rec.checkpoint.contents import CheckpointManager, CheckpointSettings
from bert4rec.checkpoint.run_folder import METADATA_VERSION, read_metadata
from bert4rec.checkpoint.store import verify
from bert4rec.config.kinds import KINDS
from bert4rec.config.tables import Config
from bert4rec.dataset.reader import Dataset, open_dataset
from bert4rec.evaluation.ranker import Ranker, Ranks, to_metrics
from bert4rec.evaluation.scorers import ModelScorer
from bert4rec.feed.batches import TrainingBatches
from bert4rec.models.tables import saved_name
from bert4rec.runtime import console
from bert4rec.runtime.errors import Interrupted
from bert4rec.runtime.processes import Processes, seed_everything, this_process
from bert4rec.runtime.signals import Interruption
from bert4rec.sharding.optimizer import Optimizers
from bert4rec.sharding.parallelize import unwrap
from bert4rec.training import build
from bert4rec.training.state import State
from bert4rec.training.trainer import Step, Trainer
from tests.models.networks import WithGroups

CPU = torch.device("cpu")
PROTOCOLS = ["full", "popular", "uniform"]

# Tensors by name, in parts: (row, column, values) of each shard that this process holds.
Parts = dict[str, list[tuple[int, int, np.ndarray]]]


class Losses(list[float]):
    """Stands where a run's log stands, and keeps the losses."""

    def add(self, kind: str, step: int, **values: Any) -> None:
        if kind == "train":
            self.append(values["loss"])


def train(config: Config, folder: Path) -> dict[str, Any]:
    """A training by the real trainer: initial and final weights, the loss of every epoch."""
    config, dataset, model, optimizers = set_up(config)
    initial, losses = weights(model), Losses()
    console.SECONDS_BETWEEN_LINES = 1e9  # records at the ends of epochs only, however slow the machine
    nothing: dict[str, Any] = {"measure": lambda _: {}}  # to choose by: the last weights are kept
    trainer = _trainer(config, dataset, model, optimizers, manager(folder), log=losses, **nothing)
    with mock.patch.object(CheckpointManager, "save"):  # which takes as long as the steps
        trainer.fit()
    (metrics,) = to_metrics(rank(model, config, dataset, "test", ["full"]), [10]).values()
    about = {"metrics": metrics, "losses": [*losses], "steps": trainer.state.step}
    return {**about, "initial": initial, "final": weights(model)}


def with_groups(job: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    """A job, with a model of two tables in the place of SASRec."""
    with mock.patch.dict(KINDS, sasrec=replace(KINDS["sasrec"], model=f"{WithGroups.__module__}.WithGroups")):
        return job(*args, **keywords)


class After(Interruption):
    """As if a signal came when so many steps were made."""

    def __init__(self, steps: int, state: State) -> None:
        super().__init__()
        self._steps, self._state = steps, state

    number = property(  # type: ignore[assignment]
        lambda self: signal.SIGTERM * (self._state.step + 1 >= self._steps), lambda self, number: None
    )


def train_part(
    config: Config, folder: Path, *, until: int = 10**9, resume_from: Path | None = None,
    interruption: Interruption | None = None, **keeping: Any,
) -> dict[str, Any]:  # fmt: skip
    """A training by the real trainer, from a checkpoint on or from the start, until a signal or the end.

    The loss of each step, the weights and the optimizers' state at the end, and what was said if a signal ended it.
    """
    config, dataset, model, optimizers = set_up(config)
    console.SECONDS_BETWEEN_LINES = -1.0  # a record at every step
    losses, state, message = Losses(), State(), ""
    if resume_from:
        verify(resume_from)
        state = State(**read_metadata(resume_from)["state"])
    about = {"facts_version": METADATA_VERSION, "world_size": dist.get_world_size()}
    writer = manager(folder, **keeping, about=about, last_step=state.step)
    trainer = _trainer(
        config, dataset, model, optimizers, writer, log=losses, state=state,
        measure=lambda between: to_metrics(rank(model, config, dataset, "validation", ["full"], between), [10]),
        interruption=interruption or After(until, state),
    )  # fmt: skip
    if resume_from:
        is_same_size = read_metadata(resume_from)["world_size"] == dist.get_world_size()
        trainer.checkpoints.restore(resume_from, random=is_same_size)

    def held() -> dict[str, Parts]:
        return {"weights": weights(model), "moments": parts_of(optimizers.tensors())}

    restored = held()
    try:
        trainer.fit()
    except Interrupted as interrupted:
        message = str(interrupted)
    metrics = to_metrics(rank(model, config, dataset, "test", PROTOCOLS), [10])
    ended = {"losses": [*losses], "interrupted": message, "state": state.without_timers(), "metrics": metrics}
    return {**ended, **held(), "restored": restored}


def train_signalled(config: Config, folder: Path, *, where: str, call: int, rank: int, **keeping: Any) -> Any:
    """`train_part` until process `rank` gets a SIGTERM, just as it calls the function `where` for the time `call`."""
    original, calls = pkgutil.resolve_name(where), itertools.count(1)

    def signalled(*args: Any, **kwargs: Any) -> Any:
        if dist.get_rank() == rank and next(calls) == call:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(*args, **kwargs)

    with Interruption() as interruption, mock.patch(where, signalled):
        return train_part(config, folder, interruption=interruption, **keeping)


def _trainer(
    config: Config, dataset: Dataset, model: nn.Module, optimizers: Optimizers, writer: CheckpointManager, *,
    state: State | None = None, **more: Any,
) -> Trainer:  # fmt: skip
    state, step = state or State(), Step(model, optimizers, here(), precision=config.training.precision)
    return build.make_trainer(
        config, step, batches(config, dataset, start=state.position), writer, state=state, **more
    )  # fmt: skip


def batches(config: Config, dataset: Dataset, **start: Any) -> TrainingBatches:
    return build.training_batches(config, here(), dataset, build.feature_reader(config, dataset), **start)


def parts_of(tensors: dict[str, Any]) -> Parts:
    def parts(value: Any) -> Any:
        if not isinstance(value, ShardedTensor):
            return [((0, 0), value)]
        return [((*shard.metadata.shard_offsets, 0)[:2], shard.tensor) for shard in value.local_shards()]

    return {
        name: [(*place, part.detach().numpy().copy()) for place, part in parts(value)]
        for name, value in tensors.items()
    }


def weights(model: nn.Module) -> Parts:
    return parts_of({saved_name(name): value for name, value in unwrap(model).state_dict().items()})


def manager(folder: Path, *, about: Any = None, last_step: int = 0, **settings: Any) -> CheckpointManager:
    """What writes the checkpoints of a test."""
    usual: dict[str, Any] = {
        "every_steps": 0, "every_minutes": 0.0, "keep": 2, "asynchronous": False,
        "seconds_on_signal": 600.0,  # a disk may take seconds for a few bytes
    }  # fmt: skip
    return CheckpointManager(
        folder, CheckpointSettings(**usual | settings), here(), about=about or {}, last_step=last_step
    )  # fmt: skip


def set_up(config: Config) -> tuple[Config, Dataset, nn.Module, Optimizers]:
    """The resolved settings, the dataset, and the freshly initialised model with its optimizers."""
    dataset = open_folder(config)
    config = build.resolved(config, here(), dataset)
    seed_everything(config.training.seed, dist.get_rank())
    plan = build.plan_of_all(config, here(), build.sizes_of(config, dataset))
    return config, dataset, *build.build(config, here(), plan, build.feature_reader(config, dataset))


def rank_with_model(config: Config, split: str) -> Ranks:
    """The ranks that the freshly initialised model gives."""
    _, dataset, model, _ = set_up(config)
    return rank(model, config, dataset, split, PROTOCOLS)


def rank(model: nn.Module, config: Config, dataset: Dataset, split: str, protocols: list[str], *between: Any) -> Ranks:
    return ranker(model, config, *between).rank(dataset.splits[split], protocols)


def ranker(model: nn.Module, config: Config, *between: Any) -> Ranker:
    scorer = ModelScorer(unwrap(model), device=CPU, max_len=config.model.max_len)
    batch_size = config.evaluation.per_device_eval_batch_size
    return Ranker(scorer, batch_size=batch_size, device=CPU, **dict(zip(["between"], between, strict=False)))


def here() -> Processes:
    return this_process("cpu")


def open_folder(config: Config) -> Dataset:
    recipe, with_times = config.preprocessing.recipe, config.model.knows_times
    return open_dataset(config.data.folder, preprocessing=recipe, with_times=with_times)
