"""One run, from settings and a dataset folder to a run folder with its report."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bert4rec.config import Config, with_changes
from bert4rec.errors import DataError, SettingsError
from bert4rec.evaluation import Metrics, Scorer, measure, model_scorer, popularity_scorer
from bert4rec.feed.dataset import Dataset, open_dataset
from bert4rec.launch import Processes, processes, seed_everything
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
    with processes(config.parallelism.device, deterministic=config.training.deterministic) as world:
        return _run(resolve(config, world.device.type), world)


def _run(config: Config, world: Processes) -> Path:
    """A function of its own, so that the model is gone when the process group ends."""
    peak_memory = PeakMemory(world.device)
    dataset = _open(config)
    seed_everything(config.training.seed + world.rank)
    model, optimizers = build(config, world.device, dataset.n_items)
    folder = _make_run_folder(config, world, model)
    trainer = _trainer(config, world, dataset, model, optimizers, folder)
    trainer.fit()
    _report(config, world, dataset, model, optimizers, trainer, folder, peak_memory)
    return folder


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
    rate = how.sparse_learning_rate
    if rate == "auto":
        rate = 0.02 if "adagrad" in optimizer else config.training.learning_rate
    changed = {"sparse_optimizer": optimizer, "sparse_learning_rate": rate, "device": device_type}
    # Checked again: what "auto" became must fit the sharding type too.
    return with_changes(config, "parallelism", changed)


def build(config: Config, device: torch.device, n_items: int) -> tuple[nn.Module, Optimizers]:
    """The parallelized model and its optimizers, of resolved settings."""
    how, training = config.parallelism, config.training
    assert how.sparse_learning_rate != "auto", "the settings are resolved"
    model = Bert4Rec(n_rows=table_rows(n_items), **config.model.model_dump(exclude={"kind"}))
    wrapped = parallelize(
        model,
        mode=how.mode,
        device=device,
        seed=training.seed,
        sharding_type=how.sharding_type,
        sparse_optimizer=how.sparse_optimizer,
        sparse_learning_rate=how.sparse_learning_rate,
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


def _open(config: Config) -> Dataset:
    preprocessing = config.preprocessing.model_dump()
    dataset = open_dataset(config.data.folder, max_len=config.model.max_len, preprocessing=preprocessing)
    if not len(dataset.splits["train"]):
        raise DataError(f"{dataset.folder}: the training split is empty; loosen the filters of [preprocessing]")
    return dataset


def _trainer(
    config: Config, world: Processes, dataset: Dataset, model: nn.Module, optimizers: Optimizers, folder: Path
) -> Trainer:
    return Trainer(
        model,
        optimizers,
        dataset.splits["train"],
        n_rows=table_rows(dataset.n_items),
        settings=config.training,
        world=world,
        measure=_measure(config, world, dataset, "validation", ["full"], lambda: _scorer(config, world, model)),
        best_folder=folder / "checkpoints" / "best",
        log=MetricsLog(folder) if world.is_first else None,
    )


def _scorer(config: Config, world: Processes, model: nn.Module) -> Scorer:
    return model_scorer(unwrap(model), world.device, config.model.max_len, config.training.precision)


def _measure(
    config: Config,
    world: Processes,
    dataset: Dataset,
    split: str,
    protocols: Sequence[str],
    scorer: Callable[[], Scorer],
) -> Callable[[], Metrics]:
    """A function of nothing that measures what `scorer` gives at that time."""
    ks = sorted({*config.evaluation.ks, 10})
    batch_size = config.evaluation.per_device_eval_batch_size
    return lambda: measure(
        scorer(), dataset.splits[split], protocols=protocols, ks=ks, batch_size=batch_size, device=world.device
    )


def _make_run_folder(config: Config, world: Processes, model: nn.Module) -> Path:
    """A new folder, named by the first process: no run ever writes into another's."""
    folder = Path(world.agree(_new_folder(config) if world.is_first else None))
    if world.is_first:
        (folder / "config.toml").write_text(config.to_toml())
        write_json(folder / "environment.json", environment(world.device, world.world_size))
        (folder / "plan.txt").write_text(describe_plan(model))
    return folder


def _new_folder(config: Config) -> str:
    parent, name = Path(config.run.dir), config.run_name
    for number in itertools.count(1):
        folder = parent / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return str(folder)
    raise AssertionError


def _report(
    config: Config,
    world: Processes,
    dataset: Dataset,
    model: nn.Module,
    optimizers: Optimizers,
    trainer: Trainer,
    folder: Path,
    peak_memory: PeakMemory,
) -> None:
    """Test the best weights, and write the report beside the baseline's figures."""
    protocols = config.evaluation.protocols
    scorer = _scorer(config, world, model)
    popularity = popularity_scorer(dataset.popularity, world.device)
    results = {
        "validation": _measure(config, world, dataset, "validation", protocols, lambda: scorer)(),
        "test": _measure(config, world, dataset, "test", protocols, lambda: scorer)(),
        "popularity_baseline": _measure(config, world, dataset, "test", protocols, lambda: popularity)(),
    }
    oracle = dataset.oracle_ranks()
    if oracle:
        ks = sorted({*config.evaluation.ks, 10})
        results["best_possible"] = {name: ranking_metrics(oracle[name], ks) for name in protocols}
    peaks = world.gather(peak_memory.read())
    sharding = world.gather(held_bytes(model, optimizers.states()))
    if not world.is_first:
        return
    state = trainer.state
    report: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "dataset": {
            **{key: dataset.metadata[key] for key in ("source", "users", "items", "rows")},
            "fingerprint": dataset.fingerprint,
            "n_eval_negatives": config.preprocessing.n_eval_negatives,
        },
        "mode": config.parallelism.mode,
        "world_size": world.world_size,
        **results,
        "training": {
            "epochs": state.epoch,
            "steps": state.step,
            "seconds": trainer.seconds,
            "best_epoch": state.best_epoch,
            "stopped_by": state.stopped_by,
            "sequences_per_second": trainer.meter.rate,
            "peak_memory_bytes": peaks,
        },
        "sharding": {key: [rank[key] for rank in sharding] for key in ("weights", "optimizer_state")},
    }
    write_report(folder, report)
    print(f"\n{metrics_table(report)}\n\nreport: {folder / 'report.md'}", flush=True)
