"""Checkpoints with room for new items: whatever was trained is what it was, to the bit."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bert4rec.checkpoint import grown
from bert4rec.checkpoint.growth import read_grown, rows_of_items, write_grown
from bert4rec.checkpoint.run_folder import found
from bert4rec.checkpoint.store import read_metadata, save, verify
from bert4rec.runtime.errors import DataError
from tests.fixture_types import Patch, Settings
from tests.processes import jobs

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of the libraries about themselves

DMP, DDP = {"parallelism.mode": "dmp"}, {"parallelism.mode": "ddp"}
WAYS = {
    "row-wise": DMP | {"parallelism.sharding_type": "row_wise"},
    "table-wise": DMP | {"parallelism.sharding_type": "table_wise"},
    "column-wise": DMP | {"parallelism.sharding_type": "column_wise", "parallelism.sparse_optimizer": "adagrad"},
    "replicated": DDP,
    "linear head": DDP | {"model.head": "linear"},
}


@pytest.mark.parametrize("settings", WAYS.values(), ids=WAYS)
def test_old_rows_come_from_any_sharding(
    group_of_one: None, pools: Any, small_config: Settings, tmp_path: Path, settings: dict[str, Any]
) -> None:
    """Two processes have trained; what each of them held stands where it stood, and the new rows are zeros."""
    held = pools(2).run(jobs.train_part, small_config(**settings), tmp_path, until=2)
    (checkpoint,) = found(tmp_path)
    tensors = read_grown(checkpoint, 3)
    belonging = {name: name.split(".")[1] for name, _ in rows_of_items(tensors)}
    n_rows = {"item_table": 130 + 2 + 3} | ({"head": 130 + 3} if "model.head" in settings else {})
    assert {*belonging.values()} == n_rows.keys()
    write_grown(tmp_path / "grown", tensors, {"step": 0})
    verify(tmp_path / "grown")
    assert read_metadata(tmp_path / "grown") == {"step": 0}
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


def test_rows_of_items_are_views_without_those_of_special_ids() -> None:
    table, head, other = torch.arange(10.0).view(5, 2), torch.arange(3.0), torch.zeros(4)
    named = {"model.item_table.embeddings.item.weight": table, "model.head.bias": head, "model.user_table.x": other}
    found_rows = dict(rows_of_items(named))
    assert found_rows["model.item_table.embeddings.item.weight"].tolist() == [[4, 5], [6, 7], [8, 9]]
    assert found_rows.keys() == named.keys() - {"model.user_table.x"}
    found_rows["model.head.bias"][2] = 7
    assert head[2] == 7


def test_what_does_not_fit_in_memory_is_refused_before_it_is_read(
    group_of_one: None, tmp_path: Path, monkeypatch: Patch
) -> None:
    save(tmp_path / "one", {"model.item_table.embeddings.item.weight": torch.zeros(5, 4)}, {})
    monkeypatch.setattr(grown, "host_memory", lambda: 111)
    with pytest.raises(DataError, match="2 new rows"):
        read_grown(tmp_path / "one", 2)
    monkeypatch.setattr(grown, "host_memory", lambda: 112)
    assert read_grown(tmp_path / "one", 2)["model.item_table.embeddings.item.weight"].shape == (7, 4)
