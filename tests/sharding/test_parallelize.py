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

from bert4rec.config.tables import Config
from bert4rec.dataset.reader import Dataset
from bert4rec.sharding.footprint import message_bytes
from tests.conftest import long
from tests.fixture_types import Settings
from tests.processes import jobs
from tests.sharding.jobs import plan_and_build, planned_and_held, refusal
from tests.training.loop.test_trainer import assemble

STEPS = 10


TABLES = ["item_table.embeddings.item.weight"]
GROUPS = "group_table.embeddings.group.weight"

Train = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def trained() -> dict[tuple[Any, ...], Any]:
    """Trainings by what was asked of them: each is compared with several others."""
    return {}


@pytest.fixture
def train(pools: Any, small_config: Settings, tmp_path: Path, trained: dict[Any, Any]) -> Train:
    """Ten steps of one global batch each, without dropout."""

    def run(
        n_processes: int, mode: str, optimizer: str, sharding_type: str = "row_wise", loss: str = "softmax",
        kind: str = "bert4rec",
    ) -> list[dict[str, Any]]:  # fmt: skip
        key = (n_processes, mode, optimizer, sharding_type, loss, kind)
        scale = 10.0 if loss == "gbce" else 1.0  # it is divided by the number of candidates
        is_sgd = optimizer == "sgd"
        settings = {
            "training.n_epochs": STEPS, "training.eval_every_n_epochs": 1, "model.dropout": 0.0,
            "training.per_device_train_batch_size": 120 // n_processes, "training.loss": loss,
            "training.optimizer": "sgd" if is_sgd else "adamw", "training.n_train_negatives": 20,
            "training.learning_rate": 0.1 * scale if is_sgd else 0.003,
            "training.lr_schedule": "linear", "training.warmup_steps": 3,
            "training.negatives_power": 0.5 if loss == "sampled_softmax" else 0.0,
            "model.kind": "sasrec" if kind == "two tables" else kind,
            "parallelism.mode": mode, "parallelism.sharding_type": sharding_type,
            "parallelism.sparse_optimizer": optimizer,
            "parallelism.sparse_learning_rate": 2.0 * scale if is_sgd else 0.05,
        }  # fmt: skip
        if key not in trained:
            job = [jobs.with_groups, jobs.train] if kind == "two tables" else [jobs.train]
            trained[key] = pools(n_processes).run(*job, small_config(**settings), tmp_path)
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
    ("kind", "loss", "optimizer", "way"),
    # Each pair of a kind, a loss, an optimizer, a number of processes and a sharding at least once. Row-wise Adagrad is
    # another algorithm where a row is cut, and refused.
    [
        ("bert4rec", "softmax", "sgd", (2, "ddp", "")),
        long("bert4rec", "softmax", "sgd", (1, "dmp", "table_wise")),
        ("bert4rec", "softmax", "sgd", (2, "dmp", "row_wise")),
        ("bert4rec", "softmax", "sgd", (3, "dmp", "column_wise")),
        long("bert4rec", "sampled_softmax", "rowwise_adagrad", (3, "ddp", "")),
        ("bert4rec", "sampled_softmax", "rowwise_adagrad", (3, "dmp", "row_wise")),
        ("bert4rec", "sampled_softmax", "rowwise_adagrad", (2, "dmp", "table_wise")),
        long("bert4rec", "gbce", "adagrad", (1, "dmp", "row_wise")),
        ("bert4rec", "gbce", "adagrad", (2, "dmp", "column_wise")),
        ("bert4rec", "gbce", "adagrad", (3, "dmp", "table_wise")),
        long("bert4rec", "sampled_softmax", "adagrad", (1, "dmp", "row_wise")),
        long("bert4rec", "gbce", "rowwise_adagrad", (2, "ddp", "")),
        long("sasrec", "softmax", "adagrad", (3, "ddp", "")),
        long("sasrec", "softmax", "rowwise_adagrad", (1, "dmp", "row_wise")),
        long("sasrec", "sampled_softmax", "sgd", (1, "dmp", "column_wise")),
        long("sasrec", "gbce", "sgd", (2, "dmp", "table_wise")),
        ("sasrec", "sampled_softmax", "rowwise_adagrad", (3, "dmp", "table_wise")),
        ("sasrec", "gbce", "adagrad", (2, "dmp", "column_wise")),
        # fbgemm has no fused Adam on CPU; the exact softmax trains row-wise shards without it.
        long("bert4rec", "softmax", "adam", (1, "dmp", "row_wise")),
        ("bert4rec", "softmax", "adam", (3, "dmp", "row_wise")),
        ("sasrec", "softmax", "adam", (2, "dmp", "row_wise")),
        long("sasrec", "softmax", "adam", (3, "ddp", "")),
        # One table is trained as a parameter, one in backward.
        ("two tables", "softmax", "rowwise_adagrad", (2, "dmp", "row_wise")),
        long("two tables", "softmax", "rowwise_adagrad", (3, "ddp", "")),
        long("two tables", "softmax", "adagrad", (3, "dmp", "column_wise")),
        long("two tables", "sampled_softmax", "rowwise_adagrad", (2, "dmp", "auto")),
    ],
)
def test_every_way_trains_the_model_of_one_process(
    train: Train, kind: str, loss: str, optimizer: str, way: tuple[int, str, str]
) -> None:
    """Losses of all steps, tables at the start and at the end, and what the trained model says of the users."""
    n_processes, mode, sharding_type = way
    alone = train(1, "ddp", optimizer, loss=loss, kind=kind)
    together = train(n_processes, mode, optimizer, sharding_type or "row_wise", loss, kind)

    assert len(alone[0]["losses"]) == STEPS
    assert alone[0]["losses"][-1] < 0.95 * alone[0]["losses"][0]
    np.testing.assert_allclose(together[0]["losses"], alone[0]["losses"], rtol=0, atol=1e-4)
    for name, value in alone[0]["metrics"].items():
        assert together[0]["metrics"][name] == pytest.approx(value, abs=0.02)
    for table in [*TABLES, GROUPS] if kind == "two tables" else TABLES:
        for moment, tolerance in (("initial", 0.0), ("final", 1e-4)):
            expected = assemble([alone[0][moment][table]])
            if mode == "dmp":
                found = [assemble([rank[moment][table] for rank in together])]
            else:
                found = [assemble([rank[moment][table]]) for rank in together]
            for whole in found:
                np.testing.assert_allclose(whole, expected, rtol=0, atol=tolerance)
        assert np.abs(assemble([alone[0]["final"][table]]) - assemble([alone[0]["initial"][table]])).max() > 0.01


def test_as_many_draws_of_negatives_train_the_same_model(pools: Any, small_config: Settings, tmp_path: Path) -> None:
    """Whatever the number of processes that share one of them: two and four processes with two draws a step."""

    def losses(n_processes: int, shared_by: int | str) -> list[float]:
        settings = {
            "training.n_epochs": 4, "training.per_device_train_batch_size": 48 // n_processes, "model.dropout": 0.0,
            "training.loss": "sampled_softmax", "training.n_train_negatives": 20, "training.negatives_power": 0.5,
            "training.negatives_shared_by": shared_by, "training.learning_rate": 0.003,
        }  # fmt: skip
        result = pools(n_processes).run(jobs.train, small_config(**settings), tmp_path / f"{n_processes} {shared_by}")
        return list(result[0]["losses"])

    own = losses(2, 1)
    np.testing.assert_allclose(losses(4, 2), own, rtol=0, atol=1e-4)
    assert np.abs(np.subtract(losses(2, "all"), own)).max() > 1e-3


SAMPLED = {
    "training.loss": "sampled_softmax", "training.n_train_negatives": 20, "parallelism.sparse_optimizer": "adagrad",
}  # fmt: skip


@pytest.mark.parametrize("loss", ["sampled_softmax", long("softmax")])
def test_messages_of_half_the_bytes(pools: Any, small_config: Settings, loss: str) -> None:
    """What two processes send in a step, vectors and then gradients; the plan knows the most that it can be."""

    def sent(messages: str) -> list[tuple[int, list[int]]]:
        settings = SAMPLED | {"training.loss": loss, "parallelism.messages": messages}
        return list(pools(2).run(message_bytes_of_a_step, small_config(**settings)))

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
        long({"parallelism.messages": "bf16"}, 1e-2),
        long({"parallelism.messages": "fp16", "training.loss": "softmax"}, 2e-3),
    ],
)
def test_ten_steps_in_half_precision_are_nearly_those_in_full(
    pools: Any, small_config: Settings, tmp_path: Path, changes: dict[str, Any], tolerance: float
) -> None:
    """Three processes; the losses of all steps, and no table that is the same."""

    def trained(settings: dict[str, Any]) -> list[dict[str, Any]]:
        batch = {"training.per_device_train_batch_size": 40, "training.n_epochs": STEPS, "model.dropout": 0.0}
        folder = tmp_path / " ".join(map(str, settings.values()))
        return list(pools(3).run(jobs.train, small_config(**SAMPLED | batch | settings), folder))

    (full, *_), (half, *_) = trained({k: v for k, v in changes.items() if k == "training.loss"}), trained(changes)
    assert len(full["losses"]) == STEPS
    np.testing.assert_allclose(half["losses"], full["losses"], rtol=0, atol=tolerance)
    assert half["losses"] != full["losses"]
    assert half["initial"][TABLES[0]][0][2].dtype == (np.float16 if "table" in str(changes) else np.float32)


@pytest.mark.long
def test_rows_of_half_precision_are_resumed_to_the_bit(pools: Any, small_config: Settings, tmp_path: Path) -> None:
    """Checkpoints keep them as they are."""
    config = small_config(**SAMPLED, **{"parallelism.table_precision": "fp16", "training.n_epochs": 2})
    whole = pools(2).run(jobs.train_part, config, tmp_path / "whole")
    pools(2).run(jobs.train_part, config, tmp_path / "broken", until=5)
    checkpoint = max((tmp_path / "broken").glob("step-*"))
    resumed = pools(2).run(jobs.train_part, config, tmp_path / "broken", resume_from=checkpoint)
    for before, after in zip(whole, resumed, strict=True):
        ((_, _, expected),), ((_, _, found),) = before["weights"][TABLES[0]], after["weights"][TABLES[0]]
        assert found.dtype == np.float16
        np.testing.assert_array_equal(found, expected)
        assert 0 < len(after["losses"]) < len(before["losses"])
        assert before["losses"][-len(after["losses"]) :] == after["losses"]


WEIGHTS = ["item_table.embeddings.item.weight", "user_table.embeddings.user.weight"]


@pytest.mark.parametrize(
    ("changes", "ways_to_train"),
    [
        ({}, [(1, "dmp"), (3, "dmp"), (2, "ddp")]),  # Adam and decay of all rows
        ({"model.form": "neural"}, [(2, "dmp")]),
        ({"parallelism.sparse_optimizer": "rowwise_adagrad", "parallelism.sparse_weight_decay": 0.0}, [(3, "dmp")]),
        ({"training.loss": "softmax", "model.form": "dot"}, [(2, "dmp")]),
        ({"training.loss": "bpr"}, [(2, "dmp")]),
    ],
    ids=["mse", "neural", "fused", "softmax", "bpr"],
)
def test_a_matrix_factorization_is_the_same_in_every_way(
    pools: Any, rated_config: Settings, tmp_path: Path, changes: dict[str, Any], ways_to_train: list[tuple[int, str]]
) -> None:
    """Two epochs, of which the last global batch has fewer pairs than processes: some have none then."""

    def trained(n_processes: int, mode: str) -> list[dict[str, Any]]:
        settings = {
            "training.n_epochs": 2, "training.per_device_train_batch_size": 174 // n_processes,
            "training.lr_schedule": "one_cycle", "training.learning_rate": 0.02, "training.n_train_negatives": 20,
            "training.eval_every_n_epochs": 1, "parallelism.mode": mode, "model.dropout": 0.0,
            "training.rating_validation": 0.0,
        }  # fmt: skip
        return list(pools(n_processes).run(jobs.train, rated_config(**settings | changes), tmp_path / mode))

    (alone,) = trained(1, "ddp")
    assert alone["losses"][-1] < alone["losses"][0]
    for n_processes, mode in ways_to_train:
        together = trained(n_processes, mode)
        assert (together[0]["steps"], together[0]["metrics"]["users"]) == (alone["steps"], alone["metrics"]["users"])
        np.testing.assert_allclose(together[0]["losses"], alone["losses"], rtol=1e-5)
        for table in WEIGHTS:
            for moment, tolerance in (("initial", 0.0), ("final", 1e-5)):
                found = assemble([rank[moment][table] for rank in (together if mode == "dmp" else together[:1])])
                np.testing.assert_allclose(found, assemble([alone[moment][table]]), rtol=0, atol=tolerance)


@pytest.mark.parametrize("n_processes", [long(2), 3])
def test_a_rank_without_sequences_keeps_pace(
    pools: Any, small_config: Settings, small_dataset: Dataset, tmp_path: Path, n_processes: int
) -> None:
    """The last global batch has a single sequence: the other ranks still run every forward pass."""
    global_batch = len(small_dataset.windows(max_len=12, step=12)) - 1
    assert global_batch % 6 == 0

    def losses(n: int) -> list[float]:
        batch = {"training.per_device_train_batch_size": global_batch // n, "training.eval_every_n_epochs": 1}
        result, *_ = pools(n).run(jobs.train, small_config(**batch, **{"model.dropout": 0.0}), tmp_path)
        assert result["steps"] == 2 * 2
        return result["losses"]

    np.testing.assert_allclose(losses(n_processes), losses(1), rtol=0, atol=1e-4)


def test_a_job_that_cannot_fit_is_refused_on_all_with_one_line(pools: Any, small_config: Settings) -> None:
    first, second = pools(2).run(refusal, small_config(), 10**12)
    assert first == second
    assert "memory" in first
    assert "\n" not in first


def parallel(*values: str, **changes: Any) -> dict[str, Any]:
    """Settings of a mode, a sparse optimizer and a sharding type, and others."""
    names = ("parallelism.mode", "parallelism.sparse_optimizer", "parallelism.sharding_type")
    return dict(zip(names, values, strict=False)) | changes


def case(n: int, *values: Any) -> Any:
    """A case of three processes, or one for `make test-long`."""
    return (n, *values) if n == 3 else long(n, *values)


OPTIMIZERS = ("sgd", "adagrad", "rowwise_adagrad")
SHARDINGS = ("row_wise", "table_wise", "column_wise", "auto")
FACTORS = [
    {"model.form": form, "training.loss": loss, "parallelism.sparse_weight_decay": decay}
    for form, loss, decay in (("dot", "mse", 0.0), ("neural", "bpr", 0.0), ("bias", "bpr", 0.1))
]


@pytest.mark.parametrize(
    ("n_processes", "kind", "changes"),
    [
        *[case(n, "", parallel("ddp", optimizer)) for n in (1, 2, 3) for optimizer in (*OPTIMIZERS, "adam")],
        *[case(n, "", parallel("dmp", optimizer, sharding))
          for n in (1, 2, 3)
          for optimizer, sharding in itertools.product(OPTIMIZERS, SHARDINGS)
          if (optimizer, sharding) != ("rowwise_adagrad", "column_wise")],
        (4, "", SAMPLED | {"parallelism.sharding_group_size": 2}),
        *[(3, "", SAMPLED | parallel("dmp", optimizer) | {"parallelism.table_precision": "fp16"})
          for optimizer in OPTIMIZERS],
        *[(2, "", parallel(mode, **{"model.head": "linear", "training.optimizer": optimizer}))
          for mode, optimizer in itertools.product(("dmp", "ddp"), ("adamw", "sgd"))],
        *[(2, "two tables", parallel("dmp", optimizer, sharding, **{"model.kind": "sasrec"}))
          for optimizer, sharding in itertools.product(OPTIMIZERS[1:], SHARDINGS[:2])],
        *[(2, "rated", parallel(mode, optimizer, **{"training.n_train_negatives": 20}, **factors))
          for mode, optimizer in itertools.product(("dmp", "ddp"), ("adam", "rowwise_adagrad"))
          for factors in FACTORS],
    ],
)  # fmt: skip
def test_what_was_planned_is_held(
    pools: Any, small_config: Settings, rated_config: Settings, n_processes: int, kind: str, changes: dict[str, Any]
) -> None:
    job = [jobs.with_groups, planned_and_held] if kind == "two tables" else [planned_and_held]
    config = (rated_config if kind == "rated" else small_config)(**changes)
    for planned, held in pools(n_processes).run(*job, config):
        assert planned == held
