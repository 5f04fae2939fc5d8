"""Sharded = replicated = one process: the same start, the same losses, the same tables, the same plan everywhere."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist

from bert4rec.checkpoint.run_folder import found
from bert4rec.config.tables import Config
from bert4rec.sharding.footprint import message_bytes
from tests.conftest import long
from tests.fixture_types import Settings
from tests.processes import jobs
from tests.sharding.jobs import config_of, plan_and_build, planned_and_held, refusal
from tests.training.loop.test_trainer import assemble, assert_equal

Train = Callable[..., list[dict[str, Any]]]
SHARDING, GROUP_SIZE, MODE = (f"parallelism.{name}" for name in ("sharding_type", "sharding_group_size", "mode"))
SGD, ADAGRAD, ROWWISE, ADAM = (
    {"parallelism.sparse_optimizer": name} for name in ("sgd", "adagrad", "rowwise_adagrad", "adam")
)
SOFTMAX, GBCE = ({"training.loss": loss} for loss in ("softmax", "gbce"))
SAMPLED = {"training.loss": "sampled_softmax"} | ADAGRAD
EXACT = SOFTMAX | ADAM
TABLES = {"model.feature_tables_from": 4}  # those of brand and of tags
WEIGHTS = {"training.event_weights": {"purchase": 1.0, "cart": 0.3}}
MUON = {"training.optimizer": "muon"}
BEFORE, AT = {"model.times": "history"}, {"model.times": "target"}
IN_ONE, IN_TWO = {GROUP_SIZE: 1}, {GROUP_SIZE: 2}
EVENTS = "encoder.events.weight"

# Data → the settings of trainings of one global batch a step, `batch`, without dropout.
USUAL: dict[str, dict[str, Any]] = {
    "small": {
        "batch": 120, "training.n_epochs": 5, "training.eval_every_n_epochs": 1, "training.lr_schedule": "linear",
        "training.warmup_steps": 3, "training.n_train_negatives": 20, "training.learning_rate": 0.003,
        "parallelism.sparse_learning_rate": 0.05,
    },
    "events": {
        "batch": 60, "training.n_epochs": 5, "training.n_train_negatives": 12, "training.learning_rate": 0.003,
        "parallelism.sparse_learning_rate": 0.05, "model.id_dropout": 0.3, "training.average_age": 0.0,
    },
    # The last global batch has fewer pairs than processes: some have none then.
    "rated": {
        "batch": 174, "training.n_epochs": 2, "training.eval_every_n_epochs": 1, "training.lr_schedule": "one_cycle",
        "training.learning_rate": 0.02, "training.n_train_negatives": 20, "training.rating_validation": 0.0,
    },
}  # fmt: skip


@pytest.fixture
def settings(small_config: Settings, rated_config: Settings, event_folder: Path) -> Settings:
    """`settings(data, n_processes, **changes)`, of a training on some of the data in `USUAL`."""

    def made(data: str, n_processes: int, **changes: Any) -> Config:
        usual: dict[str, Any] = {"model.dropout": 0.0} | USUAL[data]
        if changes.get("parallelism.sparse_optimizer") == "sgd":
            scale = 10.0 if changes.get("training.loss") == "gbce" else 1.0  # it is divided by the number of candidates
            usual |= {"training.optimizer": "sgd", "training.learning_rate": 0.1 * scale}
            usual |= {"parallelism.sparse_learning_rate": 2.0 * scale}
        if data == "small" and changes.get("training.loss") == "sampled_softmax":
            usual["training.negatives_power"] = 0.5
        usual |= changes
        batch = {"training.per_device_train_batch_size": usual.pop("batch") // n_processes}
        if data == "events":
            return config_of(small_config, event_folder, **usual | batch)
        return (rated_config if data == "rated" else small_config)(**usual | batch)

    return made


@pytest.fixture(scope="module")
def trained() -> dict[str, list[dict[str, Any]]]:
    """Trainings by their settings: each is compared with several others."""
    return {}


@pytest.fixture
def train(pools: Any, settings: Settings, tmp_path: Path, trained: dict[str, Any]) -> Train:
    """`train(data, kind, n_processes, **changes)`: the results of the processes."""

    def run(data: str, kind: str, n_processes: int, **changes: Any) -> list[dict[str, Any]]:
        key = f"{data} {kind} {n_processes} {sorted(changes.items())}"
        if key not in trained:
            job = [jobs.with_groups, jobs.train] if kind == "two tables" else [jobs.train]
            changes |= {"model.kind": "sasrec" if kind == "two tables" else kind}
            trained[key] = pools(n_processes).run(*job, settings(data, n_processes, **changes), tmp_path)
        return trained[key]

    return run


def message_bytes_of_a_step(config: Config) -> tuple[int, list[int]]:
    """Bytes of vectors that a step brings to a process at most, by the plan, and of all numbers in its messages."""
    plan, model, optimizers, batches = plan_and_build(config)
    batch = batches[0]
    send, counted = dist.all_to_all_single, []

    def counting(output: torch.Tensor, *args: Any, **keywords: Any) -> Any:
        counted.append(output.numel() * output.element_size() if output.is_floating_point() else 0)
        return send(output, *args, **keywords)

    with mock.patch.object(dist, "all_to_all_single", counting):
        optimizers.begin_step(1.0)
        model(batch).backward()
    return message_bytes(plan.job), [n_bytes for n_bytes in counted if n_bytes]


@pytest.mark.parametrize(
    ("data", "kind", "changes", "way"),
    # Each pair of a kind, a loss, an optimizer, a number of processes and a sharding at least once. Row-wise Adagrad is
    # another algorithm where a row is cut, and refused.
    [
        ("small", "bert4rec", SOFTMAX | SGD, (2, "ddp", "")),
        ("small", "bert4rec", SOFTMAX | SGD, (2, "dmp", "row_wise")),
        ("small", "bert4rec", SOFTMAX | SGD, (3, "dmp", "column_wise")),
        long("small", "bert4rec", SAMPLED | ROWWISE, (3, "ddp", "")),
        ("small", "bert4rec", SAMPLED | ROWWISE, (3, "dmp", "row_wise")),
        ("small", "bert4rec", SAMPLED | ROWWISE, (2, "dmp", "table_wise")),
        long("small", "bert4rec", GBCE | ADAGRAD, (1, "dmp", "row_wise")),
        ("small", "bert4rec", GBCE | ADAGRAD, (2, "dmp", "column_wise")),
        ("small", "bert4rec", GBCE | ADAGRAD, (3, "dmp", "table_wise")),
        long("small", "sasrec", SOFTMAX | ROWWISE, (1, "dmp", "row_wise")),
        long("small", "sasrec", SAMPLED | SGD, (1, "dmp", "column_wise")),
        long("small", "sasrec", GBCE | SGD, (2, "dmp", "table_wise")),
        ("small", "sasrec", SAMPLED | ROWWISE, (3, "dmp", "table_wise")),
        ("small", "sasrec", GBCE | ADAGRAD, (2, "dmp", "column_wise")),
        # fbgemm has no fused Adam on CPU; the exact softmax trains row-wise shards without it.
        ("small", "bert4rec", EXACT, (3, "dmp", "row_wise")),
        ("small", "sasrec", EXACT, (2, "dmp", "row_wise")),
        # The last global batch has a single sequence: the other ranks still run every forward pass.
        long("small", "bert4rec", SOFTMAX | ROWWISE | {"batch": 96}, (2, "dmp", "row_wise")),
        ("small", "bert4rec", SOFTMAX | ROWWISE | MUON | {"batch": 96}, (3, "dmp", "row_wise")),
        # One table is trained as a parameter, one in backward.
        ("small", "two tables", SOFTMAX | ROWWISE, (2, "dmp", "row_wise")),
        long("small", "two tables", SOFTMAX | ROWWISE, (3, "ddp", "")),
        long("small", "two tables", SOFTMAX | ADAGRAD, (3, "dmp", "column_wise")),
        long("small", "two tables", SAMPLED | ROWWISE, (2, "dmp", "auto")),
        # Item features, events and times.
        ("events", "sasrec", EXACT | TABLES | WEIGHTS | AT, (2, "dmp", "row_wise")),
        ("events", "bert4rec", SAMPLED | WEIGHTS | BEFORE | {"model.feature_tables_from": 1}, (3, "dmp", "row_wise")),
        ("events", "sasrec", EXACT | TABLES | IN_ONE | MUON, (2, "dmp", "row_wise")),
        ("events", "matrix_factorization", SAMPLED | TABLES | IN_ONE, (2, "dmp", "row_wise")),
        ("events", "sasrec", SAMPLED | TABLES | IN_TWO | ROWWISE, (4, "dmp", "row_wise")),
        ("events", "sasrec", EXACT | IN_TWO, (4, "dmp", "row_wise")),
        long("events", "bert4rec", SAMPLED | TABLES | IN_ONE, (4, "dmp", "column_wise")),
        long("events", "bert4rec", SAMPLED | IN_TWO, (4, "dmp", "table_wise")),
        ("events", "bert4rec", SAMPLED, (3, "dmp", "column_wise")),
        ("events", "matrix_factorization", EXACT, (3, "ddp", "")),
        long("events", "sasrec", EXACT | TABLES | ADAGRAD, (2, "dmp", "auto")),
        long("events", "sasrec", EXACT | ADAGRAD | AT, (2, "dmp", "table_wise")),
        long("events", "bert4rec", SAMPLED | TABLES, (1, "dmp", "row_wise")),
        long("events", "bert4rec", SAMPLED | TABLES, (3, "dmp", "table_wise")),
        long("events", "bert4rec", EXACT | TABLES | ADAGRAD | WEIGHTS, (2, "ddp", "")),
        long("events", "sasrec", SAMPLED | TABLES, (3, "ddp", "")),
        long("events", "matrix_factorization", SAMPLED | TABLES, (2, "dmp", "column_wise")),
        # Ratings, with Adam and decay of all rows.
        *[("rated", "matrix_factorization", {}, way) for way in ((1, "dmp", ""), (3, "dmp", ""), (2, "ddp", ""))],
        ("rated", "matrix_factorization", {"model.form": "neural"}, (2, "dmp", "")),
        ("rated", "matrix_factorization", ROWWISE | {"parallelism.sparse_weight_decay": 0.0}, (3, "dmp", "")),
        ("rated", "matrix_factorization", SOFTMAX | {"model.form": "dot"}, (2, "dmp", "")),
        ("rated", "matrix_factorization", {"training.loss": "bpr"}, (2, "dmp", "")),
    ],
)
def test_every_way_trains_the_model_of_one_process(
    train: Train, data: str, kind: str, changes: dict[str, Any], way: tuple[int, str, str]
) -> None:
    n_processes, mode, sharding_type = way
    (alone,) = train(data, kind, 1, **changes | {MODE: "ddp", GROUP_SIZE: 0})
    together = train(data, kind, n_processes, **changes | {MODE: mode, SHARDING: sharding_type or "row_wise"})
    assert alone["losses"][-1] < alone["losses"][0]
    np.testing.assert_allclose(together[0]["losses"], alone["losses"], rtol=0, atol=1e-4 if data == "small" else 3e-5)
    assert together[0]["steps"] == alone["steps"]
    assert together[0]["metrics"] == pytest.approx(alone["metrics"], abs=0.02)
    for name in alone["final"]:
        if not (is_table := ".embeddings." in name) and name != EVENTS and not name.startswith("features."):
            continue
        size = (changes.get(GROUP_SIZE) or n_processes) if mode == "dmp" and is_table else 1
        for moment, tolerance in (("initial", 0.0), ("final", 1e-4)):
            parts = [rank[moment][name] for rank in together]
            whole, *copies = (assemble(parts[first : first + size]) for first in range(0, n_processes, size))
            assert all(np.array_equal(whole, copy) for copy in copies)
            np.testing.assert_allclose(whole, assemble([alone[moment][name]]), rtol=0, atol=tolerance)
        initial, final = (assemble([alone[moment][name]]) for moment in ("initial", "final"))
        assert not final.size or np.abs(final - initial).max() > 0.001


@pytest.mark.long
def test_as_many_draws_of_negatives_train_the_same_model(train: Train) -> None:
    """Two and four processes with two draws a step."""

    def losses(n: int, shared_by: int | str) -> list[float]:
        changes = SAMPLED | {"batch": 48, "training.n_epochs": 4, "training.negatives_shared_by": shared_by}
        return list(train("small", "bert4rec", n, **changes)[0]["losses"])

    own = losses(2, 1)
    np.testing.assert_allclose(losses(4, 2), own, rtol=0, atol=1e-4)
    assert np.abs(np.subtract(losses(2, "all"), own)).max() > 1e-3


@pytest.mark.parametrize("loss", [SAMPLED, long(SAMPLED | SOFTMAX)])
def test_messages_of_half_the_bytes(pools: Any, settings: Settings, loss: dict[str, str]) -> None:
    """What two processes send in a step, vectors and then gradients; the plan knows the most that it can be."""

    def sent(messages: str) -> list[tuple[int, list[int]]]:
        config = settings("small", 2, **loss | {"batch": 32, "parallelism.messages": messages})
        return list(pools(2).run(message_bytes_of_a_step, config))

    whole = sent("fp32")
    for half in (sent("fp16"), sent("bf16")):
        for (planned, counted), (planned_whole, counted_whole) in zip(half, whole, strict=True):
            assert len(counted_whole) == 2
            assert [2 * n_bytes for n_bytes in counted] == counted_whole
            assert 2 * planned == planned_whole >= counted_whole[0] > 0.3 * planned_whole  # equal ids come once


@pytest.mark.parametrize(
    ("changes", "tolerance"),
    [
        ({"parallelism.table_precision": "fp16"}, 2e-3),
        long({"parallelism.messages": "bf16"}, 0.05),
        long(SOFTMAX | {"parallelism.messages": "fp16"}, 2e-3),
    ],
)
def test_ten_steps_in_half_precision_are_nearly_those_in_full(
    train: Train, changes: dict[str, Any], tolerance: float
) -> None:
    loss = {name: value for name, value in changes.items() if name == "training.loss"}
    full, half = (train("small", "bert4rec", 3, **SAMPLED | some)[0] for some in (loss, changes))
    np.testing.assert_allclose(half["losses"], full["losses"], rtol=0, atol=tolerance)
    assert half["losses"] != full["losses"]
    (_, _, rows), *_ = half["initial"]["item_table.embeddings.item.weight"]
    assert rows.dtype == (np.float16 if "parallelism.table_precision" in changes else np.float32)


@pytest.mark.parametrize(
    ("data", "changes", "writers", "readers"),
    [
        ("events", SAMPLED | TABLES, 1, 2),  # all tables are updated inside backward
        long("events", EXACT | TABLES | ADAGRAD | {SHARDING: "row_wise"}, 2, 1),
        long("events", SAMPLED | TABLES, 2, 3),
        long("events", EXACT | TABLES | {SHARDING: "row_wise"}, 2, 3),
        long("small", SAMPLED | {"parallelism.table_precision": "fp16", "training.eval_every_n_epochs": 10}, 2, 2),
    ],
)
def test_a_resumed_training_has_the_state_of_every_table(
    pools: Any, settings: Settings, tmp_path: Path, data: str, changes: dict[str, Any], writers: int,
    readers: int,
) -> None:  # fmt: skip
    """Weights and moments arrive bit by bit, and so does the end of a training with as many processes."""
    usual = {"model.kind": "sasrec", "training.patience": 0, MODE: "dmp"} | (AT | WEIGHTS if data == "events" else {})

    def train(n: int, folder: str, **more: Any) -> list[dict[str, Any]]:
        return list(pools(n).run(jobs.train_part, settings(data, n, **usual | changes), tmp_path / folder, **more))

    saved, whole = train(writers, "broken", until=3), train(writers, "whole")
    checkpoint = found(tmp_path / "broken")[-1]
    tables = [name for name in saved[0]["weights"] if ".embeddings." in name]
    saved_tables = {name for name in saved[0]["moments"] if name.partition(".")[0].endswith("_table")}
    assert len(tables) == (3 if data == "events" else 1)
    assert {name.rpartition(".")[0] for name in saved_tables} == {f"{name.split('.')[-2]}_table" for name in tables}
    for n in (writers, readers):
        resumed = train(n, f"on {n}", resume_from=checkpoint)
        for kind in ("weights", "moments"):
            assert resumed[0]["restored"][kind].keys() == saved[0][kind].keys()
            for name in saved[0][kind]:
                arrived = assemble([rank["restored"][kind][name] for rank in resumed])
                np.testing.assert_array_equal(arrived, assemble([rank[kind][name] for rank in saved]), name)
                end, expected = (assemble([rank[kind][name] for rank in ranks]) for ranks in (resumed, whole))
                np.testing.assert_allclose(end, expected, rtol=1e-3, atol=1e-5, err_msg=name)
        if n == writers:
            assert_equal(resumed, whole)


@pytest.mark.parametrize(
    ("n_processes", "n_items", "changes", "named"), [(2, 10**12, {}, "memory"), (4, 20, {GROUP_SIZE: 3}, GROUP_SIZE)]
)
def test_what_cannot_be_is_refused_on_all_with_one_line(
    pools: Any, small_config: Settings, n_processes: int, n_items: int, changes: dict[str, Any], named: str
) -> None:
    first, *others = pools(n_processes).run(refusal, small_config(**changes), n_items)
    assert others == [first] * (n_processes - 1)
    assert named in first
    assert "\n" not in first


def parallel(mode: str, optimizer: dict[str, str], sharding_type: str = "row_wise", **changes: Any) -> dict[str, Any]:
    return {MODE: mode, SHARDING: sharding_type} | optimizer | changes


OPTIMIZERS = (SGD, ADAGRAD, ROWWISE)
SHARDINGS = ("row_wise", "table_wise", "column_wise", "auto")
FACTORS = [
    {"model.form": form, "training.loss": loss, "parallelism.sparse_weight_decay": decay}
    for form, loss, decay in (("dot", "mse", 0.0), ("neural", "bpr", 0.0), ("bias", "bpr", 0.1))
]
PLANNED: list[tuple[int, str, str, dict[str, Any]]] = [
    *[(n, "small", "bert4rec", parallel("ddp", optimizer)) for n in (1, 2, 3) for optimizer in (*OPTIMIZERS, ADAM)],
    *[(n, "small", "bert4rec", parallel("dmp", optimizer, sharding))
      for n, optimizer, sharding in itertools.product((1, 2, 3), OPTIMIZERS, SHARDINGS)
      if (optimizer, sharding) != (ROWWISE, "column_wise")],
    (4, "small", "bert4rec", SAMPLED | IN_TWO),
    *[(3, "small", "bert4rec", SAMPLED | parallel("dmp", optimizer) | {"parallelism.table_precision": "fp16"})
      for optimizer in OPTIMIZERS],
    *[(2, "small", "bert4rec", {MODE: mode, "model.head": "linear", "training.optimizer": optimizer})
      for mode, optimizer in itertools.product(("dmp", "ddp"), ("adamw", "sgd", "muon"))],
    *[(2, "small", "two tables", parallel("dmp", optimizer, sharding))
      for optimizer, sharding in itertools.product(OPTIMIZERS[1:], SHARDINGS[:2])],
    *[(2, "rated", "matrix_factorization", parallel(mode, optimizer, **factors))
      for mode, optimizer, factors in itertools.product(("dmp", "ddp"), (ADAM, ROWWISE), FACTORS)],
    *[(2, "events", "sasrec", changes)
      for changes in (EXACT | TABLES | AT, SAMPLED | TABLES, SAMPLED | TABLES | {MODE: "ddp"})],
]  # fmt: skip
IS_LONG = [data == "small" and n in (1, 2) and SHARDING in changes for n, data, _, changes in PLANNED]


@pytest.mark.parametrize(
    ("n_processes", "data", "kind", "changes"),
    [long(*case) if is_long else case for case, is_long in zip(PLANNED, IS_LONG, strict=True)],
)
def test_what_was_planned_is_held(
    pools: Any, settings: Settings, n_processes: int, data: str, kind: str, changes: dict[str, Any]
) -> None:
    job = [jobs.with_groups, planned_and_held] if kind == "two tables" else [planned_and_held]
    changes = changes | {"model.kind": "sasrec" if kind == "two tables" else kind}
    for planned, held in pools(n_processes).run(*job, settings(data, n_processes, **changes)):
        assert planned == held
