"""Tables of settings: their defaults, what they accept, and what follows from them."""

import datetime
from pathlib import Path
from typing import Any

import pytest
import tomli

from bert4rec.config.load import flat, load_config
from bert4rec.config.tables import COMMON, Config, Preprocessing, instant
from bert4rec.dataset.format import METADATA_DEFAULTS

ROOT = Path(__file__).parents[2]


def test_the_shipped_file_has_the_common_settings_with_their_defaults() -> None:
    in_file, defaults = flat(tomli.loads((ROOT / "config.toml").read_text())), flat(Config().model_dump(mode="json"))
    assert [*in_file] == [*COMMON]
    assert in_file == {key: defaults[key] for key in COMMON}


def test_how_many_bad_rows_may_be_is_not_what_a_dataset_is_made_of() -> None:
    recipes = [
        load_config(None, {f"preprocessing.{name}": value}).preprocessing.recipe
        for name, value in (("seed", 1), ("max_bad_rows", 0.5), ("memory_gb", 1.0))
    ]
    assert all(recipe == recipes[0] for recipe in recipes)


@pytest.mark.parametrize(
    ("name", "value"),
    [("target_events", ["purchase"]), ("hide_before_target", "visit"), ("test_users", 7), ("ties", "shuffle")],
)
def test_a_dataset_has_some_settings_only_if_they_are_set(name: str, value: Any) -> None:
    default, changed = Preprocessing(), Preprocessing(**{name: value})
    assert getattr(default, name) == METADATA_DEFAULTS[name]
    assert changed.recipe == {**default.recipe, name: value}


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
