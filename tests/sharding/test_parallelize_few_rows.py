"""Catalogues with fewer rows than processes would like: trained as on one process, or refused in one line."""

import itertools
import math
from typing import Any

import pytest

from tests.conftest import long
from tests.sharding.jobs import train_few_items

LOSSES = ("softmax", "sampled_softmax", "gbce")
SHARDINGS: dict[str, dict[str, Any]] = {
    "ddp": {"parallelism.mode": "ddp"},
    **{name: {"parallelism.sharding_type": name} for name in ("row_wise", "table_wise", "auto")},
    # Row-wise Adagrad, the default on CPU, is another algorithm where a row is cut, and refused.
    "column_wise": {"parallelism.sharding_type": "column_wise", "parallelism.sparse_optimizer": "adagrad"},
    "linear head": {"model.head": "linear"},
    "groups": {"parallelism.sharding_group_size": 2},
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
        long((1, 2, 7), "groups"),
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
    without = SHARDINGS["ddp"] | {"parallelism.sharding_group_size": 0}
    (alone,) = pools(1).run(train_few_items, cases(sizes, SHARDINGS[sharding] | without))
    for n_processes in (2, 4) if sharding == "groups" else (1, 2, 3, 4):
        for answers in pools(n_processes).run(train_few_items, wanted):
            for (n_items, changes), answer, expected in zip(wanted, answers, alone, strict=True):
                if n_items == 1 and changes["training.loss"] != "softmax":
                    assert answer == expected
                    assert "training.loss" in answer
                    continue
                where = f"{n_items} items on {n_processes} processes, {changes}"
                assert answer["planned"] == answer["held"], where  # also where a process has no rows
                assert len(answer["losses"]) == 2, where
                assert all(map(math.isfinite, answer["losses"])), where
                assert answer["losses"][0] == pytest.approx(expected["losses"][0], abs=1e-4), where
                assert len(answer["ranks"]) == 10, where
                assert all(0 <= rank <= n_items for rank in answer["ranks"]), where  # 0: a repeated target is missed
