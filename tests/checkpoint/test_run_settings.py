"""With which settings and by which command a run is resumed, and what is said of runs that are finished."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bert4rec.__main__ import main
from bert4rec.checkpoint.run_settings import (
    RunSettings,
    how_to_continue,
    load_run_settings,
    on_processes,
    options_to_train_longer,
)
from bert4rec.commands.doctor import Finding
from bert4rec.config.load import NO_FILE, load_config, parse_command_line, parse_mapping
from bert4rec.runtime.errors import DataError, SettingsError
from tests.fixture_types import Capture, Patch
from tests.folders import files_of

Make = Callable[..., Path]
TRAINED = {"training.n_epochs": 4, "training.learning_rate": 0.5, "run.init_from": "runs/first"}
ENDED = {"epochs": 4, "seconds": 30.0, "stopped_by": "n_epochs"}
TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "GROUP_WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "2"}
SLURM = {**TORCHRUN, "TORCHX_JOB_ID": "slurm://torchx/7", "GROUP_WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "8"}


@pytest.fixture(autouse=True)
def without_launcher(monkeypatch: Patch) -> None:
    for name in SLURM:
        monkeypatch.delenv(name, raising=False)


def load(words: list[str]) -> RunSettings:
    return load_run_settings(*parse_command_line(words), looks_around=True)


@pytest.fixture
def make(tmp_path: Path, monkeypatch: Patch) -> Make:
    """`make(name, report, **changes)`: a run folder of two checkpoints; the working folder has a config.toml."""
    monkeypatch.chdir(tmp_path)
    Path("config.toml").write_text("[training]\nn_epochs = 40\npatience = 7\n\n[parallelism]\nmode = 'dmp'\n")

    def folder(name: str = "x", report: dict[str, Any] | None = None, **changes: Any) -> Path:
        run = Path("runs") / name
        for step in (10, 20):
            (run / "checkpoints" / f"step-{step:09d}").mkdir(parents=True)
        (run / "config.toml").write_text(load_config(None, TRAINED | changes).to_toml())
        if report is not None:
            (run / "report.json").write_text(json.dumps({"training": report}))
        return run

    return folder


def test_a_resumed_run_has_its_own_settings_and_the_command_line_over_them(make: Make) -> None:
    run = make()
    Path("config.toml").write_text("not even read")
    settings = load([f"--resume={run}", "--checkpoint.keep=5"])
    wanted = TRAINED | {"checkpoint.keep": 5, "run.resume": "runs/x", "run.init_from": ""}
    assert settings == RunSettings(load_config(None, wanted))
    for place in ("runs/x/checkpoints", "runs/x/checkpoints/step-000000010"):
        config = load([f"--resume={place}"]).config
        assert (config.training.n_epochs, config.run.resume) == (4, place)


def test_auto_finds_the_run_by_the_usual_settings_and_then_takes_its_own(make: Make) -> None:
    make("synthetic", ENDED)
    assert load(["--resume=auto"]) == RunSettings(load_config("config.toml", {"run.resume": "auto"}))  # it is finished
    make("synthetic-2")
    settings = load(["--resume=auto", "--training.patience=3"])
    assert (settings.config.training.n_epochs, settings.config.training.patience) == (4, 3)
    run = settings.config.run
    assert (run.dir, run.name, run.resume) == ("runs", "synthetic", "auto")  # which is found again
    assert "training.n_epochs = 4, not 40" in settings.notes[0]
    make("other", **{"training.patience": 7})
    Path("mine.toml").write_text('[run]\nname = "other"\nresume = "auto"\n')
    assert load(["--config=mine.toml"]).config.training.n_epochs == 4


def test_a_new_run_has_the_settings_of_the_file_or_else_the_defaults(make: Make) -> None:
    run, overrides = make("x", ENDED), parse_mapping({"mode": "ddp"})

    def from_python(file: str | None, overrides: Any) -> RunSettings:
        return load_run_settings(file, overrides, looks_around=False)

    assert load(["--mode=ddp"]).config == load_config("config.toml", {"parallelism.mode": "ddp"})
    assert from_python("config.toml", overrides).config.training.patience == 7
    assert from_python(None, overrides) == RunSettings(load_config(None, overrides))
    assert from_python(None, parse_mapping({"resume": run, "checkpoint.keep": 3})).finished == run
    Path("config.toml").unlink()
    assert load(["--mode=ddp"]) == RunSettings(load_config(None, {"parallelism.mode": "ddp"}), [NO_FILE])


def test_a_file_that_is_named_beside_a_run_does_not_count_and_its_other_values_are_said(make: Make) -> None:
    make()
    text = "[model]\nembed_dim = 32\nn_layers = 3\n\n[training]\nn_epochs = 40\npatience = 7\nmask_prob = 0.5\n"
    Path("my.toml").write_text(text + '\n[parallelism]\nsparse_optimizer = "auto"\n\n[run]\nname = "y"\n')
    settings = load(["--resume=runs/x", "--config", "my.toml", "--training.patience=7"])
    assert settings.config.model.embed_dim == 64
    assert "my.toml" in settings.notes[0]
    assert "model.embed_dim = 64, not 32; model.n_layers = 2, not 3; training.n_epochs = 4, not 40" in settings.notes[0]


@pytest.mark.parametrize(
    ("ended", "changes", "typed"),
    [
        ({}, {}, "--training.n_epochs=8"),
        ({"epochs": 1}, {"training.n_epochs": 1}, "--training.n_epochs=2"),
        ({"epochs": 3, "stopped_by": "patience"}, {"training.patience": 2}, "--training.patience=4"),
        ({"epochs": 3, "stopped_by": "patience"}, {}, "--training.patience=0"),
        ({"stopped_by": "patience"}, {"training.patience": 2}, "--training.n_epochs=8 --training.patience=4"),
        ({"epochs": 1.2, "seconds": 61.0}, {"training.max_minutes": 1.0}, "--training.max_minutes=2"),
        (
            {"seconds": 9300.5}, {"training.max_minutes": 155.0, "training.n_epochs": 900},
            "--training.max_minutes=311",
        ),
    ],
)  # fmt: skip
def test_how_to_train_a_finished_run_longer(
    make: Make, ended: dict[str, Any], changes: dict[str, Any], typed: str
) -> None:
    run = make("x", ENDED | ended, **changes)
    before = files_of(run)
    settings = load([f"--resume={run}", "--checkpoint.keep=3"])
    assert settings.finished == run
    assert settings.notes[0].endswith(f"bert4rec train --resume=runs/x {typed}")
    assert load([f"--resume={run}/checkpoints/step-000000020"]).finished
    assert options_to_train_longer(run) == typed.split()
    assert files_of(run) == before
    for options in ([f"--resume={run}", *typed.split()], [f"--resume={run}/checkpoints/step-000000010"]):
        assert (load(options).notes, load(options).finished) == ([], None)


def test_more_of_what_did_not_end_a_run_is_not_enough(make: Make) -> None:
    run = make("x", ENDED | {"epochs": 3, "stopped_by": "patience"}, **{"training.patience": 2})
    for option, is_finished in (("n_epochs=9", True), ("patience=1", True), ("patience=0", False)):
        assert bool(load([f"--resume={run}", f"--training.{option}"]).finished) == is_finished


def test_files_that_cannot_be_read_are_named(make: Make) -> None:
    run = make()

    def assert_refused(run: str, named: str) -> None:
        with pytest.raises(SettingsError, match=named):
            load([f"--resume={run}"])

    assert_refused("runs/y", r'run\.resume = "runs/y"')
    (run / "report.json").write_text("{")
    assert_refused("runs/x", r"^runs/x/report\.json: ")
    (run / "config.toml").write_text("[training")
    for _ in range(2):
        assert_refused("runs/x", r"^runs/x/config.toml: .*--run.init_from=runs/x$")
        (run / "config.toml").unlink(missing_ok=True)


def test_a_dataset_folder_says_all_about_the_data(make: Make, log_folder: Path) -> None:
    make()
    Path("config.toml").write_text('[data]\nsource = "ml-1m"\npath = "x"\n[preprocessing]\nsplit = "time"\n')
    overrides = parse_command_line(["--training.n_epochs=3"])[1]
    config = load_run_settings(None, overrides, dataset=str(log_folder), looks_around=True).config
    recipe = json.loads((log_folder / "metadata.json").read_text())["preprocessing"]
    assert (config.data.source, config.data.path, config.data.folder) == ("table", "", log_folder)
    assert config.preprocessing.recipe == recipe
    assert config.training.n_epochs == 3
    for word in ("--data.source=ml-1m", "--preprocessing.seed=2"):
        with pytest.raises(SettingsError, match=rf"^{word}: .*{log_folder}"):
            load_run_settings(None, parse_command_line([word])[1], dataset=str(log_folder), looks_around=True)


def test_the_only_dataset_is_the_usual_one(
    tmp_path: Path, monkeypatch: Patch, log_folder: Path, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (load([]).config.data.folder, load([]).notes) == (Path("data/synthetic"), [NO_FILE])
    shutil.copytree(log_folder, "data/log")
    settings = load([])
    assert (settings.config.data.folder, settings.config.run_name) == (Path("data/log"), "log")
    assert load(["--data.n_users=60"]).config.data.folder == Path("data/synthetic")
    shutil.copytree(log_folder, "data/other")
    with pytest.raises(DataError, match=r"bert4rec train data/log"):
        load([])
    monkeypatch.setattr("bert4rec.commands.doctor.findings", lambda config, n: [Finding("x", str(config.data.folder))])
    assert (main(["doctor"]), main(["doctor", "data/other"])) == (2, 0)
    assert "data/other" in capsys.readouterr().out
    shutil.copytree(log_folder, "data/synthetic")
    assert load([]).config.data.folder == Path("data/synthetic")


@pytest.mark.parametrize(
    ("environment", "command"),
    [
        ({}, "bert4rec train"),
        (TORCHRUN, "torchrun --standalone --nproc_per_node=2 -m bert4rec train"),
        ({**TORCHRUN, "GROUP_WORLD_SIZE": "3"},
         "(on every host) torchrun --nnodes=3 --nproc_per_node=2 … -m bert4rec train"),
        ({**TORCHRUN, "TORCHX_JOB_ID": "local_cwd://torchx/train-abc"},
         "torchx run -s local_cwd dist.ddp -j 1x2 -m bert4rec -- train"),
        (SLURM, "torchx run -s slurm dist.ddp -j 4x8 -m bert4rec -- train"),
    ],
)  # fmt: skip
def test_how_to_continue(monkeypatch: Patch, tmp_path: Path, environment: dict[str, str], command: str) -> None:
    run = tmp_path / "my run"
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert how_to_continue(run).endswith(f": {command} '--config={run}/config.toml'")
    (run / "checkpoints" / "step-000000004").mkdir(parents=True)
    assert how_to_continue(run).endswith(f": {command} '--resume={run}'")
    assert how_to_continue().endswith(" --resume=auto")  # which run it was is not known
    assert on_processes(1, "--resume=x") == "bert4rec train --resume=x"
    assert on_processes(4, "--resume=x") == "torchrun --standalone --nproc_per_node=4 -m bert4rec train --resume=x"
