"""One run, from settings and a dataset folder to a run folder with its report."""

import itertools
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from bert4rec.config import Config, with_changes
from bert4rec.errors import DataError, SettingsError
from bert4rec.evaluation import Metrics, Scorer, measure, model_scorer, popularity_scorer
from bert4rec.feed.dataset import Dataset, open_dataset
from bert4rec.launch import Processes, by_first, process_group, seed_everything, this_process
from bert4rec.memory import PeakMemory
from bert4rec.metrics import ranking_metrics
from bert4rec.model import Bert4Rec
from bert4rec.optimizer import Optimizers
from bert4rec.parallelize import compile_blocks, describe_plan, held_bytes, parallelize, unwrap
from bert4rec.report import FORMAT_VERSION, MetricsLog, environment, metrics_table, write_json, write_report
from bert4rec.trainer import Trainer
from bert4rec.vocabulary import table_rows


def run(config: Config) -> Path:
    """Train, validate, test and report as `config` says; the run folder. Every process of the launch calls this."""
    world = this_process(config.parallelism.device)
    config = resolve(config, world.device.type)
    dataset = _open(config, verify=world.local_rank == 0)
    with process_group(world, deterministic=config.training.deterministic):
        # The Run lives in this expression only, so that its shards are gone when the process group ends.
        return Run(config, world, dataset).complete()


class Run:
    """One run of resolved settings: the dataset is open, the model built, the run folder there."""

    def __init__(self, config: Config, world: Processes, dataset: Dataset) -> None:
        self._config, self._world, self._dataset = config, world, dataset
        self._peak_memory = PeakMemory(world.device)
        seed_everything(config.training.seed + world.rank)
        self._model, self._optimizers = build(config, world, dataset.n_items)
        self._folder = Path(by_first(lambda: _new_folder(config)))
        if world.is_first:
            self._describe()
        self._log = MetricsLog(self._folder) if world.is_first else None

    def complete(self) -> Path:
        """Train, test the best weights, write the report; the run folder."""
        trainer = self._trainer()
        trainer.fit()
        results = self._results()
        peaks = self._world.gather(self._peak_memory.read())
        held = self._world.gather(held_bytes(self._model, self._optimizers.states()))
        if self._log:
            self._log.close()
            report = self._about() | results | {"training": _training(trainer, peaks), "sharding": _by_rank(held)}
            write_report(self._folder, report)
            print(f"\n{metrics_table(report)}\n\nreport: {self._folder / 'report.md'}", flush=True)
        return self._folder

    def _describe(self) -> None:
        """What is known before the first step."""
        (self._folder / "config.toml").write_text(self._config.to_toml())
        (self._folder / "plan.txt").write_text(describe_plan(self._model))
        write_json(self._folder / "environment.json", environment(self._world.device, self._world.world_size))

    def _trainer(self) -> Trainer:
        return Trainer(
            self._model,
            self._optimizers,
            self._dataset.splits["train"],
            n_rows=table_rows(self._dataset.n_items),
            settings=self._config.training,
            world=self._world,
            measure=lambda: self._measure(self._scorer(), "validation", ["full"]),
            folder=self._folder,
            log=self._log,
        )

    def _results(self) -> dict[str, Metrics]:
        """The model on both splits, and on the test split what popularity and the best possible would have got."""
        dataset, protocols = self._dataset, self._config.evaluation.protocols
        scorer = self._scorer()
        results = {split: self._measure(scorer, split, protocols) for split in ("validation", "test")}
        popularity = popularity_scorer(dataset.popularity, self._world.device)
        results["popularity_baseline"] = self._measure(popularity, "test", protocols)
        if oracle := dataset.oracle_ranks():
            results["best_possible"] = {name: ranking_metrics(oracle[name], self._ks) for name in protocols}
        return results

    def _measure(self, scorer: Scorer, split: str, protocols: Sequence[str]) -> Metrics:
        return measure(
            scorer,
            self._dataset.splits[split],
            protocols=protocols,
            ks=self._ks,
            batch_size=self._config.evaluation.per_device_eval_batch_size,
            device=self._world.device,
        )

    def _scorer(self) -> Scorer:
        """The model as it is now."""
        settings = self._config
        return model_scorer(
            unwrap(self._model), self._world.device, settings.model.max_len, settings.training.precision
        )

    @property
    def _ks(self) -> list[int]:
        return sorted({*self._config.evaluation.ks, 10})

    def _about(self) -> dict[str, Any]:
        """What the report says before the figures."""
        metadata = self._dataset.metadata
        return {
            "format_version": FORMAT_VERSION,
            "dataset": {
                **{key: metadata[key] for key in ("source", "users", "items", "rows", "fingerprint")},
                "n_eval_negatives": self._config.preprocessing.n_eval_negatives,
            },
            "mode": self._config.parallelism.mode,
            "world_size": self._world.world_size,
        }


def resolve(config: Config, device_type: str) -> Config:
    """The settings with every "auto" decided; raises `SettingsError` for what this device cannot do."""
    how = config.parallelism
    optimizer = how.sparse_optimizer
    fused_on_cpu = how.mode == "dmp" and device_type == "cpu"
    if optimizer == "auto":
        optimizer = "rowwise_adagrad" if fused_on_cpu else "adam"
    if optimizer == "adam" and fused_on_cpu:
        raise SettingsError(
            'parallelism.sparse_optimizer = "adam": fbgemm has no fused Adam on CPU, so not with mode = "dmp" there; '
            'valid: "sgd", "adagrad", "rowwise_adagrad", or --mode=ddp'
        )
    if (
        config.training.compile
        and device_type == "cpu"
        and not any(map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++")))
    ):
        raise SettingsError(
            "training.compile = true: torch.compile needs a C++ compiler on CPU; install g++, or set it to false"
        )
    rate = how.sparse_learning_rate
    if rate == "auto":
        rate = 0.02 if "adagrad" in optimizer else config.training.learning_rate
    changed = {"sparse_optimizer": optimizer, "sparse_learning_rate": rate, "device": device_type}
    # Checked again: what "auto" became must fit the sharding type too.
    return with_changes(config, "parallelism", changed)


def build(config: Config, world: Processes, n_items: int) -> tuple[nn.Module, Optimizers]:
    """The parallelized model and its optimizers, of resolved settings."""
    how, training = config.parallelism, config.training
    assert how.sparse_learning_rate != "auto", "the settings are resolved"
    model = Bert4Rec(n_rows=table_rows(n_items), **config.model.model_dump(exclude={"kind"}))
    wrapped = parallelize(
        model,
        mode=how.mode,
        device=world.device,
        seed=training.seed,
        sharding_type=how.sharding_type,
        sparse_optimizer=how.sparse_optimizer,
        sparse_learning_rate=how.sparse_learning_rate,
        batch_size=training.per_device_train_batch_size,
        local_world_size=world.local_world_size,
    )
    if training.compile:
        compile_blocks(wrapped)
    optimizers = Optimizers(
        wrapped,
        optimizer=training.optimizer,
        learning_rate=training.learning_rate,
        sparse_optimizer=how.sparse_optimizer,
        sparse_learning_rate=how.sparse_learning_rate,
        weight_decay=training.weight_decay,
        max_grad_norm=training.max_grad_norm,
    )
    return wrapped, optimizers


def _open(config: Config, *, verify: bool) -> Dataset:
    preprocessing = config.preprocessing.model_dump()
    dataset = open_dataset(config.data.folder, max_len=config.model.max_len, preprocessing=preprocessing, verify=verify)
    if not len(dataset.splits["train"]):
        raise DataError(f"{dataset.folder}: the training split is empty; loosen the filters of [preprocessing]")
    return dataset


def _new_folder(config: Config) -> str:
    parent = Path(config.run.dir)
    for number in itertools.count(1):
        folder = parent / (config.run_name if number == 1 else f"{config.run_name}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise SettingsError(f"run.dir: cannot make {folder}: {error.strerror}; choose another folder") from None
        return str(folder)
    raise AssertionError


def _training(trainer: Trainer, peak_memory: list[int]) -> dict[str, Any]:
    state = trainer.state
    return {
        "epochs": state.epoch,
        "steps": state.step,
        "seconds": trainer.seconds,
        "best_epoch": state.best_epoch,
        "stopped_by": state.stopped_by,
        "sequences_per_second": trainer.meter.rate,
        "peak_memory_bytes": peak_memory,
    }


def _by_rank(held: list[dict[str, int]]) -> dict[str, list[int]]:
    """Bytes of weights and of optimizer state, a list over the ranks each."""
    return {key: [rank[key] for rank in held] for key in held[0]}
