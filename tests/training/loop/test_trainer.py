"""A training saves at any moment, goes on after a break as one without, and takes the best weights in the end."""

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import nn

from bert4rec.checkpoint import store
from bert4rec.checkpoint.run_folder import CHECKPOINTS, found, step_folder
from bert4rec.checkpoint.store import SaveError
from bert4rec.checkpoint.stored_tensors import LATEST, MODEL_PREFIX, StoredTensors
from bert4rec.config.load import load_config
from bert4rec.config.tables import Config
from bert4rec.feed.batch import Lookup
from bert4rec.feed.inference import append_mask_batch
from bert4rec.models.matrix_factorization import MatrixFactorization
from bert4rec.models.sequence_model import SequenceModel
from bert4rec.report.log import read_records
from bert4rec.runtime.errors import DataError
from bert4rec.sharding.optimizer import WeightAverage
from bert4rec.sharding.parallelize import unwrap
from bert4rec.training.run import run
from tests.conftest import BY_HAND, RATED, SHORT, SMALL, leave_group, long
from tests.fixture_types import Capture, Patch, Settings
from tests.processes import jobs
from tests.runs import EVALUATION, FORWARD, Make, assert_same_results, flip, in_step, interrupted, report_of, tensors_of

pytestmark = pytest.mark.usefixtures("alone")


@pytest.mark.parametrize(
    ("where", "number", "kept", "asynchronous"),
    [
        long(FORWARD, 4, 4, False),  # in the first epoch
        long(FORWARD, 15, 15, True),  # in the first step of the third
        long(FORWARD, 21, 21, False),  # in the very last step
        long(EVALUATION, 1, 7, False),  # in the first validation
        long(EVALUATION, 6, 14, True),
        (EVALUATION, 13, 0, False),  # in the test, after three validations of four batches each
        long((store, "_write_shards"), 1, 7, False),  # while the first checkpoint is written
        long((store, "_write_shards"), 2, 14, True),
        long((store, "_finish"), 2, 14, False),
    ],
)
def test_a_signal_at_any_moment_loses_nothing(
    make: Make, whole: Path, monkeypatch: Patch, where: tuple[Any, str], number: int, kept: int,
    asynchronous: bool,
) -> None:  # fmt: skip
    changes = {"run.name": "broken", "run.resume": "auto", "checkpoint.async": asynchronous}
    with monkeypatch.context() as patch:
        in_step(patch, *where, number)
        message = interrupted(make(**changes))
    if kept:
        step = int(message.rpartition(" ")[2])
        assert kept <= step <= 21  # a signal while a checkpoint is written is heard at a later step
    assert_same_results(run(make(**changes)), whole)


def test_what_could_not_be_saved_is_not_called_saved(make: Make, whole: Path, monkeypatch: Patch) -> None:
    full = Mock(side_effect=SaveError("the disk is full"))
    with monkeypatch.context() as patch:
        patch.setattr(store, "_write_shards", full)
        in_step(patch, *FORWARD, 4)
        message = interrupted(make(**{"run.name": "broken"}))
        assert re.search(r"not saved after step \d+", message)
    (stopped,) = read_records(whole.parent / "broken", "stopped")
    assert stopped["message"] == message
    monkeypatch.setattr(store, "_write_shards", full)
    with pytest.raises(SaveError, match=r"--config=\S+/runs/lost/config\.toml"):
        run(make(**{"run.name": "lost"}))
    assert not (whole.parent / "lost" / "report.json").exists()


def test_a_best_that_was_damaged_is_not_tested(make: Make, monkeypatch: Patch, capsys: Capture) -> None:
    def damaged(folder: Path) -> None:
        flip(folder / "__0_0.distcp", 1000)
        store.verify(folder)

    monkeypatch.setattr("bert4rec.training.state.verify", damaged)
    folder = run(make(**{"training.seed": 4}))  # with which the second epoch is the best
    assert "__0_0.distcp" in capsys.readouterr().out
    assert report_of(folder)["training"]["best_epoch"] == 3


ABILITIES = {
    "model.id_dropout": 0.4, "model.feature_tables_from": 4, "training.event_weights": {"purchase": 1.0, "cart": 0.5},
    "training.average_age": 0.1, "training.per_device_train_batch_size": 16, "training.n_train_negatives": 9,
}  # fmt: skip
KINDS = {
    "bert4rec": ABILITIES | {
        "training.loss": "softmax", "parallelism.mode": "ddp", "model.times": "history", "training.optimizer": "muon",
    },
    "sasrec": ABILITIES | {
        "training.loss": "sampled_softmax", "parallelism.mode": "dmp", "model.times": "target",
    },
    "matrix_factorization": RATED | {
        "training.learning_rate": 0.01, "model.dropout": 0.5, "model.form": "neural",
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", ["bert4rec", long("sasrec"), long("matrix_factorization")])
def test_an_interrupted_training_ends_as_one_without_a_break(
    event_folder: Path, rated_folder: Path, tmp_path: Path, monkeypatch: Patch, kind: str
) -> None:
    folder = rated_folder if kind == "matrix_factorization" else event_folder
    recipe = json.loads((folder / "metadata.json").read_text())["preprocessing"]
    settings = SMALL | BY_HAND | SHORT | {f"preprocessing.{key}": value for key, value in recipe.items()}
    settings |= KINDS[kind] | {"model.kind": kind, "data.dataset_dir": str(folder), "run.dir": str(tmp_path)}
    settings |= {"training.n_epochs": 2}
    whole, broken = (load_config(None, settings | {"run.name": n, "run.resume": "auto"}) for n in ("whole", "broken"))
    undisturbed = run(whole)
    with monkeypatch.context() as patch:
        in_step(patch, MatrixFactorization if kind == "matrix_factorization" else SequenceModel, "forward", 6)
        interrupted(broken)
    resumed = run(broken)
    assert_same_results(resumed, undisturbed)
    assert report_of(resumed).get("ratings") == report_of(undisturbed).get("ratings")
    ends = [StoredTensors(found(folder / "checkpoints")[-1]) for folder in (resumed, undisturbed)]
    assert [*ends[0]] == [*ends[1]]
    assert all(torch.equal(*(end.read(name) for end in ends)) for name in ends[0])


AGE, POWER = 0.125, 6  # of the step by which weights count, nearly


def trained(n_steps: int, age: float = AGE) -> tuple[nn.Linear, WeightAverage, float]:
    """A model whose weight is the number of its step, its mean, and the value of that."""
    model = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    average = WeightAverage(model.state_dict(), age=age)
    for step in range(1, n_steps + 1):
        model.weight.data.fill_(step)
        average.note(step)
    (mean,) = average.tensors().values()
    return model, average, mean.item()


def test_weights_count_by_a_power_of_their_step() -> None:
    """The weight is Γ(t + η) / Γ(t), which is t (t + 1) … (t + η - 1) for a whole η."""
    steps = np.arange(1, 51)
    weights = np.prod([steps + k for k in range(POWER)], axis=0)
    assert trained(50)[2] == pytest.approx(np.average(steps, weights=weights))
    assert trained(1)[2] == 1  # the weights of the start do not count
    for age in (0.05, 0.1, 0.3):
        assert 1 - trained(1000, age)[2] / 1000 == pytest.approx(age, rel=0.02)


def test_the_model_has_it_for_a_while() -> None:
    model, average, mean = trained(30)
    with suppress(RuntimeError), average.using_average():
        assert model.weight.item() == mean
        raise RuntimeError("of a validation")
    (kept,) = average.tensors().values()
    assert (model.weight.item(), kept.item()) == (30, mean)
    average.restart()
    assert next(iter(average.tensors().values())).item() == 30


@pytest.mark.long
def test_a_run_saves_tests_and_starts_others_from_the_mean(make: Make, monkeypatch: Patch) -> None:
    def ran(name: str, **changes: object) -> Path:
        folder = run(make(**averaged | {"run.name": name} | changes))
        leave_group()
        return folder

    averaged = {"training.average_age": AGE, "training.n_epochs": 1, "checkpoint.every_steps": 1, "checkpoint.keep": 99}
    folder, plain = ran("averaged"), ran("plain", **{"training.average_age": 0.0})
    kept, last = (tensors_of(found(path / CHECKPOINTS)[-1]) for path in (folder, plain))
    names = [name.removeprefix(MODEL_PREFIX) for name in last if name.startswith(MODEL_PREFIX)]
    mean: dict[str, torch.Tensor] = {}
    for step in range(1, 8):
        tensors, share = tensors_of(step_folder(folder / CHECKPOINTS, step)), (POWER + 1) / (step + POWER)
        mean = {name: tensors[LATEST + name] * share + mean.get(name, 0) * (1 - share) for name in names}
        for name in names:
            torch.testing.assert_close(tensors[MODEL_PREFIX + name], mean[name])
    for name in names:
        assert torch.equal(kept[LATEST + name], last[MODEL_PREFIX + name])
        assert not torch.equal(kept[MODEL_PREFIX + name], last[MODEL_PREFIX + name])
    assert not any(name.startswith(LATEST) for name in last)
    assert report_of(folder)["test"] != report_of(plain)["test"]
    rates = {"training.learning_rate": 1e-12, "parallelism.sparse_learning_rate": 1e-12}
    one_step = {"training.max_minutes": 1e-9, "run.init_from": str(folder)} | rates
    best, first = (tensors_of(path / CHECKPOINTS / "best") for path in (folder, ran("started", **one_step)))
    for name in names:
        torch.testing.assert_close(first[LATEST + name], best[MODEL_PREFIX + name])

    monkeypatch.setattr(
        "bert4rec.training.state.verify", Mock(side_effect=DataError("is lost"))
    )  # then the mean of the last steps is tested
    assert report_of(ran("other"))["test"] == report_of(folder)["test"]


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
