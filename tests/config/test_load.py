"""Settings: their tables, where their values come from, and the one line for what cannot be read."""

import datetime
from pathlib import Path
from typing import Any, get_args

import pytest
import tomli

from bert4rec.config.help import (
    OTHER_KEYS,
    OTHER_SOURCES,
    PREPARE_OPTIONS,
    SHORT_OPTIONS,
    all_settings,
)
from bert4rec.config.load import (
    flat,
    load_config,
    parse_command_line,
    parse_mapping,
    settings_file,
)
from bert4rec.config.tables import COMMON, Config, Preprocessing, Source, instant
from bert4rec.dataset.format import METADATA_DEFAULTS
from bert4rec.runtime.errors import SettingsError
from tests.checks import one_line

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.toml")), ids=lambda path: path.stem)
def test_ready_made_files_are_valid(path: Path) -> None:
    config = load_config(path)
    assert config.data.dataset_dir == ("" if path.stem == "sparse" else f"data/{path.stem}")


def test_the_command_line_beats_the_file_and_the_file_beats_the_default(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[model]\nmax_len = 30\nn_layers = 5\n")
    path, overrides = parse_command_line([f"--config={file}", "--model.n_layers=7"])
    config = load_config(path, overrides)
    assert (config.model.max_len, config.model.n_layers, config.model.n_heads) == (30, 7, 2)


@pytest.mark.parametrize(
    ("words", "short", "settings"),
    [  # values are TOML, or else text; the value of a text setting is always text
        (["--evaluation.ks=[3, 7]", "--mode", "ddp"], {}, {"evaluation.ks": [3, 7], "parallelism.mode": "ddp"}),
        (["--training.compile=true", "--name=7"], {}, {"training.compile": True, "run.name": "7"}),
        (["--data.path=my file.csv", "--lr=.5"], {}, {"data.path": "my file.csv", "training.learning_rate": 0.5}),
        (["--model.dropout=-1.", "--name="], {}, {"model.dropout": -1.0, "run.name": ""}),
        (["--out=x", "--seed=2"], {}, {"run.dir": "x", "training.seed": 2}),
        (["--out=x", "--seed=2", "--user", "7"], PREPARE_OPTIONS,
         {"data.dataset_dir": "x", "preprocessing.seed": 2, "data.user_column": "7"}),
    ],
)  # fmt: skip
def test_words_of_a_command_line_are_settings(
    words: list[str], short: dict[str, str], settings: dict[str, Any]
) -> None:
    assert parse_command_line(words, short or SHORT_OPTIONS) == (None, settings)


@pytest.mark.parametrize("option", ["--user=a", "--resume="])  # one of a preparation; one without a value
def test_options_of_another_command_or_without_a_value_are_refused(option: str) -> None:
    with one_line(option.partition("=")[0], error=SettingsError):
        parse_command_line([option])


def test_resolved_settings_can_be_passed_back(tmp_path: Path) -> None:
    config = load_config(None, {"model.max_len": 7, "evaluation.protocols": ["full"], "training.max_minutes": 1.5})
    (tmp_path / "config.toml").write_text(config.to_toml())
    assert load_config(tmp_path / "config.toml") == config


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("[model\n", ""), ("max_len = 3\n", "model.max_len?"), ("[modle]\nmax_len = 3\n", "[model]?"),
        ("[training]\nlr = 3\n", "training.learning_rate?"), ("[training]\nqqq = 3\n", "training.qqq:"),
        ('[training]\nn_epochs = "x"\n', 'training.n_epochs = "x":'),
        ("[model]\nn_heads = 3\n", "model.n_heads = 3:"),
        ("[model]\nembed_dim = 36\nn_heads = 8\n", "model.n_heads = 8:"),
        ('[data]\npath = "~no-such-user/a.csv"\n', 'data.path = "~no-such-user/a.csv":'),
    ],
)  # fmt: skip
def test_a_bad_file_is_one_line_that_names_it(tmp_path: Path, content: str, named: str) -> None:
    file = tmp_path / "bad.toml"
    with one_line(f"{file}: ", error=SettingsError):  # is not there yet
        load_config(file)
    file.write_text(content)
    with one_line(f"{file}: ", named, error=SettingsError):
        load_config(file)


def test_a_conflict_names_the_option_or_else_the_file_that_takes_part_in_it(tmp_path: Path) -> None:
    file, step = tmp_path / "short.toml", {"training.sliding_step": 11}
    for content, overrides, start in (
        ("max_len = 10", parse_command_line(["--training.sliding_step=11"])[1], "--training.sliding_step=11: "),
        ("max_len = 10", step, f"{file}: training.sliding_step = 11: "),
        ("n_heads = 2", step | {"model.max_len": 10}, "training.sliding_step = 11: "),
    ):
        file.write_text(f"[model]\n{content}\n")
        with one_line(start, error=SettingsError):
            load_config(file, overrides)


def test_a_home_folder_is_known_in_every_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_the_usual_file_counts_where_it_is_there_and_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (settings_file(None), settings_file("my.toml")) == (None, "my.toml")
    Path("config.toml").write_text("")
    assert (settings_file(None), settings_file("my.toml")) == ("config.toml", "my.toml")


def test_settings_from_python_are_those_of_the_command_line() -> None:
    features = {"data.item_features": {"a.b": "category", 'size = "S"': "number"}}
    overrides = parse_mapping({"data.path": Path("log.csv"), "batch_size": 8, "evaluation.ks": (5,)} | features)
    plain = {"data.path": "log.csv", "training.per_device_train_batch_size": 8, "evaluation.ks": [5]}
    assert overrides == plain | features
    assert parse_command_line(overrides.options) == (None, overrides)


@pytest.mark.parametrize("settings", [{"data.pth": "log.csv"}, {"n_epochs": 3}, {7: 3}, {"training.n_epochs": "3"}])
def test_a_wrong_setting_from_python_is_named_as_it_was_written(settings: dict[Any, Any]) -> None:
    with one_line(str(next(iter(settings))), error=SettingsError):
        load_config(None, parse_mapping(settings))


# What was typed, and what the error names beside it: the setting that was meant, or nothing.
MEANT = {
    "--mod": "--mode", "--epoch=3": "--epochs", "--batch_size=8": "--batch-size", "--learning-rate=1": "--lr",
    "--parallelism.mod=ddp": "--parallelism.mode", "--training.n_epoch=3": "--training.n_epochs",
    "--trainig.n_epochs=3": "--training.n_epochs", "--training.max_len=8": "--model.max_len",
    "--rate=0.1": "--lr or --parallelism.sparse_learning_rate", "--training.epochs=3": "--training.n_epochs",
    "--model.hidden_size=8": "--model.embed_dim",
    "--preprocessing.seeed=1": "--preprocessing.seed",  # the same table comes first
    "--negatives=3": "--training.n_train_negatives or --preprocessing.n_eval_negatives",
    "--dataset=x": "--data.dataset_dir, --data.source or --data.path", "--data.source=csv": '"table"',
    "--data.source=ml_1m": '"ml-1m"', "--data.source=ml-25": '"ml-25m"',
    "--data.source=movielens": '"ml-1m", "ml-32m" or "ml-latest-small"',
}  # fmt: skip
WRONG = [
    "dmp", "--mode", "--qqq=8", "--training.qqq=8", "--mode=both", "--epochs=x", '--evaluation.protocols=["ful"]',
    "--parallelism.compute_kernel=uvm", "--evaluation.ks=3", "--evaluation.ks=[0]", "--evaluation.protocols=[]",
    "--data.source=qqq", "--model.embed_dim=30", "--training.per_device_train_batch_size=0",
    "--training.seed=4294967296", "--model.dropout=lots", "--training.compile=1", "--model.n_layers=2.5",
    "--training.learning_rate=nan", "--preprocessing.validation_users=0", "--parallelism.sparse_learning_rate=0",
    "--training.rating_validation=0.9", "--run.dir=~no-such-user/runs", "--data.dataset_dir=ftp://b/dataset",
    "--data.titles_path=ftp://ann:pw@host/titles.csv", "--preprocessing.split_at=soon", "--preprocessing.split_at=",
    "--preprocessing.time_from=soon", "--preprocessing.split_at=1.5",
]  # fmt: skip


@pytest.mark.parametrize("argument", [*MEANT, *WRONG])
def test_an_error_names_the_option_and_what_was_meant(argument: str) -> None:
    with one_line("", argument.partition("=")[0], error=SettingsError) as caught:
        load_config(None, parse_command_line([argument])[1])
    line = str(caught.value)
    assert ("?" in line, "pw@" in line) == (argument in MEANT, False)
    assert argument not in MEANT or f"{MEANT[argument]}?" in line


def test_every_setting_is_named_as_people_write_it() -> None:
    assert {*PREPARE_OPTIONS.values(), *SHORT_OPTIONS.values(), "checkpoint.async"} <= {*all_settings()}
    assert not [key for key in all_settings() if key.endswith("_")]


def test_other_names_are_those_of_settings_and_sources_that_exist() -> None:
    for names, valid in ((OTHER_KEYS, {*all_settings()}), (OTHER_SOURCES, {*get_args(Source)})):
        assert names.keys() <= valid
        others = {name for text in names.values() for name in text.split()}
        assert not others & {name.partition(".")[2] or name for name in valid}


def test_the_shipped_file_has_the_common_settings_with_their_defaults() -> None:
    in_file, defaults = flat(tomli.loads((ROOT / "config.toml").read_text())), flat(Config().model_dump(mode="json"))
    assert [*in_file] == [*COMMON]
    assert in_file == {key: defaults[key] for key in COMMON}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("target_events", ["purchase"]), ("hide_before_target", "visit"), ("test_users", 7), ("ties", "shuffle"),
        ("max_bad_rows", 0.5), ("engine", "ray"), ("workers", 4),  # no dataset depends on them
    ],
)  # fmt: skip
def test_a_dataset_has_some_settings_only_if_they_are_set(name: str, value: Any) -> None:
    default, changed = Preprocessing(), Preprocessing(**{name: value})
    assert getattr(default, name) == METADATA_DEFAULTS.get(name, getattr(default, name))
    assert changed.recipe == default.recipe | ({name: value} if name in METADATA_DEFAULTS else {})


def test_saved_settings_that_are_gone_are_left_out() -> None:
    assert Preprocessing.from_saved({"seed": 3, "k_core": True}) == Preprocessing(seed=3)


@pytest.mark.parametrize(
    ("source", "path", "folder"),
    [
        ("synthetic", "", "data/synthetic"), ("ml-1m", "somewhere/else", "data/ml-1m"), ("table", "", "data/table"),
        ("table", "log.csv", "data/log"),
        ("table", "/logs/2024/My log.v2.CSV.gz", "data/My log.v2"),
        ("table", "logs/", "data/logs"), ("table", "logs/*.csv.gz", "data/logs"),
        ("table", "logs/shop-*.csv", "data/shop"), ("table", "logs/**/[0-9]*.parquet", "data/logs"),
        ("table", "a/.csv", "data/.csv"), ("table", "/*", "data/table"),
        ("sequences", "s3rec/LastFM.txt", "data/LastFM"), ("table", "s3://shop/2024/log.csv.gz", "data/log"),
        ("table", "s3://shop/logs/*.parquet", "data/logs"), ("table", "gs://shop/*.parquet", "data/shop"),
        ("table", "https://host/a/log.csv?X-Amz-Signature=a/b.c", "data/log"),
    ],
)  # fmt: skip
def test_the_dataset_folder_is_named_after_the_data(source: str, path: str, folder: str) -> None:
    assert load_config(None, {"data.source": source, "data.path": path}).data.folder == Path(folder)
    named = {"data.source": source, "data.path": path, "data.dataset_dir": "mine"}
    assert load_config(None, named).data.folder == Path("mine")


def test_a_relative_path_is_named_after_the_folder_it_stands_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "docs")
    for path in (".", "*.csv", "../docs", "./"):
        assert load_config(None, {"data.source": "table", "data.path": path}).data.folder == Path("data/docs")


def test_an_address_is_whole_for_the_preparation_and_saved_without_its_secrets() -> None:
    url = "https://ann:pw@host/log.csv?X-Amz-Signature=5ec2e7"
    config = load_config(None, {"data.path": url, "data.titles_path": f"{url}&a"})
    assert (config.data.source, config.data.path, config.data.titles_path) == ("table", url, f"{url}&a")
    saved = tomli.loads(config.to_toml())["data"]
    assert (saved["path"], saved["titles_path"]) == ("https://host/log.csv", "https://host/log.csv")
    assert load_config(None, {"data.path": "s3://b/log.csv"}).to_toml().count('path = "s3://b/log.csv"') == 1


def test_what_follows_from_several_tables() -> None:
    config = load_config(None, {"model.max_len": 50})
    assert (config.shortest_window, config.run_name) == (2, "synthetic")
    changes = {"training.sliding_step": 7, "run.name": "mine", "parallelism.mode": "ddp"}
    config = load_config(None, changes)
    assert (config.shortest_window, config.run_name) == (7, "mine")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0), ("-1", -1), ("1970-01-02", 86_400), ("2001-09-09T01:46:40", 10**9),
        ("2001-09-09T03:46:40+02:00", 10**9),
    ],
)  # fmt: skip
def test_an_instant_is_text_in_utc_unless_it_says_otherwise_or_seconds(text: str, seconds: int) -> None:
    assert instant(text) == seconds
    for value, taken in (
        (text, text),
        (seconds, str(seconds)),
        (0.25, 0.25),
        (datetime.date(2019, 3, 1), "2019-03-01"),
    ):
        assert load_config(None, {"preprocessing.split_at": value}).preprocessing.split_at == taken
