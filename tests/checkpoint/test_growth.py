"""Checkpoints with room for new items: what was trained is what it was, to the bit; the first rows, written out."""

import itertools
import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bert4rec.checkpoint import growth
from bert4rec.checkpoint.growth import (
    DIRECTION,
    SAVED_HEAD,
    SAVED_HEAD_BIAS,
    SAVED_TABLE,
    initialize_new_items,
    read_grown,
    rows_of_items,
    write_grown,
)
from bert4rec.checkpoint.run_folder import METADATA_VERSION, found
from bert4rec.checkpoint.run_folder import read_metadata as read_facts
from bert4rec.checkpoint.store import verify
from bert4rec.checkpoint.stored_tensors import LATEST
from bert4rec.dataset.histories import Histories
from bert4rec.models import names
from bert4rec.runtime.errors import DataError
from tests.conftest import long
from tests.fixture_types import Patch, Settings
from tests.folders import histories_of
from tests.processes import jobs

# Items 0, 1, 2 are known, 3, 4, 5 new; item 5 is in no history.
TRAINED = [[0, 3, 1], [3, 2, 0, 0, 4], [4]]
POPULARITY = np.array([2, 2, 1, 2, 2, 0], np.int32)
BESIDE = {3: [0, 1, 2, 0, 0], 4: [0, 0, 2]}  # at most 3 places away
KNOWN = torch.tensor([[1.0, 0.0], [0.0, 3.0], [2.0, 0.0]])
MEAN = torch.tensor([1.0, 1.0])
LENGTHS = (1 + math.sqrt(5) + math.sqrt(2)) / 3  # of the known ones' differences from it, on average
OF_NEW = 0.8  # of that


@pytest.fixture
def histories(tmp_path: Path) -> Histories:
    return histories_of(tmp_path, TRAINED)


def filled(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """With room for as many new ones."""
    return [torch.cat([tensor, torch.zeros_like(tensor)]) for tensor in tensors]


def initialized(tensors: dict[str, torch.Tensor], histories: Histories) -> int:
    return initialize_new_items(tensors, histories, POPULARITY, n_known=3, embed_dim=2)


def vector(item: int) -> torch.Tensor:
    difference = KNOWN[BESIDE[item]].mean(0) - MEAN
    return MEAN + difference * OF_NEW * LENGTHS / difference.norm()


@pytest.mark.parametrize("n_at_once", [1, 1024])
def test_a_new_item_starts_at_its_neighbours(monkeypatch: Patch, histories: Histories, n_at_once: int) -> None:
    """A table has two columns of a vector, its bias, and a column that stays zero; Adagrad has a number a row."""
    monkeypatch.setattr(growth, "HISTORIES_AT_ONCE", n_at_once)
    biases = torch.tensor([[0.5, 0.0], [0.1, 0.0], [0.0, 0.0]])
    (table,) = filled(torch.cat([KNOWN, biases], 1))
    (sums,) = filled(torch.tensor([4.0, 8.0, 1.0]))
    old, latest, other = table[:3].clone(), table.clone(), 2 * table
    tensors = {SAVED_TABLE: table, LATEST + names.TABLE: latest, "optimizer.item_table.sum": sums}
    assert initialized(tensors, histories) == 1
    assert torch.equal(table[:3], old)
    torch.testing.assert_close(table[3:, :2], torch.stack([vector(3), vector(4), MEAN]))
    # Two known items occur twice, with biases of 0.3 on average, one occurs once, with none: a line through both.
    slope = 0.3 / (math.log(3) - math.log(2))
    torch.testing.assert_close(table[3:, 2], torch.tensor([0.3, 0.3, slope * -math.log(2)]))
    assert not table[3:, 3].any()
    torch.testing.assert_close(sums, torch.tensor([4.0, 8, 1, 21 / 5, 9 / 3, 13 / 3]))
    assert torch.equal(latest, table)
    initialized({SAVED_TABLE: latest.clone(), LATEST + names.TABLE: other}, histories)
    torch.testing.assert_close(other[3:, :2], 2 * table[3:, :2])


def test_a_linear_head_has_vectors_and_biases_of_its_own(histories: Histories) -> None:
    (table,) = filled(KNOWN)
    head, bias, directions, squares = filled(2 * KNOWN, torch.tensor([0.3, 0.3, 0.0]), KNOWN, KNOWN)
    moments = {f"optimizer.head.weight{DIRECTION}": directions, "optimizer.head.weight.exp_avg_sq": squares}
    assert initialized({SAVED_TABLE: table, SAVED_HEAD: head, SAVED_HEAD_BIAS: bias, **moments}, histories) == 1
    torch.testing.assert_close(table[3:5], torch.stack([vector(3), vector(4)]))
    torch.testing.assert_close(head[3:], 2 * torch.stack([vector(3), vector(4), MEAN]))
    torch.testing.assert_close(bias[3:5], torch.tensor([0.3, 0.3]))
    assert not directions[3:].any()
    torch.testing.assert_close(squares[3:], torch.stack([KNOWN[BESIDE[3]].mean(0), KNOWN[BESIDE[4]].mean(0), MEAN]))


@pytest.mark.parametrize(
    "settings",
    [
        {"parallelism.sharding_type": "row_wise"},
        {"parallelism.sharding_type": "column_wise", "parallelism.sparse_optimizer": "adagrad"},
        {"parallelism.mode": "ddp", "model.head": "linear"},
        long({"parallelism.sharding_type": "table_wise"}),
        long({"parallelism.mode": "ddp"}),
    ],
)
def test_old_rows_come_from_any_sharding_and_new_ones_are_zeros(
    group_of_one: None, pools: Any, small_config: Settings, tmp_path: Path, monkeypatch: Patch, settings: dict[str, Any]
) -> None:
    held = pools(2).run(jobs.train_part, small_config(**{"parallelism.mode": "dmp"} | settings), tmp_path, until=2)
    (checkpoint,) = found(tmp_path)
    tensors = read_grown(checkpoint, 3)
    belonging = {name: name.split(".")[1] for name, _ in rows_of_items(tensors)}
    n_rows = {"item_table": 130 + 3} | ({"head": 130 + 3} if "model.head" in settings else {})
    assert {*belonging.values()} == n_rows.keys()
    write_grown(tmp_path / "grown", tensors, {"facts_version": METADATA_VERSION})
    verify(tmp_path / "grown")
    assert read_facts(tmp_path / "grown").keys() == {"facts_version"}
    again = read_grown(tmp_path / "grown", 0)
    assert again.keys() == tensors.keys() >= {"random.cpu.0", "random.cpu.1"}
    weights = "latest" if any(name.startswith("latest.") for name in again) else "model"  # a mean beside them
    for process, (prefix, kind) in itertools.product(held, ((weights, "weights"), ("optimizer", "moments"))):
        for name, placed in process[kind].items():
            tensor = again[f"{prefix}.{name}"].numpy()
            for row, column, values in placed:
                rows = tensor[row : row + len(values)]
                there = rows[:, column : column + values.shape[1]] if values.ndim > 1 else rows
                np.testing.assert_array_equal(there, values)
    for name, owner in belonging.items():
        assert len(again[name]) == n_rows[owner]
        assert not again[name][-3:].any()
    n_bytes = sum(tensor.nbytes for tensor in again.values())
    for room, refusal in ((n_bytes, nullcontext()), (n_bytes - 1, pytest.raises(DataError, match=str(checkpoint)))):
        monkeypatch.setattr(growth, "host_memory", lambda room=room: room)
        with refusal:
            read_grown(checkpoint, 3)
