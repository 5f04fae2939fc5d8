"""Where settings come from, and the one line for a file or a command line that cannot be read."""

from pathlib import Path
from typing import Any

import pytest

from bert4rec.config.load import load_config, parse_command_line, parse_mapping, settings_file, settings_help
from bert4rec.config.tables import Config
from bert4rec.runtime.errors import SettingsError
from tests.checks import Patch, one_line

ROOT = Path(__file__).parents[2]


DATASETS = {"ml-1m-best": "data/ml-1m-benchmark", "sparse": ""}  # of the ready-made files that have none of their own


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.toml")), ids=lambda path: path.stem)
def test_ready_made_files_are_valid(path: Path) -> None:
    config = load_config(path)
    assert config.data.dataset_dir == DATASETS.get(path.stem, f"data/{path.stem}")


def test_the_command_line_beats_the_file_and_the_file_beats_the_default(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[model]\nmax_len = 30\nn_layers = 5\n")
    path, overrides = parse_command_line([f"--config={file}", "--model.n_layers=7", "--mode", "ddp"])
    config = load_config(path, overrides)
    found = config.model.max_len, config.model.n_layers, config.model.n_heads, config.parallelism.mode
    assert found == (30, 7, 2, "ddp")


def test_values_are_read_as_toml_or_else_as_text() -> None:
    table = ["--data.source=table", "--data.path=my file.csv"]
    arguments = ["--evaluation.ks=[3, 7]", "--training.compile=true", *table, "--run.name=7"]
    config = load_config(None, parse_command_line(arguments)[1])
    assert (config.evaluation.ks, config.training.compile) == ([3, 7], True)
    assert (config.data.path, config.run.name) == ("my file.csv", "7")


def test_resolved_settings_can_be_passed_back(tmp_path: Path) -> None:
    config = load_config(None, {"model.max_len": 7, "evaluation.protocols": ["full"], "training.max_minutes": 1.5})
    (tmp_path / "config.toml").write_text(config.to_toml())
    assert load_config(tmp_path / "config.toml") == config


def test_help_lists_every_key_with_its_default() -> None:
    text = settings_help()
    keys = [f"--{table}.{key}=" for table, values in Config().model_dump().items() for key in values]
    assert [key for key in keys if key not in text] == []
    assert "--training.learning_rate=0.001 " in text


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("[model\n", []),
        ("max_len = 3\n", ["max_len = 3", "model.max_len?"]),
        ("[modle]\nmax_len = 3\n", ["[modle]", "[model]?"]),
        ("[training]\nlr = 3\n", ["training.lr:", "training.learning_rate?"]),
        ("[training]\nqqq = 3\n", ["training.qqq:"]),
        ('[training]\nn_epochs = "x"\n', ['training.n_epochs = "x":']),
        ("[model]\nn_heads = 3\n", ["model.n_heads = 3:", "model.embed_dim = 64"]),
        ("[model]\nembed_dim = 36\nn_heads = 8\n", ["model.n_heads = 8:", "model.embed_dim = 36"]),
        ('[data]\npath = "~no-such-user/a.csv"\n', ['data.path = "~no-such-user/a.csv":']),
    ],
)
def test_a_bad_file_is_one_line_that_names_it(tmp_path: Path, content: str, named: list[str]) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(content)
    with one_line(f"{file}: ", *named, error=SettingsError):
        load_config(file)


def test_a_conflict_names_the_file_unless_the_option_was_typed(tmp_path: Path) -> None:
    file = tmp_path / "short.toml"
    file.write_text("[model]\nmax_len = 10\n")
    other = tmp_path / "heads.toml"
    other.write_text("[model]\nn_heads = 2\n")
    for path, overrides, start in (
        (file, parse_command_line(["--training.sliding_step=11"])[1], "--training.sliding_step=11: "),
        (file, {"training.sliding_step": 11}, f"{file}: training.sliding_step = 11: "),
        (other, {"training.sliding_step": 51, "model.max_len": 50}, "training.sliding_step = 51: "),
    ):
        with one_line(start, error=SettingsError):
            load_config(path, overrides)


def test_a_home_folder_is_known_in_every_path(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "my.toml").write_text('[data]\npath = "~/log.csv"\nextends = "~/old"\n')
    arguments = ["--data.dataset_dir=~/d", "--data.titles_path=~/t.csv", "--run.dir=~", "--run.init_from=~/runs/a"]
    config = load_config(*parse_command_line(["--config=~/my.toml", "--data.source=table", *arguments]))
    assert config.data.model_dump(include={"path", "extends", "dataset_dir", "titles_path"}) == {
        "path": f"{tmp_path}/log.csv", "extends": f"{tmp_path}/old", "dataset_dir": f"{tmp_path}/d",
        "titles_path": f"{tmp_path}/t.csv",
    }  # fmt: skip
    assert (config.run.dir, config.run.init_from) == (str(tmp_path), f"{tmp_path}/runs/a")
    assert load_config(None, {"run.resume": "~root/runs/a"}).run.resume == "/root/runs/a"
    assert load_config(None, {"run.resume": "auto", "data.path": ""}).run.resume == "auto"


def test_the_usual_file_counts_where_it_is_there_and_none_is_named(tmp_path: Path, monkeypatch: Patch) -> None:
    with one_line(f"{tmp_path}/none.toml: ", error=SettingsError):
        load_config(tmp_path / "none.toml")
    monkeypatch.chdir(tmp_path)
    assert (settings_file(None), settings_file("my.toml")) == (None, "my.toml")
    Path("config.toml").write_text("")
    assert (settings_file(None), settings_file("my.toml")) == ("config.toml", "my.toml")


def test_settings_from_python_are_those_of_the_command_line() -> None:
    settings = {"data.path": Path("log.csv"), "mode": "ddp", "evaluation.ks": (5,), "training.n_epochs": 3}
    overrides = parse_mapping(settings)
    assert overrides == {
        "data.path": "log.csv", "parallelism.mode": "ddp", "evaluation.ks": [5], "training.n_epochs": 3,
    }  # fmt: skip
    assert parse_command_line(overrides.options) == (None, overrides)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"data.pth": "log.csv"}, ["data.pth:", "data.path?"]), ({"n_epochs": 3}, ["n_epochs:", "training.n_epochs?"]),
        ({7: 3}, ["7:"]), ({"training.n_epochs": "3"}, ['training.n_epochs = "3":']),
    ],
)  # fmt: skip
def test_a_wrong_setting_from_python_is_named_as_it_was_written(settings: dict[Any, Any], named: list[str]) -> None:
    with one_line(*named, error=SettingsError):
        load_config(None, parse_mapping(settings))
