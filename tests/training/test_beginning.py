"""Where runs begin: at the weights of others or at checkpoints; and which settings a resumed run keeps."""

import shutil
from pathlib import Path

import pytest

from bert4rec.checkpoint.run_folder import found
from bert4rec.config.load import load_config
from bert4rec.report.log import read_records
from bert4rec.runtime.errors import DataError, SettingsError
from bert4rec.training.run import run
from tests.conftest import leave_group
from tests.fixture_types import Capture
from tests.runs import Make, edit_facts, report_of, steps

pytestmark = pytest.mark.usefixtures("alone")


def test_where_the_best_is_lost_the_search_starts_again(make: Make, capsys: Capture) -> None:
    second_is_best = {"training.seed": 3, "parallelism.sparse_optimizer": "rowwise_adagrad"}
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
    for place, changes, named in (
        (whole, {"model.n_layers": 1}, "n_layers"), ("no/where", {}, r"run\.init_from"), (best, {}, "000000000000"),
    ):  # fmt: skip
        with pytest.raises(SettingsError, match=named):
            run(make(**{"run.init_from": str(place)} | changes))
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
    """By themselves `ddp` takes Adam for the table, and `dmp` on the CPU would not with a sampled loss."""
    sampled, chosen = {"training.loss": "gbce"}, {"n_train_negatives": 7, "negatives_shared_by": 1}
    folder = run(make(**sampled, **{"parallelism.mode": "ddp"}))
    edit_facts(found(folder / "checkpoints")[-1], lambda facts: facts["config"]["training"].update(chosen))
    run(make(**sampled, **{"parallelism.mode": "dmp", "run.resume": str(folder), "training.n_epochs": 4}))
    (resumed,) = read_records(folder, "resume")
    assert resumed["changed"].keys() == {"training.n_epochs", "parallelism.mode"}
    training = load_config(folder / "config.toml").training
    assert {key: getattr(training, key) for key in chosen} == chosen


def test_what_a_run_began_with_stays(make: Make, whole: Path) -> None:
    for name, value in {
        "evaluation.seen_items": "keep", "model.embed_dim": 32, "training.learning_rate": 0.5,
        "parallelism.sparse_optimizer": "sgd", "training.optimizer": "sgd",
    }.items():  # fmt: skip
        with pytest.raises(SettingsError, match=f"{name} = "):
            run(make(**{"run.resume": str(whole), name: value}))
        leave_group()
    assert steps(whole) == [7, 14, 21]
    assert (whole / "report.json").exists()
