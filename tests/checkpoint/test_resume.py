"""Whole runs that are broken off, damaged, and gone on with: in one process, by the function that train.py calls."""

import json
import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bert4rec.checkpoint import store
from bert4rec.checkpoint.run_folder import found
from bert4rec.checkpoint.store import SaveError
from bert4rec.config.load import load_config
from bert4rec.config.tables import Config
from bert4rec.dataset.reader import Dataset
from bert4rec.evaluation import ranker
from bert4rec.models.bert4rec import Bert4Rec
from bert4rec.report.log import read_records
from bert4rec.runtime import manifest
from bert4rec.runtime.errors import DataError, DivergenceError, Interrupted, SettingsError
from bert4rec.training.run import run
from tests.checkpoint.conftest import Make, report_of, steps
from tests.conftest import leave_group

pytestmark = [
    pytest.mark.usefixtures("alone"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # of the libraries about themselves
]


def assert_same_results(one: Path, other: Path) -> None:
    first, second = report_of(one), report_of(other)
    for name in ("validation", "test"):
        assert first[name] == second[name]
    for name in ("epochs", "steps", "best_epoch", "stopped_by"):
        assert first["training"][name] == second["training"][name]


def interrupted(config: Config) -> str:
    """What a run says that a signal ends."""
    with pytest.raises(Interrupted) as caught:
        run(config)
    leave_group()
    assert caught.value.status == 143
    return str(caught.value)


def in_step(monkeypatch: pytest.MonkeyPatch, target: Any, name: str, number: int) -> None:
    """Send this process a SIGTERM when `target.name` is called for the time `number`."""
    original, calls = getattr(target, name), 0

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(*args, **kwargs)

    monkeypatch.setattr(target, name, wrapped)


FORWARD, EVALUATION = (Bert4Rec, "forward"), (ranker.ModelRanker, "_encode_batch")


@pytest.mark.parametrize(
    ("where", "number", "kept", "asynchronous"),
    [
        (FORWARD, 4, 4, False),  # in the first epoch
        pytest.param(FORWARD, 15, 15, True, marks=pytest.mark.long),  # in the first step of the third
        (FORWARD, 21, 21, False),  # in the very last step
        pytest.param(EVALUATION, 1, 7, False, marks=pytest.mark.long),  # in the first validation
        (EVALUATION, 4, 14, True),
        ((store, "_write_shards"), 1, 7, False),  # while the first checkpoint is written
        pytest.param((store, "_write_shards"), 2, 14, True, marks=pytest.mark.long),
        ((store, "_finish"), 2, 14, False),
    ],
)
def test_a_signal_at_any_moment_loses_nothing(
    make: Make, whole: Path, monkeypatch: pytest.MonkeyPatch, where: tuple[Any, str], number: int, kept: int,
    asynchronous: bool,
) -> None:  # fmt: skip
    changes = {"run.name": "broken", "run.resume": "auto", "checkpoint.async": asynchronous}
    with monkeypatch.context() as patch:
        in_step(patch, *where, number)
        message = interrupted(make(**changes))
    step = int(message.removeprefix("stopped by SIGTERM: saved after step "))
    assert kept <= step <= 21  # a signal while a checkpoint is written is heard at a later step
    assert_same_results(run(make(**changes)), whole)


def test_loader_processes_may_come_and_go(make: Make, whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Begun with two, gone on with by none: the same run."""
    changes = {"run.name": "broken", "run.resume": "auto"}
    with monkeypatch.context() as patch:
        in_step(patch, *FORWARD, 10)
        assert "saved after step" in interrupted(make(**changes, **{"training.num_workers": 2}))
    assert_same_results(run(make(**changes)), whole)


def test_a_signal_after_the_training_leaves_the_test_to_the_next_part(
    make: Make, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        in_step(patch, ranker.ModelRanker, "_encode_batch", 9)  # two batches each: three validations, then the test
        message = interrupted(make(**{"run.name": "broken"}))
    assert message == "stopped by SIGTERM: the training is done and saved, its test is still to come"
    assert_same_results(run(make(**{"run.name": "broken", "run.resume": "auto"})), whole)


def test_a_save_that_takes_too_long_is_left_out_after_a_signal(
    make: Make, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"run.name": "broken", "checkpoint.every_steps": 3, "checkpoint.seconds_on_signal": 0.0}
    with monkeypatch.context() as patch:
        in_step(patch, *FORWARD, 5)
        message = interrupted(make(**changes))
    assert re.fullmatch(
        r"stopped by SIGTERM: a checkpoint would take some \d+ s, more than checkpoint.seconds_on_signal = 0; the last "
        r"one is of step 3",
        message,
    )
    assert_same_results(run(make(**changes, **{"run.resume": "auto"})), whole)


def test_another_global_batch_goes_on_behind_the_sequences_that_were_seen(
    make: Make, small_dataset: Dataset, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    n_sequences = len(small_dataset.splits["train"])
    with monkeypatch.context() as patch:
        in_step(patch, *FORWARD, 4)
        message = interrupted(make(**{"run.name": "broken"}))
    assert message == "stopped by SIGTERM: saved after step 5"  # of 16 sequences each
    changes = {"training.per_device_train_batch_size": 10, "run.name": "broken", "run.resume": "auto"}
    report = report_of(run(make(**changes, **{"training.max_skipped_steps": 1})))
    assert "global batches of 10 in place of 16 sequences\n" in capsys.readouterr().out
    assert report["training"]["steps"] == 5 + -(-(n_sequences - 80) // 10) + 2 * -(-n_sequences // 10)
    assert report["training"]["epochs"] == 3


def test_a_finished_run_goes_on_with_more_epochs(make: Make, whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    longer = run(make(**{"run.name": "longer", "training.n_epochs": 5}))
    picture = (whole / "learning_curve.png").read_bytes()
    capsys.readouterr()
    assert run(make(**{"run.resume": str(whole), "training.n_epochs": 5})) == whole
    assert_same_results(whole, longer)
    assert (
        f"resumed after step 21, epoch 3, from {whole / 'checkpoints' / 'step-000000021'}\n" in capsys.readouterr().out
    )
    assert report_of(longer)["training"]["epochs"] == 5
    assert json.loads((whole / "report-before.json").read_text())["training"]["epochs"] == 3
    page = (whole / "report-before.md").read_text()
    assert "Trained 3 epochs (21 steps)" in page
    assert page.count("](learning_curve-before.png)") == 1
    assert (whole / "learning_curve-before.png").read_bytes() == picture
    assert "](learning_curve.png)" in (whole / "report.md").read_text()
    records = [read_records(folder, "validation") for folder in (whole, longer)]
    assert records[0] == records[1]
    (resumed,) = read_records(whole, "resume")
    assert resumed == {
        "kind": "resume", "step": 21, "world_size": 1, "changed": {"training.n_epochs": [3, 5]},
    }  # fmt: skip


def test_the_reports_of_before_have_one_number(make: Make, whole: Path) -> None:
    (whole / "report-before.json").write_text("{}")
    run(make(**{"run.resume": str(whole), "training.n_epochs": 4}))
    kept = sorted(path.name for path in whole.glob("*-before*"))
    assert kept == [
        "learning_curve-before-2.png", "report-before-2.json", "report-before-2.md", "report-before.json",
    ]  # fmt: skip
    assert "](learning_curve-before-2.png)" in (whole / "report-before-2.md").read_text()


def test_from_an_earlier_checkpoint_the_newer_ones_are_set_aside(make: Make, whole: Path) -> None:
    before = report_of(whole)
    run(make(**{"run.resume": str(whole / "checkpoints" / "step-000000007")}))
    assert report_of(whole)["test"] == before["test"]
    assert steps(whole) == [7, 14, 21]
    aside = sorted(path.name for path in (whole / "checkpoints" / "set-aside").iterdir())
    assert aside == ["step-000000014", "step-000000021"]
    assert [record["step"] for record in read_records(whole, "validation")] == [7, 14, 21]
    assert len((whole / "metrics.jsonl").read_text().splitlines()) == 2 * 3 + 1 + 2 * 2


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(bytes(content))


def test_a_damaged_checkpoint_is_passed_over_aloud(make: Make, whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, newest = report_of(whole), found(whole / "checkpoints")[-1]
    flip(newest / "__0_0.distcp", 1000)
    run(make(**{"run.resume": str(whole)}))
    damaged = f"{newest}: this checkpoint is damaged: __0_0.distcp has another checksum"
    assert f"warning: {damaged}; skipped for the one before\n" in capsys.readouterr().out
    assert report_of(whole)["test"] == before["test"]
    for path in found(whole / "checkpoints"):
        flip(path / "facts.json", 5)
    with pytest.raises(
        DataError, match="there is no whole checkpoint to resume from; start a new run without --resume"
    ):
        run(make(**{"run.resume": str(whole)}))


def test_where_the_best_is_lost_it_is_sought_anew(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    seed = {"training.seed": 4}  # with which the second epoch is the best
    folder = run(make(**seed))
    assert report_of(folder)["training"]["best_epoch"] == 2
    shutil.rmtree((folder / "checkpoints" / "best").resolve())
    run(make(**{"run.resume": str(folder)}, **seed))
    said = (
        "warning: the best checkpoint so far, step-000000014, is missing; the search for the best weights starts again"
    )
    assert f"{said} here\n" in capsys.readouterr().out
    assert report_of(folder)["training"]["best_epoch"] == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.embed_dim": 32}, r"model.embed_dim = 16 in the run, 32 now: a resumed run keeps what it began with"),
        ({"training.learning_rate": 0.5}, r"training.learning_rate = 0.001 in the run, 0.5 now"),
        (
            {"parallelism.sparse_optimizer": "sgd"},
            r'parallelism.sparse_optimizer = "rowwise_adagrad" in the run, "sgd" now: .* --run.reset_optimizer=true',
        ),
        ({"training.optimizer": "sgd"}, r'training.optimizer = "adamw" in the run, "sgd" now'),
    ],
)
def test_what_a_run_began_with_stays(make: Make, whole: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        run(make(**{"run.resume": str(whole)}, **changes))
    assert steps(whole) == [7, 14, 21]
    assert (whole / "report.json").exists()


def test_another_dataset_is_refused(
    make: Make, whole: Path, tmp_path: Path, small_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(small_folder, copy)
    metadata = json.loads((copy / "metadata.json").read_text())
    (copy / "metadata.json").write_text(json.dumps(metadata | {"fingerprint": "f" * 64}))
    with pytest.raises(SettingsError, match=f"trained on {metadata['fingerprint'][:12]}…, this one is ffffffffffff…"):
        run(make(**{"run.resume": str(whole), "data.dataset_dir": str(copy)}))


def test_another_optimizer_begins_afresh_where_that_is_wanted(make: Make, whole: Path) -> None:
    changes = {"training.optimizer": "sgd", "run.reset_optimizer": True, "training.n_epochs": 4}
    assert report_of(run(make(**{"run.resume": str(whole)}, **changes)))["training"]["steps"] == 28


def test_after_a_reset_the_optimizers_count_from_there(
    make: Make, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once, however often the same command is given; with other optimizers again."""

    def updates(optimizer: str, n_epochs: int) -> int:
        changes = {"training.n_epochs": n_epochs, "training.optimizer": optimizer, "run.reset_optimizer": True}
        run(make(**{"run.resume": str(whole)}, **changes))
        return json.loads((found(whole / "checkpoints")[-1] / "facts.json").read_text())["state"]["updates"]

    assert [updates("adamw", 4), updates("adamw", 5), updates("sgd", 6)] == [7, 14, 7]
    assert capsys.readouterr().out.count("with fresh optimizers\n") == 2


def test_the_other_mode_takes_the_optimizer_that_the_run_has(make: Make) -> None:
    """Left to itself, `ddp` takes Adam for the table, and `dmp` on CPU would not."""
    folder = run(make(**{"parallelism.mode": "ddp"}))
    run(make(**{"parallelism.mode": "dmp", "run.resume": str(folder), "training.n_epochs": 4}))
    (resumed,) = read_records(folder, "resume")
    assert resumed["changed"].keys() == {"training.n_epochs", "parallelism.mode"}


def edit_facts(checkpoint_folder: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    """Change what a checkpoint says, and make it whole again."""
    path = checkpoint_folder / "facts.json"
    facts = json.loads(path.read_text())
    edit(facts)
    path.write_text(json.dumps(facts))
    names = [file.name for file in checkpoint_folder.iterdir() if file.name != manifest.MANIFEST]
    manifest.seal(checkpoint_folder, manifest.describe(checkpoint_folder, names))


def test_a_run_from_another_kind_of_device_goes_on(make: Make, whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit_facts(found(whole / "checkpoints")[-1], lambda facts: facts["config"]["parallelism"].update(device="cuda"))
    run(make(**{"run.resume": str(whole), "training.n_epochs": 4}))
    assert "1 x cpu in place of 1 x cuda: dropout draws other numbers\n" in capsys.readouterr().out


def test_a_checkpoint_of_another_version_is_refused(make: Make, whole: Path) -> None:
    edit_facts(found(whole / "checkpoints")[-1], lambda facts: facts.update(facts_version=1))
    with pytest.raises(DataError, match="written by another version of this program"):
        run(make(**{"run.resume": str(whole)}))


def test_a_run_may_begin_with_the_weights_of_another(make: Make, whole: Path) -> None:
    begun = run(make(**{"run.name": "begun", "run.init_from": str(whole), "training.max_minutes": 1e-9}))
    first = read_records(begun, "train")[0]["loss"]
    assert first < read_records(whole, "train")[0]["loss"] - 0.05
    assert report_of(begun)["training"]["steps"] == 1
    with pytest.raises(SettingsError, match=r"its weights do not fit this run: n_layers = 2 there, 1 here$"):
        run(make(**{"run.init_from": str(whole), "model.n_layers": 1}))
    leave_group()
    with pytest.raises(SettingsError, match=r"run.init_from: no/where has no best checkpoint"):
        run(make(**{"run.init_from": "no/where"}))
    leave_group()
    best = whole / "checkpoints" / "best"
    edit_facts(best, lambda facts: facts.update(items="0" * 12))  # as from other data with as many items
    with pytest.raises(SettingsError, match=r"this run: items \(their ids\) = 000000000000 there, \w{12} here$"):
        run(make(**{"run.init_from": str(best)}))


def test_what_could_not_be_saved_is_not_called_saved(make: Make, whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither after a signal nor at the end: then there is no report, and the run stays unfinished."""

    def full(*_: Any) -> None:
        raise SaveError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(store, "_write_shards", full)
        in_step(patch, *FORWARD, 4)
        message = interrupted(make(**{"run.name": "broken"}))
        assert re.fullmatch(r"stopped by SIGTERM: not saved after step \d+: there is no checkpoint", message)
    (stopped,) = read_records(whole.parent / "broken", "stopped")
    assert stopped["message"] == message
    monkeypatch.setattr(store, "_write_shards", full)
    advice = r"could not be saved; free the disk, then start again with: python train\.py$"
    with pytest.raises(SaveError, match=advice):
        run(make(**{"run.name": "lost"}))
    assert not (whole.parent / "lost" / "report.json").exists()


def test_a_closed_terminal_is_no_reason_to_lose_anything(
    make: Make, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, write = os.pipe()
    os.close(read)
    with monkeypatch.context() as patch:
        patch.setattr("sys.stdout", os.fdopen(write, "w", closefd=False))
        patch.setattr("signal.SIGTERM", signal.SIGHUP)
        in_step(patch, *FORWARD, 4)
        with pytest.raises(Interrupted) as caught:
            run(make(**{"run.name": "broken"}))
    leave_group()
    assert caught.value.status == 129
    run(make(**{"run.name": "broken", "run.resume": "auto"}))
    assert_same_results(whole.parent / "broken", whole)


def test_the_settings_of_a_run_repeat_it(make: Make, whole: Path) -> None:
    run(make(**{"run.resume": str(whole), "training.n_epochs": 4}))
    again = load_config(whole / "config.toml")
    assert (again.run.resume, again.training.n_epochs) == ("", 4)
    assert "Resumed after step 21 on 1 process." in (whole / "report.md").read_text()


def test_a_best_that_was_damaged_is_not_tested(
    make: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def damaged(folder: Path) -> None:
        flip(folder / "__0_0.distcp", 1000)
        store.verify(folder)

    monkeypatch.setattr("bert4rec.training.trainer.verify", damaged)
    folder = run(make(**{"training.seed": 4}))  # with which the second epoch is the best
    assert "has another checksum; the last weights are tested in place of the best\n" in capsys.readouterr().out
    assert report_of(folder)["training"]["best_epoch"] == 3


def test_a_schedule_goes_on_where_it_was_with_another_batch(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"training.lr_schedule": "linear"}
    usual = run(make(**changes, **{"run.name": "usual"}))
    with monkeypatch.context() as patch:
        in_step(patch, *FORWARD, 4)
        interrupted(make(**changes, **{"run.name": "broken"}))
    other = {"training.per_device_train_batch_size": 5, "run.name": "broken", "run.resume": "auto"}
    rates = [
        {record["epoch"]: record["learning_rate"] for record in read_records(folder, "train")}
        for folder in (usual, run(make(**changes, **other)))
    ]
    assert [rates[0][epoch] for epoch in (1, 2, 3)] == pytest.approx([0.001 * 2 / 3, 0.001 / 3, 0.0])
    assert [rates[1][epoch] for epoch in (1, 2, 3)] == [rates[0][epoch] for epoch in (1, 2, 3)]


def test_a_log_that_was_torn_is_gone_on_with(make: Make, whole: Path) -> None:
    records = read_records(whole, "train")
    with (whole / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "tr')
    run(make(**{"run.resume": str(whole)}))
    assert read_records(whole, "train") == records


def test_a_step_without_a_finite_loss_is_left_out_within_the_budget(
    make: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    original, calls = Bert4Rec.forward, 0

    def sometimes(self: Bert4Rec, *args: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return original(self, *args) * (float("nan") if calls % 9 == 5 else 1.0)

    monkeypatch.setattr(Bert4Rec, "forward", sometimes)
    report = report_of(run(make(**{"training.max_skipped_steps": 2, "training.n_epochs": 2})))
    assert report["training"]["steps"] == 14
    assert "step 5: the loss is not finite, skipped (1 of 2)\n" in capsys.readouterr().out
    calls = 0
    with pytest.raises(DivergenceError, match=r"2 steps were not finite, training.max_skipped_steps"):
        run(make(**{"training.max_skipped_steps": 1, "training.n_epochs": 2}))
    leave_group()
    calls = 0
    with pytest.raises(DivergenceError) as caught:
        run(make(**{"training.n_epochs": 1, "run.name": "early"}))
    early = tmp_path / "runs" / "early"
    assert str(caught.value) == (
        "the training loss is nan after 7 steps; start again with lower learning rates: python train.py "
        f"--config={early}/config.toml --training.learning_rate=0.0001 --parallelism.sparse_learning_rate=0.002"
    )
    leave_group()
    calls = -4
    with pytest.raises(DivergenceError) as caught:
        run(make(**{"training.n_epochs": 2, "run.name": "late"}))
    late = tmp_path / "runs" / "late"
    assert (late / "checkpoints" / "best").is_dir()
    assert str(caught.value) == (
        "the training loss is nan after 14 steps; start again with lower learning rates, from the best weights: python "
        f"train.py --config={late}/config.toml --training.learning_rate=0.0001 "
        f"--parallelism.sparse_learning_rate=0.002 --run.init_from={late}"
    )
