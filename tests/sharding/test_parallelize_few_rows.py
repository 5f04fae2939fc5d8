"""Catalogues with fewer rows than processes would like: trained as on one process, or refused in one line."""

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import preprocessing
from bert4rec.checkpoint.run_folder import found
from bert4rec.config.tables import Config
from tests.conftest import long
from tests.fixture_types import Settings
from tests.processes import jobs
from tests.training.loop.test_trainer import assemble

LOSSES = ("softmax", "sampled_softmax", "gbce")
SHARDINGS: dict[str, dict[str, Any]] = {
    "ddp": {"parallelism.mode": "ddp"},
    **{name: {"parallelism.sharding_type": name} for name in ("row_wise", "table_wise", "auto")},
    # Row-wise Adagrad, the default on CPU, is another algorithm where a row is cut, and refused.
    "column_wise": {"parallelism.sharding_type": "column_wise", "parallelism.sparse_optimizer": "adagrad"},
    "linear head": {"model.head": "linear"},
}
# 1 to 4 processes have equally many rows, one fewer, one row, or none; 21 items are the fewest that leave 20 negatives.
EACH_SIZE = (1, 2, 3, 4, 5, 6, 7, 9, 21, 40)


def cases(sizes: tuple[int, ...], settings: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """Every catalogue size with every loss."""
    return [(n_items, settings | {"training.loss": loss}) for n_items, loss in itertools.product(sizes, LOSSES)]


@pytest.mark.parametrize(
    ("sizes", "sharding"),
    [
        ((1, 4, 9), "row_wise"),
        ((2,), "table_wise"),
        ((7,), "linear head"),
        long((2, 7), "auto"),
        *[long(EACH_SIZE, sharding) for sharding in ("ddp", "row_wise", "table_wise", "column_wise")],
    ],
    ids=lambda value: value if isinstance(value, str) else f"{min(value)}-{max(value)}",
)
def test_few_items_are_trained_as_on_one_process(pools: Any, sizes: tuple[int, ...], sharding: str) -> None:
    """4 processes hold 3, 3, 3, 0 of 9 items, and 3 processes 2, 2, 0 of 4."""
    wanted = cases(sizes, SHARDINGS[sharding])
    (alone,) = pools(1).run(jobs.train_few_items, cases(sizes, SHARDINGS[sharding] | SHARDINGS["ddp"]))
    for n_processes in (1, 2, 3, 4):
        for answers in pools(n_processes).run(jobs.train_few_items, wanted):
            for (n_items, changes), answer, expected in zip(wanted, answers, alone, strict=True):
                if n_items == 1 and changes["training.loss"] != "softmax":
                    assert answer == expected
                    assert answer.startswith(f'training.loss = "{changes["training.loss"]}": ')
                    continue
                where = f"{n_items} items on {n_processes} processes, {changes}"
                assert len(answer["losses"]) == 2, where
                assert all(map(math.isfinite, answer["losses"])), where
                assert answer["losses"][0] == pytest.approx(expected["losses"][0], abs=1e-4), where
                assert len(answer["ranks"]) == 10, where
                assert all(0 <= rank <= n_items for rank in answer["ranks"]), where  # 0: a repeated target is missed


@pytest.fixture(scope="module")
def nine_items(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a real dataset of 9 items; 4 processes hold 3, 3, 3, 0 of them."""
    parent, draw = tmp_path_factory.mktemp("nine"), np.random.default_rng(1)
    histories = [draw.permutation(9)[: draw.integers(3, 6)] for _ in range(40)]
    rows = [f"{user},{item}\n" for user, items in enumerate(histories) for item in items]
    (parent / "log.csv").write_text("".join(["user,item\n", *rows]))
    folder = parent / "dataset"
    arguments = {
        "data.source": "table", "data.path": parent / "log.csv", "data.dataset_dir": folder, "model.max_len": 12,
        "preprocessing.n_eval_negatives": 1, "preprocessing.validation_users": 20,
    }  # fmt: skip
    assert preprocessing.main([f"--{key}={value}" for key, value in arguments.items()]) == 0
    return folder


@pytest.fixture
def make(nine_items: Path, small_config: Settings) -> Settings:
    """Settings for that dataset: `make(4, "row_wise", "adagrad", loss="softmax")`."""

    def settings(n_processes: int, sharding: str, optimizer: str, loss: str) -> Config:
        wanted = {
            "data.dataset_dir": str(nine_items), "preprocessing.n_eval_negatives": 1, "model.dropout": 0.0,
            "training.loss": loss, "training.n_train_negatives": 4, "training.n_epochs": 4, "training.patience": 0,
            "training.per_device_train_batch_size": 12 // n_processes, "parallelism.sparse_optimizer": optimizer,
        }  # fmt: skip
        return small_config(**wanted | ({"parallelism.mode": "ddp"} if sharding == "ddp" else SHARDINGS[sharding]))

    return settings


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise_adagrad"])
@pytest.mark.parametrize("loss", ["softmax", "sampled_softmax"])
def test_a_process_without_rows_holds_what_was_planned(pools: Any, make: Settings, optimizer: str, loss: str) -> None:
    answers = pools(4).run(jobs.planned_and_held, make(4, "row_wise", optimizer, loss))
    assert [planned for planned, _ in answers] == [held for _, held in answers]
    weights = [held["weights"] for _, held in answers]
    assert weights[0] == weights[1] == weights[2] == weights[3] + 3 * (16 + 4) * 4  # rows × (width + bias) × bytes


@pytest.mark.parametrize(
    ("optimizer", "loss", "writer", "reader"),
    [
        long("rowwise_adagrad", "sampled_softmax", (4, "row_wise"), (3, "row_wise")),
        ("adam", "softmax", (4, "row_wise"), (1, "ddp")),
        ("adagrad", "sampled_softmax", (3, "column_wise"), (4, "row_wise")),
    ],
)
def test_a_checkpoint_of_few_rows_is_read_by_any_processes(
    pools: Any, make: Settings, tmp_path: Path, optimizer: str, loss: str, writer: tuple[int, str],
    reader: tuple[int, str],
) -> None:  # fmt: skip
    """Weights and moments arrive bit by bit, and the training continues as without an interruption."""

    def train(folder: str, setup: tuple[int, str], **more: Any) -> list[dict[str, Any]]:
        return pools(setup[0]).run(jobs.train_part, make(*setup, optimizer, loss), tmp_path / folder, **more)

    saved = train("first", writer, until=5)
    checkpoint = found(tmp_path / "first")[-1]
    same = train("same", writer, until=10, resume_from=checkpoint)
    other = train("other", reader, until=10, resume_from=checkpoint)
    np.testing.assert_allclose(other[0]["losses"], same[0]["losses"], rtol=0, atol=1e-5)
    for kind in ("weights", "moments"):
        names = {name for part in saved for name in part[kind]}
        for name in names:
            arrived = assemble([part["restored"][kind].get(name, []) for part in other])
            np.testing.assert_array_equal(arrived, assemble([part[kind].get(name, []) for part in saved]), name)
