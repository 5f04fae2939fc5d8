"""Catalogues with fewer rows than processes would like: trained as on one process, or refused in one line."""

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import long, prepare_log
from tests.fixture_types import Settings
from tests.sharding.jobs import planned_and_held, train_few_items

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
NEGATIVES = {"preprocessing.n_eval_negatives": 1}


def cases(sizes: tuple[int, ...], settings: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """Every catalogue size with every loss."""
    return [(n_items, settings | {"training.loss": loss}) for n_items, loss in itertools.product(sizes, LOSSES)]


@pytest.mark.parametrize(
    ("sizes", "sharding"),
    [
        ((1, 4, 9), "row_wise"),
        long((2,), "table_wise"),
        long((7,), "linear head"),
        long((2, 7), "auto"),
        *[long(EACH_SIZE, sharding) for sharding in ("ddp", "row_wise", "table_wise", "column_wise")],
    ],
    ids=lambda value: value if isinstance(value, str) else f"{min(value)}-{max(value)}",
)
def test_few_items_are_trained_as_on_one_process(pools: Any, sizes: tuple[int, ...], sharding: str) -> None:
    """4 processes hold 3, 3, 3, 0 of 9 items, and 3 processes 2, 2, 0 of 4."""
    wanted = cases(sizes, SHARDINGS[sharding])
    (alone,) = pools(1).run(train_few_items, cases(sizes, SHARDINGS[sharding] | SHARDINGS["ddp"]))
    for n_processes in (1, 2, 3, 4):
        for answers in pools(n_processes).run(train_few_items, wanted):
            for (n_items, changes), answer, expected in zip(wanted, answers, alone, strict=True):
                if n_items == 1 and changes["training.loss"] != "softmax":
                    assert answer == expected
                    assert "training.loss" in answer
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
    draw = np.random.default_rng(1)
    log = {f"u{user}": draw.permutation(9)[: draw.integers(3, 6)].tolist() for user in range(40)}
    return prepare_log(tmp_path_factory.mktemp("nine"), log, **NEGATIVES)


@pytest.mark.parametrize(
    ("optimizer", "loss"),
    [
        ("rowwise_adagrad", "softmax"),
        ("adagrad", "sampled_softmax"),
        long("sgd", "softmax"),
        long("sgd", "sampled_softmax"),
    ],
)
def test_a_process_without_rows_holds_what_was_planned(
    pools: Any, log_config: Settings, nine_items: Path, optimizer: str, loss: str
) -> None:
    settings = {"training.loss": loss, "training.n_train_negatives": 4, "parallelism.sparse_optimizer": optimizer}
    config = log_config(**settings, **NEGATIVES, **{"data.dataset_dir": str(nine_items)})
    answers = pools(4).run(planned_and_held, config)
    assert [planned for planned, _ in answers] == [held for _, held in answers]
    weights = [held["weights"] for _, held in answers]
    assert weights[0] == weights[1] == weights[2] == weights[3] + 3 * (16 + 4) * 4  # rows × (width + bias) × bytes
