"""Whole runs that are interrupted, damaged, and resumed, or begin with the weights of others."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from bert4rec.checkpoint.resume import changes, check_settings
from bert4rec.checkpoint.run_folder import METADATA_VERSION, found
from bert4rec.checkpoint.store import verify
from bert4rec.config.load import load_config
from bert4rec.dataset.reader import Dataset
from bert4rec.dataset.runs import CATALOGUE, fingerprint_of, runs_of
from bert4rec.report.log import read_records
from bert4rec.runtime.console import log_to_terminal
from bert4rec.runtime.errors import DataError, Interrupted, SettingsError
from bert4rec.runtime.processes import group_of_one
from bert4rec.training.run import run
from tests.conftest import leave_group
from tests.fixture_types import Capture, Patch
from tests.runs import FORWARD, Make, assert_same_results, edit_facts, flip, in_step, interrupted, report_of, steps

pytestmark = pytest.mark.usefixtures("alone")

REPORTS = {("learning_curve", "png"), ("examples", "json"), ("report", "html"), ("report", "md"), ("report", "json")}


@pytest.mark.long
def test_loader_processes_may_come_and_go(make: Make, whole: Path, monkeypatch: Patch) -> None:
    changes = {"run.name": "broken", "run.resume": "auto"}
    with monkeypatch.context() as patch:
        in_step(patch, *FORWARD, 10)
        assert "saved after step" in interrupted(make(**changes, **{"training.num_workers": 2}))
    assert_same_results(run(make(**changes)), whole)


@pytest.mark.long
def test_another_batch_size_goes_on_behind_the_seen(make: Make, small_dataset: Dataset, monkeypatch: Patch) -> None:
    n_sequences = len(small_dataset.windows(max_len=12, step=12))
    changes = {"training.lr_schedule": "linear", "run.name": "broken"}
    with monkeypatch.context() as patch:
        in_step(patch, *FORWARD, 4)
        assert interrupted(make(**changes)).endswith("step 5")  # of 16 sequences each
    folder = run(make(**changes, **{"training.per_device_train_batch_size": 10, "run.resume": "auto"}))
    training = report_of(folder)["training"]
    assert training["steps"] == 5 + -(-(n_sequences - 80) // 10) + 2 * -(-n_sequences // 10)
    assert training["epochs"] == 3
    rates = {record["epoch"]: record["learning_rate"] for record in read_records(folder, "train")}
    assert [rates[epoch] for epoch in (1, 2, 3)] == pytest.approx([0.002 * 2 / 3, 0.002 / 3, 0.0])  # that of 16


def test_a_finished_run_goes_on_with_more_epochs(make: Make, whole: Path) -> None:
    longer = run(make(**{"run.name": "longer", "training.n_epochs": 4}))
    picture = (whole / "learning_curve.png").read_bytes()
    assert run(make(**{"run.resume": str(whole), "training.n_epochs": 4})) == whole
    assert_same_results(whole, longer)
    assert json.loads((whole / "report-before.json").read_text())["training"]["epochs"] == 3
    assert (whole / "learning_curve-before.png").read_bytes() == picture
    assert "](learning_curve.png)" in (whole / "report.md").read_text()
    assert read_records(whole, "validation") == read_records(longer, "validation")
    assert read_records(whole, "resume") == [
        {"kind": "resume", "step": 21, "world_size": 1, "changed": {"training.n_epochs": [3, 4]}}
    ]
    run(make(**{"run.resume": str(whole), "training.n_epochs": 5}))
    for number in ("", "-2"):
        names = {path.name for path in whole.glob(f"*-before{number}.*")}
        assert names == {f"{name}-before{number}.{end}" for name, end in REPORTS}
        assert f"](learning_curve-before{number}.png)" in (whole / f"report-before{number}.md").read_text()


def test_from_an_earlier_checkpoint_the_newer_ones_are_quarantined(make: Make, whole: Path, small_folder: Path) -> None:
    shutil.rmtree(whole / CATALOGUE)  # as of a run that an earlier version began
    before, first = report_of(whole), read_records(whole, "train")[0]
    with (whole / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "tr')  # torn
    run(make(**{"run.resume": str(whole / "checkpoints" / "step-000000007")}))
    assert report_of(whole)["test"] == before["test"]
    assert steps(whole) == [7, 14, 21]
    aside = sorted(path.name for path in (whole / "checkpoints" / "set-aside").iterdir())
    assert aside == ["step-000000014", "step-000000021"]
    assert [record["step"] for record in read_records(whole, "validation")] == [7, 14, 21]
    assert read_records(whole, "train")[0] == first
    assert len(read_records(whole, "resume")) == 1
    assert fingerprint_of(whole / CATALOGUE) == fingerprint_of(small_folder)
    assert whole in runs_of(small_folder)


def test_a_damaged_checkpoint_is_skipped_aloud(make: Make, whole: Path, capsys: Capture) -> None:
    before, newest = report_of(whole), found(whole / "checkpoints")[-1]
    flip(newest / "__0_0.distcp", 1000)
    run(make(**{"run.resume": str(whole)}))
    (warning,) = [line for line in capsys.readouterr().out.splitlines() if "warning: " in line and str(newest) in line]
    assert "__0_0.distcp" in warning
    assert report_of(whole)["test"] == before["test"]
    for path in found(whole / "checkpoints"):
        flip(path / "facts.json", 5)
    with pytest.raises(DataError, match=f"{whole / 'checkpoints'}: "):
        run(make(**{"run.resume": str(whole)}))


def test_what_a_run_began_with_stays(make: Make, whole: Path, tmp_path: Path, small_folder: Path) -> None:
    copy = Path(shutil.copytree(small_folder, tmp_path / "copy"))
    metadata = json.loads((copy / "metadata.json").read_text())
    (copy / "metadata.json").write_text(json.dumps(metadata | {"fingerprint": "f" * 64}))
    for name, value, named in (
        ("evaluation.seen_items", "keep", ""), ("model.embed_dim", 32, ""), ("training.learning_rate", 0.5, ""),
        ("parallelism.sparse_optimizer", "sgd", ""), ("training.optimizer", "sgd", ""),
        ("data.dataset_dir", str(copy), "ffffffffffff"),
    ):  # fmt: skip
        with pytest.raises(SettingsError, match=named or f"{name} = "):
            run(make(**{"run.resume": str(whole), name: value}))
        leave_group()
    assert steps(whole) == [7, 14, 21]
    assert (whole / "report.json").exists()
    newest = found(whole / "checkpoints")[-1]
    edit_facts(newest, lambda facts: facts.update(facts_version=METADATA_VERSION - 1))
    with pytest.raises(DataError, match=f"{newest}: "):
        run(make(**{"run.resume": str(whole)}))


def test_a_closed_terminal_is_no_reason_to_lose_anything(make: Make, whole: Path, monkeypatch: Patch) -> None:
    read, write = os.pipe()
    os.close(read)
    log_to_terminal(outlives_reader=True)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored, as it is meant to be
    with monkeypatch.context() as patch:
        patch.setattr("sys.stdout", os.fdopen(write, "w", closefd=False))
        in_step(patch, *FORWARD, 4, sent=signal.SIGHUP)
        with pytest.raises(Interrupted) as caught:
            run(make(**{"run.name": "broken"}))
    leave_group()
    assert caught.value.status == 129
    with group_of_one():
        verify(found(whole.parent / "broken" / "checkpoints")[-1])


def test_a_setting_that_the_run_does_not_know_has_not_changed() -> None:
    run_config = {"model": {"embed_dim": 8}, "training": {"patience": 3}}
    saved = {"facts_version": METADATA_VERSION, "fingerprint": "x", "config": run_config}
    settings = {"model": {"embed_dim": 8, "n_heads": 2}, "training": {"optimizer": "adamw", "patience": 4}}
    assert changes(saved, settings) == {"training.patience": [3, 4]}
    check_settings(saved, settings, "x")  # it is no part of the model that is trained


@pytest.mark.long
def test_where_the_best_is_lost_the_search_starts_again(make: Make, capsys: Capture) -> None:
    second_is_best = {"training.seed": 4, "parallelism.sparse_optimizer": "rowwise_adagrad"}
    folder = run(make(**second_is_best))
    assert report_of(folder)["training"]["best_epoch"] == 2
    shutil.rmtree((folder / "checkpoints" / "best").resolve())
    run(make(**{"run.resume": str(folder)}, **second_is_best))
    assert "warning: " in capsys.readouterr().out
    assert report_of(folder)["training"]["best_epoch"] == 3


def test_a_run_may_start_from_the_weights_of_another(make: Make, whole: Path) -> None:
    started = run(make(**{"run.name": "started", "run.init_from": str(whole), "training.max_minutes": 1e-9}))
    first = read_records(started, "train")[0]["loss"]
    assert first < read_records(whole, "train")[0]["loss"] - 0.05
    assert report_of(started)["training"]["steps"] == 1
    best = whole / "checkpoints" / "best"
    edit_facts(best, lambda facts: facts.update(items="0" * 12))  # as from other data with as many items
    for place, other, named in (
        (whole, {"model.n_layers": 1}, "n_layers"), ("no/where", {}, r"run\.init_from"), (best, {}, "000000000000"),
    ):  # fmt: skip
        with pytest.raises(SettingsError, match=named):
            run(make(**{"run.init_from": str(place)} | other))
        leave_group()


def test_the_dataset_may_move_and_the_device_be_another(make: Make, whole: Path, tmp_path: Path) -> None:
    moved, resumed = tmp_path / "moved", {"run.resume": str(whole), "training.n_epochs": 4}
    shutil.copytree(make().data.folder, moved)
    with pytest.raises(DataError, match=f"--resume={whole}"):
        run(make(**resumed, **{"data.dataset_dir": str(tmp_path / "gone")}))
    leave_group()
    edit_facts(found(whole / "checkpoints")[-1], lambda facts: facts["config"]["parallelism"].update(device="cuda"))
    run(make(**resumed, **{"data.dataset_dir": str(moved)}))
    assert report_of(whole)["training"]["epochs"] == 4
    again = load_config(whole / "config.toml")
    assert (again.run.resume, again.training.n_epochs) == ("", 4)


def test_a_run_from_other_processes_keeps_its_negatives_and_the_optimizer_of_the_other_mode(make: Make) -> None:
    """The defaults differ with a sampled loss: `ddp` takes Adam for the table, `dmp` on the CPU does not."""
    sampled, chosen = {"training.loss": "gbce"}, {"n_train_negatives": 7, "negatives_shared_by": 1, "weight_decay": 0.3}
    folder = run(make(**sampled, **{"parallelism.mode": "ddp", "training.n_epochs": 1}))
    edit_facts(found(folder / "checkpoints")[-1], lambda facts: facts["config"]["training"].update(chosen))
    run(make(**sampled, **{"parallelism.mode": "dmp", "run.resume": str(folder), "training.n_epochs": 2}))
    (resumed,) = read_records(folder, "resume")
    assert resumed["changed"].keys() == {"training.n_epochs", "parallelism.mode"}
    training = load_config(folder / "config.toml").training
    assert {key: getattr(training, key) for key in chosen} == chosen
