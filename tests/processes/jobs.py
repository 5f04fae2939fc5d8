"""What the processes of a pool do in the tests of this folder."""

import contextlib
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
from bert4rec.checkpoint.run_folder import METADATA_VERSION, Trained, read_metadata
from bert4rec.checkpoint.store import verify
from bert4rec.config.kinds import KINDS
from bert4rec.config.load import load_config
from bert4rec.config.resolve import Facts, resolve
from bert4rec.config.tables import Config
from bert4rec.dataset.format import NO_ITEM
from bert4rec.dataset.histories import Rows
from bert4rec.dataset.reader import Dataset, Sizes, open_dataset
from bert4rec.evaluation import ratings
from bert4rec.evaluation.evaluator import Example, examples
from bert4rec.evaluation.ranker import Ranker, Ranks, to_metrics
from bert4rec.evaluation.scorers import ModelScorer
from bert4rec.evaluation.top_k import TopK
from bert4rec.feed.batch import Batch, Lookup
from bert4rec.feed.batches import TrainingBatches, Windows
from bert4rec.feed.masking import Masking
from bert4rec.feed.negatives import NegativeSampler
from bert4rec.models.baselines import BaselineFactory
from bert4rec.models.ranking_model import RankingModel
from bert4rec.models.tables import DenseShard, GradientRoute, saved_name
from bert4rec.runtime import console
from bert4rec.runtime.arrays import Int32s, Int64s
from bert4rec.runtime.collectives import (
    Partition,
)
from bert4rec.runtime.errors import DivergenceError, Interrupted, SettingsError
from bert4rec.runtime.processes import Processes, seed_everything, this_process
from bert4rec.runtime.signals import Interruption
from bert4rec.sharding.optimizer import Optimizers
from bert4rec.sharding.parallelize import held_bytes, unwrap
from bert4rec.sharding.plan import Plan
from bert4rec.sharding.torchrec_internals import placed_parts
from bert4rec.training import evaluate as evaluation
from bert4rec.training.build import (
    build,
    feature_reader,
    make_evaluator,
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
from tests.features import some_features
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
    (metrics,) = to_metrics(_rank(model, config, dataset, "test", ["full"]), [10]).values()
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
        measure=lambda between: to_metrics(_rank(model, config, dataset, "validation", ["full"], between), [10]),
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
        "metrics": to_metrics(_rank(model, config, dataset, "test", PROTOCOLS), [10]),
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


def train_waiting_for_ids(config: Config, folder: Path) -> dict[str, Any]:
    """`train_part` where no lookup begins before its turn."""
    with mock.patch.object(RankingModel, "begin_lookups"):
        return train_part(config, folder)


def open_exchanges_after(config: Config, *, n_begun: int) -> tuple[int, int]:
    """How many lookups of a model's tables are open when `n_begun` were begun, and when they are discarded."""
    model: RankingModel = unwrap(set_up(config)[2])
    for first in range(n_begun):
        ids = Lookup.of(torch.arange(first, first + 5))
        model.item_table.begin({"item": ids})
    exchange = model.item_table.exchange
    assert exchange is not None
    n_open = len(exchange._open)
    model.discard_lookups()
    return n_open, len(exchange._open)


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
    examples = training_examples(config, training_windows(config, dataset), n_items=dataset.n_items)
    batches = training_batches(
        config, examples, here(), sampler=sampler(config, dataset, here()), features=feature_reader(config, dataset),
        start=state.position,
    )  # fmt: skip
    step = Step(model, optimizers, here(), precision=config.training.precision)
    return make_trainer(config, step, batches, writer, state=state, **more)


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
    return _rank(model, config, dataset, split, PROTOCOLS)


def rank_equal_items(config: Config, split: str) -> Ranks:
    """The ranks of a model whose items all have the same vector."""
    _, dataset, model, _ = set_up(config)
    for part, _, column in placed_parts(unwrap(model).state_dict()["item_table.collection.embeddings.item.weight"]):
        part.copy_(torch.arange(column, column + part.shape[1]).add(1).sqrt().sin())
    with mock.patch("bert4rec.evaluation.tiles.MIN_TILE", 11):  # some tiles for every process
        return _rank(model, config, dataset, split, PROTOCOLS)


def rank_untrained(config: Config, kind: str, split: str) -> Ranks:
    """The ranks that a kind without training gives."""
    dataset, partition = open_folder(config), Partition(dist.get_rank(), dist.get_world_size())
    counting = BaselineFactory(dataset=dataset, partition=partition)
    scorer = counting.scorer(kind, dist.barrier)
    with mock.patch("bert4rec.evaluation.tiles.MIN_TILE", 11):  # some tiles for every process
        return Ranker(scorer, batch_size=16, device=CPU).rank(dataset.splits[split], PROTOCOLS)


def with_some_features() -> Any:
    """Give every dataset the same item features."""
    return mock.patch.object(Dataset, "features", property(lambda dataset: some_features(dataset.n_items)))


def rank_by_content(config: Config) -> Ranks:
    with with_some_features():
        return rank_untrained(config, "content_neighbours", "test")


def results_with_features(config: Config) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a report says of a freshly initialised model with features, and of the same without each."""
    with with_some_features():
        dataset = open_folder(config)
        config = resolved(config, here(), dataset)
        features = feature_reader(config, dataset)
        model, _ = build(config, here(), plan_of_all(config, here(), sizes_of(config, dataset)), features)
        evaluator = make_evaluator(config, here(), dataset, features)
        held_out, calls = evaluator.held_out(), []
        ranks = evaluator.ranks(model, held_out, lambda: calls.append(None))
        results = evaluator.results(ranks, held_out)
        differences = evaluator.feature_differences(model, ranks, lambda: calls.append(None))
        assert len(calls) == evaluator.n_batches(held_out)
        assert evaluator.feature_differences(model, ranks, lambda: None) == differences  # the weights are restored
        return results, differences


def results_with_model(config: Config) -> dict[str, Any]:
    """What a report says of the freshly initialised model, and of what a new user gets."""
    _, dataset, model, _ = set_up(config)
    evaluator = make_evaluator(config, here(), dataset)
    held_out, fallback = evaluator.held_out(), evaluator.fallback(lambda: None)
    assert fallback is not None, "the dataset has times"
    results = evaluator.results(evaluator.ranks(model, held_out, lambda: None), held_out)
    return results | {"fallback": fallback.figures}


def example_users(config: Config) -> tuple[Ranks, list[Example]]:
    """The ranks of the test by an initial model, and the best items of some of its users."""
    config, dataset, model, _ = set_up(config)
    ranker, split = _ranker(model, config), dataset.splits["test"]
    ranks = ranker.rank(split, ["full"])
    return ranks, examples(ranker, split, ranks["full"])


def _rank(
    model: torch.nn.Module, config: Config, dataset: Dataset, split: str, protocols: list[str], *between: Any
) -> Ranks:
    return _ranker(model, config, *between).rank(dataset.splits[split], protocols)


def _ranker(model: torch.nn.Module, config: Config, *between: Any) -> Ranker:
    scorer = ModelScorer(unwrap(model), device=CPU, max_len=config.model.max_len)
    batch_size = config.evaluation.per_device_eval_batch_size
    return Ranker(scorer, batch_size=batch_size, device=CPU, **dict(zip(["between"], between, strict=False)))


def rating_errors(config: Config) -> dict[str, float]:
    """Of the freshly initialised model on the held-out pairs, which are cut into several batches."""
    config, dataset, model, _ = set_up(config)
    with mock.patch.object(ratings, "PAIRS_AT_ONCE", 30):
        return make_evaluator(config, here(), dataset).ratings(model, lambda: None)


def weights(model: torch.nn.Module) -> dict[str, Parts]:
    """Every weight, tables in the parts that this process holds."""
    return {
        saved_name(name): [(row, column, part.detach().numpy().copy()) for part, row, column in placed_parts(value)]
        for name, value in unwrap(model).state_dict().items()
    }


def plan_and_build(config: Config) -> tuple[Plan, Any, Optimizers, TrainingBatches]:
    """The plan, the model and its optimizers by it, and what they are trained on."""
    dataset = open_folder(config)
    config = resolved(config, here(), dataset)
    plan = plan_of_all(config, here(), sizes_of(config, dataset))
    features = feature_reader(config, dataset)
    model, optimizers = build(config, here(), plan, features)
    examples = training_examples(config, training_windows(config, dataset), n_items=dataset.n_items)
    draw = sampler(config, dataset, here())
    return plan, model, optimizers, training_batches(config, examples, here(), sampler=draw, features=features)


def planned_and_held(config: Config) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes of weights and of optimizer state of this rank, by the plan and after a step."""
    plan, model, optimizers, batches = plan_and_build(config)
    batch = batches[0]
    optimizers.begin_step(1.0)
    model(batch).backward()
    optimizers.step()
    return plan.resident_bytes(dist.get_rank()), held_bytes(model, optimizers.states())


def refusal(config: Config, n_items: int) -> str:
    """What is said of a catalogue of that size before anything is allocated."""
    try:
        plan_of_all(resolve(config, "cpu", Facts(n_items)), here(), Sizes(n_items))
    except SettingsError as error:
        return str(error)
    return "nothing was raised"


FEW = {
    "model.embed_dim": 8, "model.n_heads": 1, "model.n_layers": 1, "model.ffn_dim": 8, "model.max_len": 6,
    "model.dropout": 0.0,
}  # fmt: skip


class FewItems:
    """Stands where a split stands: rows of one to six random items of a small catalogue, and a target each."""

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
    """For each catalogue size and settings: the losses of the steps, the ranks by the model then; or the refusal."""
    return [_train_few_items(n_items, changes) for n_items, changes in cases]


def rank_with_a_spoiled_item() -> str:
    """What is raised where one item's vector is no number, of an item that nobody has seen."""
    config, n_items = resolve(load_config(None, FEW), "cpu", Facts(40)), 40
    model, _ = build(config, here(), plan_of_all(config, here(), Sizes(n_items)))
    users = FewItems(n_items, 3)
    rows = users.read(np.arange(3))
    seen = set(rows.items) | set(rows.targets)
    unseen = next(row for row in range(n_items) if row not in seen)
    for part, row, _ in placed_parts(unwrap(model).state_dict()["item_table.collection.embeddings.item.weight"]):
        part[max(0, unseen - row) : max(0, unseen - row + 1)] = torch.nan
    ranker = Ranker(ModelScorer(unwrap(model), device=CPU, max_len=config.model.max_len), batch_size=4, device=CPU)
    try:
        ranker.rank(users, ["full"])
    except DivergenceError as error:
        return str(error)
    return "nothing was raised"


def _train_few_items(n_items: int, changes: dict[str, Any]) -> dict[str, Any] | str:
    world = here()
    fitting = {
        "training.per_device_train_batch_size": 12 // world.world_size,
        "training.n_train_negatives": max(1, min(20, n_items - 1)),
    }
    try:
        config = resolve(load_config(None, FEW | fitting | changes), "cpu", Facts(n_items))
        model, optimizers = build(config, world, plan_of_all(config, world, Sizes(n_items)))
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
    ranker = Ranker(ModelScorer(unwrap(model), device=CPU, max_len=config.model.max_len), batch_size=4, device=CPU)
    return {"losses": losses, "ranks": ranker.rank(FewItems(n_items, 10), ["full"])["full"]}


def make_step(model: torch.nn.Module, optimizers: Optimizers, batch: Batch) -> float:
    """The mean loss of the global batch, by which the weights are updated."""
    partition = Partition(dist.get_rank(), dist.get_world_size())
    n_positions = int(partition.sum((batch.targets != NO_ITEM).sum()))
    optimizers.begin_step(1.0)
    loss = model(batch)
    (loss * (partition.n_processes / n_positions)).backward()
    optimizers.step()
    return float(partition.sum(loss.detach())) / n_positions


def here() -> Processes:
    return this_process("cpu")


def open_folder(config: Config) -> Dataset:
    return open_dataset(
        config.data.folder, preprocessing=config.preprocessing.recipe,
        with_times=config.model.knows_times,
    )  # fmt: skip


def best_of_processes(scores: list[list[float]]) -> tuple[list[list[float]], list[list[int]]]:
    """The three best of `scores` [U, 6], whose items are dealt to the processes from the last one to the first."""
    rank, n = dist.get_rank(), dist.get_world_size()
    partition = Partition(rank, n, place=n - 1 - rank)
    best = TopK.nothing(len(scores), 3, dtype=torch.float32, device=CPU)
    own = partition.of(6)
    best.update(slice(None), torch.tensor(scores)[:, own.start : own.stop], own.start)
    found = best.merge_all(partition)
    return found.scores.tolist(), found.indices.tolist()


def send_gradients_back(ids: list[list[int]]) -> list[list[float]]:
    """What arrives at this rank's shard of 7 rows when every rank's loss is the sum of id × vector."""
    partition = Partition(dist.get_rank(), dist.get_world_size())
    rows_per_process = -(-7 // partition.n_processes)
    first = partition.rank * rows_per_process
    n_rows = max(0, min(rows_per_process, 7 - first))
    shard = DenseShard(torch.zeros(n_rows, 1), first=first, partition=partition)
    mine = torch.tensor(ids[partition.rank], dtype=torch.int64)
    order = (mine // rows_per_process).argsort(stable=True)
    sent = torch.bincount(mine // rows_per_process, minlength=partition.n_processes).tolist()
    received = partition.exchange(torch.tensor(sent), [1] * partition.n_processes).tolist()
    rows = partition.exchange(mine[order], sent) - first
    route = GradientRoute(rows, order.argsort() if partition.n_processes > 1 else None, sent, received)
    (shard.connect(torch.zeros(len(mine), 1), route) * mine[:, None]).sum().backward()
    assert shard.weight.grad is not None
    return shard.weight.grad.tolist()


def evaluate(config: Config, trained: Trained, output: Path) -> tuple[dict[str, Any], Path | None]:
    """A whole evaluation on the processes of the pool, which have their group already."""
    store = dist.PrefixStore(str(output), dist.distributed_c10d._get_default_store())
    with (
        mock.patch.object(evaluation, "rendezvous", return_value=(store, dist.get_rank(), dist.get_world_size())),
        mock.patch.object(evaluation, "process_group", return_value=contextlib.nullcontext()),
    ):
        found = evaluation.evaluate(config, trained, output)
    return found.report, found.folder
