"""Checkpoints with room for new items: what was trained is what it was, to the bit; the first rows, written out."""

import itertools
import math
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
    neighbours,
    read_grown,
    rows_of_items,
    write_grown,
)
from bert4rec.checkpoint.run_folder import METADATA_VERSION, found
from bert4rec.checkpoint.run_folder import read_metadata as read_facts
from bert4rec.checkpoint.store import save, verify
from bert4rec.checkpoint.stored_tensors import LATEST
from bert4rec.dataset.histories import Histories
from bert4rec.dataset.reader import read_metadata
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


def test_the_weights_after_the_last_step_get_new_rows_like_their_mean(histories: Histories) -> None:
    (mean,) = filled(torch.cat([KNOWN, torch.ones(3, 2)], 1))
    latest, twice = mean.clone(), 2 * mean
    initialized({SAVED_TABLE: mean}, histories)
    initialized({SAVED_TABLE: mean.clone(), LATEST + names.TABLE: latest}, histories)
    assert torch.equal(latest, mean)
    initialized({SAVED_TABLE: latest, LATEST + names.TABLE: twice}, histories)
    torch.testing.assert_close(twice[3:, :2], 2 * mean[3:, :2])


@pytest.mark.parametrize("n_at_once", [1, 1024])
def test_a_new_item_starts_at_its_neighbours(monkeypatch: Patch, histories: Histories, n_at_once: int) -> None:
    """Two columns of a vector, its bias, and a column that stays zero; a number a row of row-wise Adagrad."""
    monkeypatch.setattr(growth, "HISTORIES_AT_ONCE", n_at_once)
    biases = torch.tensor([[0.5, 0.0], [0.1, 0.0], [0.0, 0.0]])
    (table,) = filled(torch.cat([KNOWN, biases], 1))
    (sums,) = filled(torch.tensor([4.0, 8.0, 1.0]))
    old = table[:3].clone()
    assert initialized({SAVED_TABLE: table, "optimizer.item_table.sum": sums}, histories) == 1
    assert torch.equal(table[:3], old)
    torch.testing.assert_close(table[3:, :2], torch.stack([vector(3), vector(4), MEAN]))
    # Two known items occur twice, with biases of 0.3 on average, one occurs once, with none: a line through both.
    slope = 0.3 / (math.log(3) - math.log(2))
    torch.testing.assert_close(table[3:, 2], torch.tensor([0.3, 0.3, slope * -math.log(2)]))
    assert not table[3:, 3].any()
    torch.testing.assert_close(sums, torch.tensor([4.0, 8, 1, 21 / 5, 9 / 3, 13 / 3]))


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


def test_pairs_do_not_reach_into_the_next_history(histories: Histories) -> None:
    rows = histories.read(np.arange(3), np.zeros(3, np.int64), histories.n_train)
    pairs = [pair for both in neighbours(rows, 3) for pair in zip(*both, strict=True)]
    beside = {new: sorted(int(known) for item, known in pairs if item == new - 3) for new in (3, 4, 5)}
    assert beside == {3: sorted(BESIDE[3]), 4: sorted(BESIDE[4]), 5: []}


def test_a_real_split_is_read_as_it_is_stored(grown_folder: Path) -> None:
    n_items = read_metadata(grown_folder)["items"]
    table = torch.cat([torch.randn(8, 4), torch.zeros(2, 4)])
    histories = Histories(grown_folder, n_items)
    popularity = np.ones(n_items, np.int32)
    assert initialize_new_items({SAVED_TABLE: table}, histories, popularity, n_known=8, embed_dim=4) == 0
    assert table.isfinite().all()


DMP, DDP = {"parallelism.mode": "dmp"}, {"parallelism.mode": "ddp"}
WAYS = {
    "row-wise": DMP | {"parallelism.sharding_type": "row_wise"},
    "table-wise": DMP | {"parallelism.sharding_type": "table_wise"},
    "column-wise": DMP | {"parallelism.sharding_type": "column_wise", "parallelism.sparse_optimizer": "adagrad"},
    "replicated": DDP,
    "linear head": DDP | {"model.head": "linear"},
}


@pytest.mark.parametrize(
    "settings",
    [WAYS["row-wise"], WAYS["column-wise"], WAYS["linear head"], long(WAYS["table-wise"]), long(WAYS["replicated"])],
)
def test_old_rows_come_from_any_sharding(
    group_of_one: None, pools: Any, small_config: Settings, tmp_path: Path, settings: dict[str, Any]
) -> None:
    """Two processes have trained; the rows of both are unchanged, and the new rows are zeros."""
    held = pools(2).run(jobs.train_part, small_config(**settings), tmp_path, until=2)
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


def test_rows_of_items_are_views_of_the_tables_and_heads() -> None:
    table, head, other = torch.arange(6.0).view(3, 2), torch.arange(3.0), torch.zeros(4)
    named = {"model.item_table.embeddings.item.weight": table, "model.head.bias": head, "model.user_table.x": other}
    found_rows = dict(rows_of_items(named))
    assert found_rows["model.item_table.embeddings.item.weight"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert found_rows.keys() == named.keys() - {"model.user_table.x"}
    found_rows["model.head.bias"][2] = 7
    assert head[2] == 7


def test_what_does_not_fit_in_memory_is_refused_before_it_is_read(
    group_of_one: None, tmp_path: Path, monkeypatch: Patch
) -> None:
    save(tmp_path / "one", {"model.item_table.embeddings.item.weight": torch.zeros(5, 4)}, {})
    monkeypatch.setattr(growth, "host_memory", lambda: 111)
    with pytest.raises(DataError, match=str(tmp_path)):
        read_grown(tmp_path / "one", 2)
    monkeypatch.setattr(growth, "host_memory", lambda: 112)
    assert read_grown(tmp_path / "one", 2)["model.item_table.embeddings.item.weight"].shape == (7, 4)
