"""Jobs of the processes of a pool, for the tests of this folder."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from bert4rec.config.load import load_config
from bert4rec.config.resolve import Facts, resolve
from bert4rec.config.tables import Config
from bert4rec.dataset.format import NO_ITEM
from bert4rec.dataset.histories import Rows
from bert4rec.dataset.reader import Sizes, open_dataset
from bert4rec.feed.batch import Batch
from bert4rec.feed.batches import TrainingBatches, Windows
from bert4rec.feed.masking import Masking
from bert4rec.feed.negatives import NegativeSampler
from bert4rec.runtime.arrays import Int32s, Int64s
from bert4rec.runtime.collectives import Partition
from bert4rec.runtime.errors import SettingsError
from bert4rec.sharding.optimizer import Optimizers
from bert4rec.sharding.parallelize import held_bytes
from bert4rec.sharding.plan import Plan
from bert4rec.training.build import build, plan_of_all, sizes_of
from tests.fixture_types import Settings
from tests.processes import jobs


def config_of(small_config: Settings, folder: Path, **changes: Any) -> Config:
    """Settings for a dataset folder, prepared as it is."""
    recipe = {f"preprocessing.{key}": value for key, value in open_dataset(folder).metadata["preprocessing"].items()}
    return small_config(**{"data.dataset_dir": str(folder)} | recipe | changes)


def plan_and_build(config: Config) -> tuple[Plan, Any, Optimizers, TrainingBatches]:
    config, dataset, model, optimizers = jobs.set_up(config)
    plan = plan_of_all(config, jobs.here(), sizes_of(config, dataset))
    return plan, model, optimizers, jobs.batches(config, dataset)


def planned_and_held(config: Config) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes of weights and of optimizer state of this rank, by the plan and after a step."""
    plan, model, optimizers, batches = plan_and_build(config)
    batch = batches[0]
    optimizers.begin_step(1.0)
    model(batch).backward()
    optimizers.step()
    return plan.resident_bytes(dist.get_rank()), held_bytes(model, optimizers.states())


def refusal(config: Config, n_items: int) -> str:
    try:
        plan_of_all(resolve(config, "cpu", Facts(n_items)), jobs.here(), Sizes(n_items))
    except SettingsError as error:
        return str(error)
    return "nothing was raised"


FEW = {
    "model.embed_dim": 8, "model.n_heads": 1, "model.n_layers": 1, "model.ffn_dim": 8, "model.max_len": 6,
    "model.dropout": 0.0, "evaluation.per_device_eval_batch_size": 4,
}  # fmt: skip


class FewItems:
    """Stands where a split stands: rows of one to six random items of a small catalogue, and a target each."""

    first_number = 0

    def __init__(self, n_items: int, n_rows: int) -> None:
        draw = np.random.default_rng([n_items, n_rows])
        ids = (0, n_items)
        self._items = [draw.integers(*ids, draw.integers(1, 7), np.int32) for _ in range(n_rows)]
        self._targets = draw.integers(*ids, n_rows, np.int32)

    def __len__(self) -> int:
        return len(self._items)

    def lengths(self, indices: Int64s) -> Int64s:
        return np.array([len(self._items[row]) for row in indices])

    def read(self, indices: Int64s) -> Rows:
        items: Int32s = np.concatenate([self._items[row] for row in indices])
        return Rows(items, self.lengths(indices), self._targets[indices], {})


def train_few_items(cases: list[tuple[int, dict[str, Any]]]) -> list[dict[str, Any] | str]:
    """Return losses, ranks, and bytes planned and held, or the refusal, of each catalogue size and settings."""
    return [_train_few_items(n_items, changes) for n_items, changes in cases]


def _train_few_items(n_items: int, changes: dict[str, Any]) -> dict[str, Any] | str:
    world = jobs.here()
    fitting = {
        "training.per_device_train_batch_size": 12 // world.world_size,
        "training.n_train_negatives": max(1, min(20, n_items - 1)),
    }
    try:
        config = resolve(load_config(None, FEW | fitting | changes), "cpu", Facts(n_items))
        plan = plan_of_all(config, world, Sizes(n_items))
        model, optimizers = build(config, world, plan)
    except SettingsError as error:
        return str(error)
    training = config.training
    drawn = NegativeSampler(n_items=n_items, n=training.n_train_negatives, power=0.0, seed=training.seed)
    masking = Masking(training.seed, n_items, 0.3, 0.1, 0.8, 0.1)
    batches = TrainingBatches(
        Windows(FewItems(n_items, 24), masking), Partition(world.rank, world.world_size), n_epochs=1,
        per_device=training.per_device, seed=training.seed,
        sampler=None if training.loss == "softmax" else drawn,
    )  # fmt: skip
    losses = [make_step(model, optimizers, batches[step]) for step in range(len(batches))]
    ranker = jobs.ranker(model, config)
    return {
        "losses": losses, "ranks": ranker.rank(FewItems(n_items, 10), ["full"])["full"],
        "planned": plan.resident_bytes(world.rank), "held": held_bytes(model, optimizers.states()),
    }  # fmt: skip


def make_step(model: torch.nn.Module, optimizers: Optimizers, batch: Batch) -> float:
    partition = Partition(dist.get_rank(), dist.get_world_size())
    n_positions = int(partition.sum((batch.targets != NO_ITEM).sum()))
    optimizers.begin_step(1.0)
    loss = model(batch)
    (loss * (partition.n_processes / n_positions)).backward()
    optimizers.step()
    return float(partition.sum(loss.detach())) / n_positions
