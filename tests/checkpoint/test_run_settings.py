"""With which settings a run is resumed, and what is said of those that do not count and of runs that are finished."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bert4rec.checkpoint.run_settings import RunSettings, load_run_settings, options_to_train_longer
from bert4rec.config.load import NO_FILE, load_config, parse_command_line, parse_mapping
from bert4rec.runtime.errors import SettingsError
from tests.folders import files_of

Make = Callable[..., Path]
TRAINED = {"training.n_epochs": 4, "training.learning_rate": 0.5, "run.init_from": "runs/first"}
ENDED = {"epochs": 4, "seconds": 30.0, "stopped_by": "n_epochs"}


def load(words: list[str]) -> RunSettings:
    return load_run_settings(*parse_command_line(words), looks_around=True)


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """`make(name, report, **changes)`: a run folder of two checkpoints; the working folder has a config.toml."""
    monkeypatch.chdir(tmp_path)
    for name in ("TORCHX_JOB_ID", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
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
    settings = load([f"--resume={run}", "--checkpoint.keep=5"])
    wanted = TRAINED | {"checkpoint.keep": 5, "run.resume": "runs/x", "run.init_from": ""}
    assert settings.config == load_config(None, wanted)
    assert (settings.notes, settings.finished) == ([], None)


def test_the_file_is_not_even_read_where_a_run_is_named(make: Make) -> None:
    run = make()
    Path("config.toml").unlink()
    assert load([f"--resume={run}"]).config.training.n_epochs == 4


@pytest.mark.parametrize("place", ["runs/x/checkpoints", "runs/x/checkpoints/step-000000010"])
def test_a_checkpoint_names_its_run(make: Make, place: str) -> None:
    make()
    config = load([f"--resume={place}"]).config
    assert (config.training.n_epochs, config.run.resume) == (4, place)


def test_auto_finds_the_run_by_the_usual_settings_and_then_takes_its_own(make: Make) -> None:
    make("synthetic-dmp", ENDED)
    make("synthetic-dmp-2")
    settings = load(["--resume=auto", "--training.patience=3"])
    assert settings.config.training.n_epochs == 4
    assert settings.config.training.patience == 3
    run = settings.config.run
    assert (run.dir, run.name, run.resume) == ("runs", "synthetic-dmp", "auto")  # which is found again
    assert settings.notes == [
        "config.toml is not used: runs/synthetic-dmp-2 keeps its own settings (training.n_epochs = 4, not 40); what is "
        "to change goes on the command line"
    ]


def test_auto_in_the_file_is_the_same(make: Make) -> None:
    make("other", **{"training.patience": 7})
    Path("mine.toml").write_text('[run]\nname = "other"\nresume = "auto"\n')
    assert load(["--config=mine.toml"]).config.training.n_epochs == 4


def test_auto_begins_a_new_run_where_none_is_unfinished(make: Make) -> None:
    make("synthetic-dmp", ENDED)
    settings = load(["--resume=auto"])
    assert settings.config == load_config("config.toml", {"run.resume": "auto"})
    assert settings.notes == []


def test_without_resume_the_file_counts(make: Make) -> None:
    make()
    assert load(["--mode=ddp"]).config == load_config("config.toml", {"parallelism.mode": "ddp"})


def test_without_any_file_the_defaults_count_and_that_is_said(make: Make) -> None:
    make()
    Path("config.toml").unlink()
    settings = load(["--mode=ddp"])
    assert (settings.config, settings.notes) == (load_config(None, {"parallelism.mode": "ddp"}), [NO_FILE])


def test_from_python_a_file_counts_only_if_it_is_named(make: Make) -> None:
    run = make("x", ENDED)
    overrides = parse_mapping({"mode": "ddp"})
    settings = load_run_settings(None, overrides, looks_around=False)
    assert (settings.config, settings.notes) == (load_config(None, overrides), [])
    assert load_run_settings("config.toml", overrides, looks_around=False).config.training.patience == 7
    finished = load_run_settings(None, parse_mapping({"resume": run, "checkpoint.keep": 3}), looks_around=False)
    assert finished.finished == run
    (line,) = finished.notes
    assert line.endswith("bert4rec train --resume=runs/x --training.n_epochs=8")


def test_a_file_that_is_named_beside_a_run_does_not_count_and_that_is_said(make: Make) -> None:
    """Of what it states alone; not what was left to the program, and not what the command line says anyway."""
    make()
    text = "[model]\nembed_dim = 32\nn_layers = 3\n\n[training]\nn_epochs = 40\npatience = 7\nmask_prob = 0.5\n"
    Path("my.toml").write_text(text + '\n[parallelism]\nsparse_optimizer = "auto"\n\n[run]\nname = "y"\n')
    settings = load(["--resume=runs/x", "--config", "my.toml", "--training.patience=7"])
    assert settings.config.model.embed_dim == 64
    assert settings.notes == [
        "my.toml is not used: runs/x keeps its own settings (model.embed_dim = 64, not 32; model.n_layers = 2, not 3; "
        "training.n_epochs = 4, not 40, and 1 more); what is to change goes on the command line"
    ]


@pytest.mark.parametrize(
    ("ended", "changes", "told", "typed"),
    [
        ({}, {}, "4 epochs, stopped by n_epochs", "--training.n_epochs=8"),
        ({"epochs": 1}, {"training.n_epochs": 1}, "1 epoch, stopped by n_epochs", "--training.n_epochs=2"),
        (
            {"epochs": 3, "stopped_by": "patience"}, {"training.patience": 2},
            "3 epochs, stopped by patience", "--training.patience=4",
        ),
        ({"epochs": 3, "stopped_by": "patience"}, {}, "3 epochs, stopped by patience", "--training.patience=0"),
        (
            {"stopped_by": "patience"}, {"training.patience": 2},
            "4 epochs, stopped by patience", "--training.n_epochs=8 --training.patience=4",
        ),
        (
            {"epochs": 1.23456, "stopped_by": "max_minutes", "seconds": 61.0}, {"training.max_minutes": 1.0},
            "1.23 epochs, stopped by max_minutes", "--training.max_minutes=2",
        ),
        (
            {"stopped_by": "max_minutes", "seconds": 9300.5}, {"training.max_minutes": 155.0, "training.n_epochs": 900},
            "4 epochs, stopped by max_minutes", "--training.max_minutes=311",
        ),
    ],
)  # fmt: skip
def test_a_finished_run_says_so_and_how_to_train_it_longer(
    make: Make, ended: dict[str, Any], changes: dict[str, Any], told: str, typed: str
) -> None:
    run = make("x", ENDED | ended, **changes)
    before = files_of(run)
    settings = load([f"--resume={run}", "--checkpoint.keep=3"])
    assert settings.finished == run
    assert settings.notes == [
        f"runs/x is finished ({told}); to train it longer: bert4rec train --resume=runs/x {typed}"
    ]
    assert options_to_train_longer(run) == typed.split()
    assert files_of(run) == before
    longer = load([f"--resume={run}", *typed.split()])
    assert (longer.notes, longer.finished) == ([], None)


def test_more_of_what_did_not_end_a_run_is_not_enough(make: Make) -> None:
    run = make("x", ENDED | {"epochs": 3, "stopped_by": "patience"}, **{"training.patience": 2})
    assert load([f"--resume={run}", "--training.n_epochs=9"]).finished
    assert load([f"--resume={run}", "--training.patience=1"]).finished
    assert not load([f"--resume={run}", "--training.patience=0"]).finished


def test_a_finished_run_may_be_resumed_from_an_earlier_checkpoint(make: Make) -> None:
    run = make("x", ENDED)
    assert not load([f"--resume={run}/checkpoints/step-000000010"]).finished
    assert load([f"--resume={run}/checkpoints/step-000000020"]).finished


@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "cannot read the settings: No such file or directory"), ("[training", "not TOML: ")],
)
def test_a_run_without_its_settings_is_one_line(make: Make, content: str | None, problem: str) -> None:
    run = make()
    (run / "config.toml").unlink()
    if content is not None:
        (run / "config.toml").write_text(content)
    with pytest.raises(SettingsError) as caught:
        load([f"--resume={run}"])
    message = str(caught.value)
    assert message.startswith(f"runs/x/config.toml: {problem}")
    assert message.endswith(
        "; a run is resumed with the settings in that file: restore it (facts.json of a checkpoint has them too), or "
        "start another run from the weights of this one with --run.init_from=runs/x"
    )
    assert "\n" not in message


def test_a_report_that_cannot_be_read_is_one_line(make: Make) -> None:
    run = make()
    (run / "report.json").write_text("{")
    with pytest.raises(SettingsError, match=r"runs/x/report\.json: cannot be read: .*; move it away to resume the run"):
        load([f"--resume={run}"])


def test_what_is_not_there_is_not_resumed(make: Make) -> None:
    make()
    with pytest.raises(SettingsError, match=r'run\.resume = "runs/y": is not there; name a run folder'):
        load(["--resume=runs/y"])


def test_it_is_known_without_torch() -> None:
    program = "import sys, bert4rec.commands.jobs.train; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
