"""A training that is interrupted and resumed is the training without an interruption."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bert4rec.checkpoint.run_folder import found
from bert4rec.config.tables import Config
from bert4rec.feed.batch import Lookup
from bert4rec.feed.inference import append_mask_batch
from bert4rec.sharding.parallelize import unwrap
from tests.conftest import long
from tests.fixture_types import Settings
from tests.processes import jobs

Parts = dict[str, list[tuple[int, int, np.ndarray]]]


def assert_equal(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    """Bit by bit, on every process."""
    for kind in ("state", "metrics", "weights", "moments"):
        np.testing.assert_equal([part[kind] for part in one], [part[kind] for part in other])


DDP = {
    "parallelism.mode": "ddp", "training.lr_schedule": "cosine", "training.warmup_steps": 4,
    "training.average_age": 0.25,
}  # fmt: skip


def counted_by_the_kernel(config: Config) -> list[int]:
    """Return the number that fbgemm gives to the third update, after other lookups and a step without one."""
    config, dataset, model, optimizers = jobs.set_up(config)
    batch = append_mask_batch(dataset.splits["test"].read(np.arange(4)), config.model.max_len)
    optimizers.set_steps(1)
    for is_left_out in (False, True, False):
        optimizers.begin_step(1.0)
        model(batch).backward()
        counted = [int(kernel.iter_cpu) for kernel in optimizers._kernels]
        if not is_left_out:
            optimizers.step()
        with torch.no_grad():
            unwrap(model).item_table.candidates(Lookup.of(torch.arange(2, 9)))
    return counted


@pytest.fixture(scope="module")
def undisturbed() -> list[Any]:
    """Results of the run without a signal, by process; the first test fills them in."""
    return []


@pytest.mark.parametrize(
    ("where", "call", "rank", "asynchronous"),
    [
        ("bert4rec.models.sequence_model.Bert4Rec.forward", 6, 1, False),
        long("bert4rec.evaluation.ranker.Ranker._encode_batch", 1, 1, True),
        long("bert4rec.checkpoint.store._write_shards", 2, 0, True),
        long("bert4rec.checkpoint.store._write_shards", 3, 1, False),
        ("bert4rec.checkpoint.store._finish", 2, 0, True),
    ],
)
def test_a_signal_to_one_process_at_any_moment_is_obeyed_by_all(
    pools: Any, small_config: Settings, tmp_path: Path, undisturbed: list[Any], where: str, call: int, rank: int,
    asynchronous: bool,
) -> None:  # fmt: skip
    config = small_config(**DDP, **{"training.n_epochs": 4, "training.per_device_train_batch_size": 6})
    if not undisturbed:
        undisturbed += pools(2).run(jobs.train_part, config, tmp_path / "whole")
    settings = {"where": where, "call": call, "rank": rank, "asynchronous": asynchronous}
    broken = pools(2).run(jobs.train_signalled, config, tmp_path / "broken", **settings)
    newest = found(tmp_path / "broken")[-1]
    step = int(newest.name.removeprefix("step-"))
    assert all(part["interrupted"].endswith(f" saved after step {step}") for part in broken)
    resumed = pools(2).run(jobs.train_part, config, tmp_path / "broken", resume_from=newest)
    assert_equal(resumed, undisturbed)


GROUP_SIZE = "parallelism.sharding_group_size"
IN_TWO = {GROUP_SIZE: 2}
SAMPLED = {"training.loss": "sampled_softmax", "training.n_train_negatives": 20}


def dmp(sharding_type: str = "row_wise", optimizer: str = "adagrad", **more: Any) -> dict[str, Any]:
    settings = {"mode": "dmp", "sharding_type": sharding_type, "sparse_optimizer": optimizer}
    return {f"parallelism.{key}": value for key, value in settings.items()} | more


def ddp(optimizer: str, **more: Any) -> dict[str, Any]:
    return {"parallelism.mode": "ddp", "parallelism.sparse_optimizer": optimizer, **more}


def test_the_kernel_counts_updates_alone(pools: Any, small_config: Settings) -> None:
    config = small_config(**{"parallelism.sharding_type": "table_wise"})
    assert pools(1).run(counted_by_the_kernel, config) == [[3]]


def assemble(parts: list[list[tuple[int, int, np.ndarray]]]) -> np.ndarray:
    """A whole tensor from the parts of all processes, some of them perhaps the same."""
    found = [part for mine in parts for part in mine]
    shape = [
        max(place + values.shape[axis] for *places, values in found for place in places[axis : axis + 1])
        for axis in range(found[0][2].ndim)
    ]
    whole = np.full(shape, np.nan, found[0][2].dtype)
    for row, column, values in found:
        where = (slice(row, row + len(values)), slice(column, column + values.shape[-1]))
        whole[where[: values.ndim]] = values
    return whole


@pytest.mark.parametrize(
    ("writers", "written_by", "readers", "read_by"),
    [
        (2, dmp(optimizer="rowwise_adagrad", **SAMPLED), 3, ddp("rowwise_adagrad", **SAMPLED)),
        long(3, dmp("column_wise", **SAMPLED), 2, dmp("row_wise", **SAMPLED)),
        long(3, ddp("adam"), 4, dmp(optimizer="adam", **IN_TWO)),
        long(4, dmp(optimizer="adam", **IN_TWO), 2, dmp(optimizer="adam")),
        long(4, dmp(**SAMPLED, **IN_TWO), 4, dmp("column_wise", **SAMPLED, **{GROUP_SIZE: 1})),
        long(2, dmp("table_wise", "rowwise_adagrad"), 1, dmp("row_wise", "rowwise_adagrad")),
        long(2, ddp("sgd"), 3, dmp("table_wise", "sgd")),
    ],
)  # fmt: skip
def test_a_training_continues_with_other_processes_and_other_shards(
    pools: Any, small_config: Settings, tmp_path: Path, writers: int, written_by: dict[str, Any],
    readers: int, read_by: dict[str, Any],
) -> None:  # fmt: skip
    """Weights and moments arrive bit by bit; the next twenty losses are those without a break, but for rounding."""

    def train(folder: str, n_processes: int, settings: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
        usual = {
            "training.n_epochs": 4, "model.dropout": 0.0, "training.patience": 0, "training.average_age": 0.1,
            "training.per_device_train_batch_size": 12 // n_processes,
        }  # fmt: skip
        return pools(n_processes).run(jobs.train_part, small_config(**settings, **usual), tmp_path / folder, **more)

    saved = train("first", writers, written_by, until=13)
    checkpoint = found(tmp_path / "first")[-1]
    whole = train("whole", writers, written_by, until=33, resume_from=checkpoint)
    other = train("other", readers, read_by, until=33, resume_from=checkpoint)
    assert len(whole[0]["losses"]) == 20
    np.testing.assert_allclose(other[0]["losses"], whole[0]["losses"], rtol=0, atol=1e-5)
    for kind in ("weights", "moments"):
        names = {name for part in saved for name in part[kind]}
        assert {name for part in other for name in part["restored"][kind]} == names
        for name in names:
            arrived = assemble([part["restored"][kind].get(name, []) for part in other])
            np.testing.assert_array_equal(arrived, assemble([part[kind].get(name, []) for part in saved]), name)
    assert other[0]["state"]["step"] == whole[0]["state"]["step"] == 33
    assert other[0]["state"]["sequences"] == whole[0]["state"]["sequences"]
