"""Checkpoints on the disk, their tensors read without a process group, and which ones a run makes and keeps."""

import itertools
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor, ShardedTensorMetadata
from torch.distributed._shard.sharding_spec import ShardMetadata
from torch.distributed.remote_device import _remote_device

from bert4rec.checkpoint import store
from bert4rec.checkpoint.run_folder import METADATA_VERSION, found, read_metadata
from bert4rec.checkpoint.store import Copies, SaveError, in_pieces, load, save, verify
from bert4rec.checkpoint.stored_tensors import StoredTensors
from bert4rec.runtime.errors import Interrupted
from bert4rec.training.run import run
from tests.checks import one_line
from tests.fixture_types import Capture, Patch, Settings
from tests.processes import jobs
from tests.runs import Make, report_of, steps
from tests.sharding.sharded import sharded

pytestmark = pytest.mark.usefixtures("alone")


def copied_from_a_gpu() -> tuple[list[str], list[Any]]:
    """Return the device that the copy of a table on a GPU reports, and the values of its pieces."""
    shard = Shard(torch.arange(6.0).view(3, 2), ShardMetadata([0, 0], [3, 2], "rank:0/cpu"))
    metadata = ShardedTensorMetadata([shard.metadata], torch.Size([3, 2]))
    table = ShardedTensor._init_from_local_shards_and_global_metadata([shard], metadata)
    shard.metadata.placement = _remote_device("rank:0/cuda:0")
    with mock.patch.object(torch.Tensor, "is_pinned", return_value=True):  # as the memory for a GPU's copies is
        (piece,) = in_pieces(Copies().of({"table": table}))["table"].local_shards()
    return [str(piece.metadata.placement)], piece.tensor.tolist()


def test_a_copy_lies_on_the_host(pools: Any) -> None:
    assert pools(1).run(copied_from_a_gpu) == [(["rank:0/cpu"], [[0, 1], [2, 3], [4, 5]])]


def test_shards_that_every_group_has_are_written_once(pools: Any, small_config: Make, tmp_path: Path) -> None:
    settings = {"parallelism.sharding_group_size": 2, "training.per_device_train_batch_size": 24}
    pools(4).run(jobs.train_part, small_config(**settings), tmp_path, until=1)
    (checkpoint,) = found(tmp_path)
    written = dcp.FileSystemReader(checkpoint).read_metadata().storage_data
    assert sum(place.length for place in written.values()) == sum(
        file.stat().st_size for file in checkpoint.glob("*.distcp")
    )
    offsets = [index.offset for index in written if index.fqn == "model.item_table.embeddings.item.weight"]
    assert sorted(offsets) == [(0, 0), (65, 0)]


def test_files_that_rank_zero_does_not_see_make_no_checkpoint(make: Make, monkeypatch: Patch, capsys: Capture) -> None:
    describe = store._describe
    ghost = {"__1_0.distcp": {"bytes": 7, "sha256": "0"}}
    monkeypatch.setattr(store, "_describe", lambda *args: describe(*args) | ghost)
    with pytest.raises(SaveError):
        run(make(**{"checkpoint.async": False}))
    assert re.search(r"__1_0.distcp: .* run.dir ", capsys.readouterr().out)


def test_a_kill_while_a_checkpoint_replaces_another_loses_none(make: Make, whole: Path, capsys: Capture) -> None:
    before, (*_, older, newest) = report_of(whole), found(whole / "checkpoints")
    newest.rename(newest.with_name(newest.name + ".old"))
    for path in (newest.with_name(newest.name + ".tmp"), older.with_name(older.name + ".old")):
        path.mkdir()
    assert len(found(whole / "checkpoints")) == 2
    run(make(**{"run.resume": str(whole)}))
    assert f"from {newest}\n" in capsys.readouterr().out
    assert report_of(whole)["test"] == before["test"]
    assert {path.suffix for path in (whole / "checkpoints").iterdir()} == {""}


def test_what_a_checkpoint_does_not_hold_or_no_longer_holds_is_one_line(group_of_one: None, tmp_path: Path) -> None:
    save(tmp_path / "one", {"weight": torch.zeros(2)}, {})
    with one_line(f"{tmp_path}/one: "):
        load(tmp_path / "one", {"bias": torch.zeros(2)})
    (tmp_path / "one" / "facts.json").unlink()
    with one_line(f"{tmp_path}/one: ", "facts.json"):
        verify(tmp_path / "one")


def test_copies_are_made_in_the_same_memory_again(group_of_one: None) -> None:
    copies, weight = Copies(), torch.tensor([1.0, 2.0])
    first = copies.of({"weight": weight})["weight"]
    weight[0] = 7
    assert first.tolist() == [1.0, 2.0]
    assert copies.of({"weight": weight})["weight"] is first
    assert first.tolist() == [7.0, 2.0]


ELEVEN = torch.arange(44.0).view(11, 4)
CUTS = {  # rows and columns of each shard
    "row-wise": [(slice(0, 5), slice(0, 4)), (slice(5, 11), slice(0, 4))],
    "column-wise": [(slice(0, 11), slice(0, 1)), (slice(0, 11), slice(1, 4))],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("cut", CUTS)
def test_what_was_saved_is_read_back(
    group_of_one: None, tmp_path: Path, monkeypatch: Patch, cut: str, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(store, "PIECE_BYTES", 12 * dtype.itemsize)  # three whole rows
    folder, weight, table = tmp_path / "one", torch.tensor([0.1, -0.0]), ELEVEN.to(dtype)
    pieces = in_pieces({"table": sharded(table)})["table"].local_shards()
    assert [piece.metadata.shard_offsets for piece in pieces] == [[0, 0], [3, 0], [6, 0], [9, 0]]
    assert pieces[1].tensor.data_ptr() == table[3:].data_ptr()
    facts = {"facts_version": METADATA_VERSION, "step": 3, "name": "ä"}
    save(folder, {"table": sharded(table, CUTS[cut]), "weight": weight, "scale": torch.tensor(7)}, facts)
    assert [path.name for path in tmp_path.iterdir()] == ["one"]
    verify(folder)
    assert read_metadata(folder) == facts
    wanted = {"table": sharded(torch.zeros(11, 4, dtype=dtype)), "weight": torch.zeros(2)}
    load(folder, wanted)
    assert torch.equal(wanted["table"].local_shards()[0].tensor, table)
    assert wanted["weight"].numpy().tobytes() == weight.numpy().tobytes()
    dist.destroy_process_group()
    stored = StoredTensors(folder)
    assert {*stored} == {"table", "weight", "scale"}
    assert (stored.shape("table"), stored.dtype("table")) == ((11, 4), torch.float32)
    blocks = list(stored.blocks("table"))
    assert len(blocks) >= 3
    assert torch.equal(torch.cat(blocks), ELEVEN)
    assert torch.equal(stored.read("table"), ELEVEN)
    assert torch.equal(stored.read("weight"), weight)


def test_the_best_that_could_be_saved_stays(make: Make, monkeypatch: Patch, capsys: Capture) -> None:
    write, calls = store._write_shards, itertools.count(1)

    def full_at_the_best(*args: Any) -> None:
        if next(calls) == 2:
            raise SaveError("the disk is full")
        write(*args)

    monkeypatch.setattr(store, "_write_shards", full_at_the_best)
    best = {
        "training.seed": 4, "training.optimizer": "adamw", "parallelism.sparse_optimizer": "rowwise_adagrad",
        "model.positions": "learned",
    }  # fmt: skip
    folder = run(make(**best, **{"training.n_epochs": 4, "checkpoint.keep": 1}))  # the second is the best
    assert "warning: " in capsys.readouterr().out
    assert report_of(folder)["training"]["best_epoch"] == 1
    assert steps(folder) == [7, 28]


@pytest.mark.usefixtures("group_of_one")
def test_a_save_that_would_take_too_long_is_left_out(pools: Any, small_config: Settings, tmp_path: Path) -> None:
    config = small_config(**{"training.per_device_train_batch_size": 6})
    how = {"where": "bert4rec.models.sequence_model.Bert4Rec.forward", "call": 6, "rank": 1}
    parts = pools(2).run(jobs.train_signalled, config, tmp_path, **how, every_steps=4, seconds_on_signal=0.0)
    for part in parts:
        assert "checkpoint.seconds_on_signal = 0" in part["interrupted"]
    assert [path.name for path in found(tmp_path)] == ["step-000000004"]
    tensors = {"x": torch.empty(250_000_000, device="meta")}  # as long as no save was measured, 100 MB a second
    jobs.manager(tmp_path, seconds_on_signal=8.0).require_time_to_save(tensors, 15)
    jobs.manager(tmp_path, last_step=4, seconds_on_signal=10.0).require_time_to_save(tensors, 15)
    with pytest.raises(Interrupted, match=r"checkpoint\.seconds_on_signal"):
        jobs.manager(tmp_path, last_step=4, seconds_on_signal=8.0).require_time_to_save(tensors, 15)


def test_the_best_and_its_link_stay_beside_the_last(group_of_one: None, tmp_path: Path, monkeypatch: Patch) -> None:
    checkpoints, removed, remove = tmp_path / "checkpoints", list[str](), shutil.rmtree
    manager = jobs.manager(checkpoints, keep=2)

    def removing(path: Path, **options: Any) -> None:
        remove(path, **options)
        if re.fullmatch(r"step-\d+", path.name):
            removed.append(path.name)
            assert (checkpoints / "best").is_dir()

    monkeypatch.setattr(shutil, "rmtree", removing)
    for step, best in ((1, 1), (2, 2), (3, 2), (40, 2), (50, 2)):
        manager.save(step, {"x": torch.tensor([step])}, {}, best_step=best)
    assert removed == ["step-000000001", "step-000000003"]
    assert steps(tmp_path) == [2, 40, 50]
    assert (checkpoints / "best").readlink() == Path("step-000000002")
    assert manager.best(2) == manager.best(3) == checkpoints / "step-000000002"
    assert manager.last_step == 50
    assert "step-000000050" in manager.kept()
    manager.save(60, {"x": torch.tensor([60])}, {}, best_step=60)
    assert (checkpoints / "best").readlink() == Path("step-000000060")


def test_a_checkpoint_is_due_by_steps_and_by_minutes(group_of_one: None, tmp_path: Path, monkeypatch: Patch) -> None:
    now = 1000.0
    monkeypatch.setattr("bert4rec.checkpoint.contents.time", SimpleNamespace(monotonic=lambda: now))
    managers = [jobs.manager(tmp_path, **when) for when in ({}, {"every_steps": 3}, {"every_minutes": 0.5})]
    now = 1029.9
    assert [[step for step in range(1, 8) if one.is_due(step)] for one in managers] == [[], [3, 6], []]
    now = 1030.0
    assert [one.is_due(1) for one in managers] == [False, False, True]
    managers[2].save(1, {"x": torch.zeros(1)}, {}, best_step=1)
    assert not managers[2].is_due(2)


def test_a_checkpoint_that_cannot_be_written_is_told(group_of_one: None, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "checkpoints"
    manager = jobs.manager(folder)
    manager.save(7, {"x": torch.zeros(1)}, {}, best_step=7)
    assert f"{folder}/step-000000007.tmp: " in capsys.readouterr().out
    assert (manager.last_step, manager.best(7)) == (0, None)
