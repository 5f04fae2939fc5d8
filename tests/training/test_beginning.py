"""Where runs begin: at the weights of others or at checkpoints; and which settings a resumed run keeps."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from bert4rec.checkpoint.run_folder import found
from bert4rec.config.load import load_config
from bert4rec.report.log import read_records
from bert4rec.runtime.errors import DataError, SettingsError
from bert4rec.training.run import run
from tests.conftest import leave_group
from tests.fixture_types import Capture
from tests.runs import Make, edit_facts, report_of, steps

pytestmark = [
    pytest.mark.usefixtures("alone"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # of the libraries about themselves
]


def test_where_the_best_is_lost_the_search_starts_again(make: Make, capsys: Capture) -> None:
    second_is_best = {"training.seed": 3, "parallelism.sparse_optimizer": "rowwise_adagrad"}
    folder = run(make(**second_is_best))
    assert report_of(folder)["training"]["best_epoch"] == 2
    shutil.rmtree((folder / "checkpoints" / "best").resolve())
    run(make(**{"run.resume": str(folder)}, **second_is_best))
    assert "warning: the best checkpoint so far, step-000000014, " in capsys.readouterr().out
    assert report_of(folder)["training"]["best_epoch"] == 3


def test_a_run_from_another_kind_of_device_is_resumed(make: Make, whole: Path, capsys: Capture) -> None:
    edit_facts(found(whole / "checkpoints")[-1], lambda facts: facts["config"]["parallelism"].update(device="cuda"))
    run(make(**{"run.resume": str(whole), "training.n_epochs": 4}))
    assert re.search("1 x cpu.* 1 x cuda", capsys.readouterr().out)


def test_a_run_may_start_from_the_weights_of_another(make: Make, whole: Path) -> None:
    started = run(make(**{"run.name": "started", "run.init_from": str(whole), "training.max_minutes": 1e-9}))
    first = read_records(started, "train")[0]["loss"]
    assert first < read_records(whole, "train")[0]["loss"] - 0.05
    assert report_of(started)["training"]["steps"] == 1
    with pytest.raises(SettingsError, match="n_layers = 1, but 2 in that run"):
        run(make(**{"run.init_from": str(whole), "model.n_layers": 1}))
    leave_group()
    with pytest.raises(SettingsError, match=r"run.init_from: no/where"):
        run(make(**{"run.init_from": "no/where"}))
    leave_group()
    best = whole / "checkpoints" / "best"
    edit_facts(best, lambda facts: facts.update(items="0" * 12))  # as from other data with as many items
    with pytest.raises(SettingsError, match=r"= \w{12}, but 000000000000 in that run$"):
        run(make(**{"run.init_from": str(best)}))


def test_a_run_whose_dataset_was_moved_is_resumed_where_that_is_named(make: Make, whole: Path, tmp_path: Path) -> None:
    moved, resumed = tmp_path / "moved", {"run.resume": str(whole), "training.n_epochs": 4}
    shutil.copytree(make().data.folder, moved)
    with pytest.raises(DataError, match=f"moved, type: .* FOLDER --resume={whole}$"):
        run(make(**resumed, **{"data.dataset_dir": str(tmp_path / "gone")}))
    leave_group()
    run(make(**resumed, **{"data.dataset_dir": str(moved)}))
    assert report_of(whole)["training"]["epochs"] == 4


def test_the_settings_of_a_run_repeat_it(make: Make, whole: Path) -> None:
    run(make(**{"run.resume": str(whole), "training.n_epochs": 4}))
    again = load_config(whole / "config.toml")
    assert (again.run.resume, again.training.n_epochs) == ("", 4)


def test_the_other_mode_takes_the_optimizer_that_the_run_has(make: Make) -> None:
    """Left to itself, `ddp` takes Adam for the table, and `dmp` on CPU would not with a sampled loss."""
    sampled = {"training.loss": "gbce", "training.n_train_negatives": 9}
    folder = run(make(**sampled, **{"parallelism.mode": "ddp"}))
    run(make(**sampled, **{"parallelism.mode": "dmp", "run.resume": str(folder), "training.n_epochs": 4}))
    (resumed,) = read_records(folder, "resume")
    assert resumed["changed"].keys() == {"training.n_epochs", "parallelism.mode"}


def test_a_run_from_other_processes_keeps_its_negatives(make: Make) -> None:
    sampled = {"training.loss": "gbce"}
    folder = run(make(**sampled))
    chosen = {"n_train_negatives": 7, "negatives_shared_by": 1}
    edit_facts(found(folder / "checkpoints")[-1], lambda facts: facts["config"]["training"].update(chosen))
    run(make(**sampled, **{"run.resume": str(folder), "training.n_epochs": 4}))
    training = load_config(folder / "config.toml").training
    assert {key: getattr(training, key) for key in chosen} == chosen


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"evaluation.seen_items": "keep"}, "evaluation.seen_items = leave_out in the run, keep now"),
        ({"model.embed_dim": 32}, "model.embed_dim = 16 in the run, 32 now"),
        ({"training.learning_rate": 0.5}, r"training.learning_rate = 0.001 in the run, 0.5 now"),
        (
            {"parallelism.sparse_optimizer": "sgd"},
            r'parallelism.sparse_optimizer = "adam" in the run, "sgd" now: .* --run.init_from',
        ),
        ({"training.optimizer": "sgd"}, 'training.optimizer = "adamw" in the run, "sgd" now'),
    ],
)
def test_what_a_run_began_with_stays(make: Make, whole: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        run(make(**{"run.resume": str(whole)}, **changes))
    assert steps(whole) == [7, 14, 21]
    assert (whole / "report.json").exists()
