"""Where runs begin: at the weights of others, at checkpoints, with what they no longer have."""

import json
import shutil
from pathlib import Path

import pytest

from bert4rec.checkpoint.run_folder import found
from bert4rec.report.log import read_records
from bert4rec.runtime.errors import SettingsError
from bert4rec.training.run import run
from tests.conftest import leave_group
from tests.runs import (
    Make,
    edit_facts,
    report_of,
)

pytestmark = [
    pytest.mark.usefixtures("alone"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # of the libraries about themselves
]


def test_where_the_best_is_lost_the_search_starts_again(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    second_is_best = {"training.seed": 4, "parallelism.sparse_optimizer": "rowwise_adagrad"}
    folder = run(make(**second_is_best))
    assert report_of(folder)["training"]["best_epoch"] == 2
    shutil.rmtree((folder / "checkpoints" / "best").resolve())
    run(make(**{"run.resume": str(folder)}, **second_is_best))
    said = (
        "warning: the best checkpoint so far, step-000000014, is missing; the search for the best weights starts again"
    )
    assert f"{said} here\n" in capsys.readouterr().out
    assert report_of(folder)["training"]["best_epoch"] == 3


def test_another_optimizer_starts_fresh_where_that_is_set(make: Make, whole: Path) -> None:
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


def test_a_run_from_another_kind_of_device_is_resumed(
    make: Make, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit_facts(found(whole / "checkpoints")[-1], lambda facts: facts["config"]["parallelism"].update(device="cuda"))
    run(make(**{"run.resume": str(whole), "training.n_epochs": 4}))
    assert "1 x cpu in place of 1 x cuda: dropout draws other numbers\n" in capsys.readouterr().out


def test_another_number_of_draws_of_negatives_is_said(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    sampled = {"training.loss": "gbce", "training.n_train_negatives": 20}
    folder = run(make(**sampled, **{"training.n_epochs": 1, "training.negatives_shared_by": 1}))
    edit_facts(found(folder / "checkpoints")[-1], lambda facts: facts.update(world_size=4))
    run(make(**sampled, **{"run.resume": str(folder), "training.n_epochs": 2}))
    said = capsys.readouterr().out
    assert "1 draw of negatives a step in place of 4 draws\n" in said
    assert "training.negatives_shared_by = all in place of 1\n" in said


def test_a_run_may_start_from_the_weights_of_another(make: Make, whole: Path) -> None:
    started = run(make(**{"run.name": "started", "run.init_from": str(whole), "training.max_minutes": 1e-9}))
    first = read_records(started, "train")[0]["loss"]
    assert first < read_records(whole, "train")[0]["loss"] - 0.05
    assert report_of(started)["training"]["steps"] == 1
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
