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
from bert4rec.sharding.torchrec_internals import placed_parts
from bert4rec.training.build import (
    build,
    feature_reader,
    make_trainer,
    plan_of_all,
    resolved,
    sampler,
    sizes_of,
    training_batches,
    training_examples,
    training_windows,
)
from bert4rec.training.state import State
from bert4rec.training.trainer import Step, Trainer
from tests.models.networks import WithGroups

CPU = torch.device("cpu")
PROTOCOLS = ["full", "popular", "uniform"]

# A table in parts: (row, column, values) of each shard that this process holds.
Parts = list[tuple[int, int, np.ndarray]]


class Records:
    """Stands where a run's log stands, and keeps the records."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def add(self, kind: str, step: int, **values: Any) -> None:
        if kind == "train":
            self.losses.append(values["loss"])


def train(config: Config, folder: Path) -> dict[str, Any]:
    """A training by the real trainer: initial and final weights, the loss of every epoch."""
    config, dataset, model, optimizers = set_up(config)
    initial = weights(model)
    log = Records()
    console.SECONDS_BETWEEN_LINES = 1e9  # records at the ends of epochs only, however slow the machine
    trainer = _trainer(
        config,
        dataset,
        model,
        optimizers,
        manager(folder),
        measure=lambda _: {},  # nothing to choose by: the last weights are kept
        log=log,
    )
    with mock.patch.object(CheckpointManager, "save"):  # which takes as long as the steps
        trainer.fit()
    (metrics,) = to_metrics(rank(model, config, dataset, "test", ["full"]), [10]).values()
    return {
        "metrics": metrics,
        "initial": initial,
        "final": weights(model),
        "losses": log.losses,
        "steps": trainer.state.step,
    }


def with_groups(job: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    """A job, with a model of two tables in the place of SASRec."""
    with mock.patch.dict(KINDS, sasrec=replace(KINDS["sasrec"], model=f"{WithGroups.__module__}.WithGroups")):
        return job(*args, **keywords)


class After(Interruption):
    """As if a signal came when so many steps were made."""

    def __init__(self, steps: int, trainers: list[Trainer]) -> None:
        super().__init__()
        self._steps, self._trainers = steps, trainers

    @property
    def number(self) -> int:  # type: ignore[override]
        return signal.SIGTERM if self._trainers and self._trainers[0].state.step + 1 >= self._steps else 0

    @number.setter
    def number(self, number: int) -> None:
        pass


def train_part(
    config: Config,
    folder: Path,
    *,
    until: int = 10**9,
    resume_from: Path | None = None,
    interruption: Interruption | None = None,
    **keeping: Any,
) -> dict[str, Any]:
    """A training by the real trainer, from a checkpoint on or from the start, until a signal or the end.

    The loss of each step, the weights and the optimizers' state at the end, and what was said if a signal ended it.
    """
    config, dataset, model, optimizers = set_up(config)
    log, trainers, facts = Records(), [], None
    console.SECONDS_BETWEEN_LINES = -1.0  # a record at every step
    if resume_from:
        verify(resume_from)
        facts = read_metadata(resume_from)
    state = State(**facts["state"]) if facts else State()
    about = {"facts_version": METADATA_VERSION, "world_size": dist.get_world_size()}
    trainer = _trainer(
        config,
        dataset,
        model,
        optimizers,
        manager(folder, **keeping, about=about, last_step=state.step),
        measure=lambda between: to_metrics(rank(model, config, dataset, "validation", ["full"], between), [10]),
        interruption=interruption or After(until, trainers),
        log=log,
        state=state,
    )
    trainers.append(trainer)
    if resume_from and facts:
        is_same_size = facts["world_size"] == dist.get_world_size()
        trainer.checkpoints.restore(resume_from, random=is_same_size)
    restored = {"weights": weights(model), "moments": moments_of(optimizers)}
    message = ""
    try:
        trainer.fit()
    except Interrupted as interrupted:
        message = str(interrupted)
    return {
        "losses": log.losses,
        "restored": restored,
        "weights": weights(model),
        "moments": moments_of(optimizers),
        "interrupted": message,
        "state": trainer.state.without_timers(),
        "metrics": to_metrics(rank(model, config, dataset, "test", PROTOCOLS), [10]),
    }


def train_signalled(
    config: Config, folder: Path, *, where: str, call: int, rank: int, **keeping: Any
) -> dict[str, Any]:
    """`train_part` until process `rank` gets a SIGTERM, just as it calls the function `where` for the time `call`."""
    original, calls = pkgutil.resolve_name(where), itertools.count(1)

    def signalled(*args: Any, **kwargs: Any) -> Any:
        if dist.get_rank() == rank and next(calls) == call:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(*args, **kwargs)

    with Interruption() as interruption, mock.patch(where, signalled):
        return train_part(config, folder, interruption=interruption, **keeping)


def _trainer(
    config: Config,
    dataset: Dataset,
    model: torch.nn.Module,
    optimizers: Optimizers,
    writer: CheckpointManager,
    **more: Any,
) -> Trainer:
    """The real one, of resolved settings."""
    state = more.pop("state", None) or State()
    step = Step(model, optimizers, here(), precision=config.training.precision)
    return make_trainer(config, step, batches(config, dataset, start=state.position), writer, state=state, **more)


def batches(config: Config, dataset: Dataset, **start: Any) -> TrainingBatches:
    """Those of a run with resolved settings."""
    examples = training_examples(config, training_windows(config, dataset), n_items=dataset.n_items)
    draw, features = sampler(config, dataset, here()), feature_reader(config, dataset)
    return training_batches(config, examples, here(), sampler=draw, features=features, **start)


def moments_of(optimizers: Optimizers) -> dict[str, Parts]:
    return {name: parts_of(value) for name, value in optimizers.tensors().items()}


def parts_of(value: Any) -> Parts:
    if not isinstance(value, ShardedTensor):
        return [(0, 0, value.detach().numpy().copy())]
    return [
        ((*shard.metadata.shard_offsets, 0)[0], (*shard.metadata.shard_offsets, 0)[1], shard.tensor.numpy().copy())
        for shard in value.local_shards()
    ]


def manager(folder: Path, **settings: Any) -> CheckpointManager:
    """What writes the checkpoints of a test."""
    usual: dict[str, Any] = {
        "every_steps": 0, "every_minutes": 0.0, "keep": 2, "asynchronous": False,
        "seconds_on_signal": 600.0,  # a disk may take seconds for a few bytes
    }  # fmt: skip
    others = {name: settings.pop(name) for name in ("about", "last_step") if name in settings}
    return CheckpointManager(folder, CheckpointSettings(**usual | settings), here(), **{"about": {}} | others)


def set_up(config: Config) -> tuple[Config, Dataset, torch.nn.Module, Optimizers]:
    """The resolved settings, the dataset, and the freshly initialised model with its optimizers."""
    dataset = open_folder(config)
    config = resolved(config, here(), dataset)
    seed_everything(config.training.seed, dist.get_rank())
    plan = plan_of_all(config, here(), sizes_of(config, dataset))
    return config, dataset, *build(config, here(), plan, feature_reader(config, dataset))


def rank_with_model(config: Config, split: str) -> Ranks:
    """The ranks that the freshly initialised model gives."""
    _, dataset, model, _ = set_up(config)
    return rank(model, config, dataset, split, PROTOCOLS)


def rank(
    model: torch.nn.Module, config: Config, dataset: Dataset, split: str, protocols: list[str], *between: Any
) -> Ranks:
    return ranker(model, config, *between).rank(dataset.splits[split], protocols)


def ranker(model: torch.nn.Module, config: Config, *between: Any) -> Ranker:
    scorer = ModelScorer(unwrap(model), device=CPU, max_len=config.model.max_len)
    batch_size = config.evaluation.per_device_eval_batch_size
    return Ranker(scorer, batch_size=batch_size, device=CPU, **dict(zip(["between"], between, strict=False)))


def weights(model: torch.nn.Module) -> dict[str, Parts]:
    """Every weight, tables in the parts that this process holds."""
    return {
        saved_name(name): [(row, column, part.detach().numpy().copy()) for part, row, column in placed_parts(value)]
        for name, value in unwrap(model).state_dict().items()
    }


def here() -> Processes:
    return this_process("cpu")


def open_folder(config: Config) -> Dataset:
    return open_dataset(
        config.data.folder, preprocessing=config.preprocessing.recipe,
        with_times=config.model.knows_times,
    )  # fmt: skip
