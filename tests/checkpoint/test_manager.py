"""Which checkpoints a run makes and keeps."""

import itertools
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bert4rec.checkpoint import store
from bert4rec.checkpoint.run_folder import found
from bert4rec.checkpoint.store import SaveError
from bert4rec.runtime.errors import Interrupted
from bert4rec.training.run import run
from tests.fixture_types import Capture, Patch, Settings
from tests.processes import jobs
from tests.runs import Make, report_of, steps

pytestmark = pytest.mark.usefixtures("alone")


def test_the_best_that_could_be_saved_stays(make: Make, monkeypatch: Patch, capsys: Capture) -> None:
    write, calls = store._write_shards, itertools.count(1)

    def full_at_the_best(*args: Any) -> None:
        if next(calls) == 2:
            raise SaveError("the disk is full")
        write(*args)

    monkeypatch.setattr(store, "_write_shards", full_at_the_best)
    best = {"training.seed": 6, "parallelism.sparse_optimizer": "rowwise_adagrad", "model.positions": "learned"}
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
