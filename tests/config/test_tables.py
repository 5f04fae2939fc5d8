"""Tables of settings: their defaults, what they accept, and what follows from them."""

from pathlib import Path

import pytest
import tomli

from bert4rec.config.load import load_config, parse_command_line
from bert4rec.config.tables import Config
from bert4rec.runtime.errors import SettingsError

ROOT = Path(__file__).parents[2]


def test_the_shipped_file_names_every_key_with_its_default() -> None:
    assert tomli.loads((ROOT / "config.toml").read_text()) == Config().model_dump(mode="json")


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--model.embed_dim=30", "--model.embed_dim=30: must be a multiple of 4"),
        (
            "--training.per_device_train_batch_size=0",
            '--training.per_device_train_batch_size=0: must be greater than or equal to 1 or "auto"',
        ),
        ("--training.seed=4294967296", "--training.seed=4294967296: must be less than 4294967296"),
        ("--model.dropout=lots", '--model.dropout=lots: must be a valid number or "auto"'),
        ("--training.compile=1", "--training.compile=1: must be a valid boolean"),
        ("--model.n_layers=2.5", "--model.n_layers=2.5: must be a valid integer"),
        ("--training.learning_rate=nan", "--training.learning_rate=nan: must be a finite number"),
        ("--evaluation.ks=[0]", "--evaluation.ks=[0]: must be greater than or equal to 1"),
        (
            "--preprocessing.validation_users=0",
            '--preprocessing.validation_users=0: must be greater than or equal to 1 or "all"',
        ),
        (
            "--parallelism.sparse_learning_rate=0",
            '--parallelism.sparse_learning_rate=0: must be greater than 0 or "auto"',
        ),
        ("--parallelism.cache_load_factor=1", "--parallelism.cache_load_factor=1: must be less than 1"),
        ("--parallelism.cache_load_factor=0", "--parallelism.cache_load_factor=0: must be greater than 0"),
        (
            "--run.dir=~no-such-user/runs",
            "--run.dir=~no-such-user/runs: there is no home folder ~no-such-user on this machine; write the whole path",
        ),
        (
            "--data.dataset_dir=s3://bucket/dataset",
            "--data.dataset_dir=s3://bucket/dataset: must be a path of this machine; only data.path and "
            "data.titles_path may be addresses",
        ),
        (
            "--data.titles_path=ftp://ann:pw@host/titles.csv",
            "--data.titles_path=ftp://host/titles.csv: ftp:// is not read; s3://, gs://, hf://, https:// and http:// "
            "are",
        ),
    ],
)
def test_a_setting_that_cannot_be_is_one_line(argument: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_config(None, parse_command_line([argument])[1])
    assert str(caught.value) == message


def test_how_many_bad_rows_may_be_is_not_what_a_dataset_is_made_of() -> None:
    recipes = [
        load_config(None, {f"preprocessing.{name}": value}).preprocessing.recipe
        for name, value in (("seed", 1), ("few_bad_rows", 0), ("max_bad_rows", 0.5), ("memory_gb", 1.0))
    ]
    assert all(recipe == recipes[0] for recipe in recipes)


@pytest.mark.parametrize(
    ("source", "path", "folder"),
    [
        ("synthetic", "", "data/synthetic"),
        ("ml-1m", "somewhere/else", "data/ml-1m"),
        ("table", "", "data/table"),
        ("table", "log.csv", "data/log"),
        ("table", "/logs/2024/My log.v2.CSV.gz", "data/My log.v2"),
        ("table", "logs/", "data/logs"),
        ("table", "logs/*.csv.gz", "data/logs"),
        ("table", "logs/shop-*.csv", "data/shop"),
        ("table", "logs/**/[0-9]*.parquet", "data/logs"),
        ("table", "a/.csv", "data/.csv"),
        ("table", "/*", "data/table"),
        ("sequences", "s3rec/LastFM.txt", "data/LastFM"),
        ("table", "s3://shop/2024/log.csv.gz", "data/log"),
        ("table", "s3://shop/logs/*.parquet", "data/logs"),
        ("table", "gs://shop/*.parquet", "data/shop"),
        ("table", "https://host/a/log.csv?X-Amz-Signature=a/b.c", "data/log"),
    ],
)
def test_the_dataset_folder_is_named_after_the_data(source: str, path: str, folder: str) -> None:
    assert load_config(None, {"data.source": source, "data.path": path}).data.folder == Path(folder)
    named = {"data.source": source, "data.path": path, "data.dataset_dir": "mine"}
    assert load_config(None, named).data.folder == Path("mine")


def test_a_relative_path_is_named_after_the_folder_it_stands_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop").mkdir()
    monkeypatch.chdir(tmp_path / "shop")
    for path in (".", "*.csv", "../shop", "./"):
        assert load_config(None, {"data.source": "table", "data.path": path}).data.folder == Path("data/shop")


def test_an_address_is_whole_for_the_preparation_and_saved_without_its_secrets() -> None:
    url = "https://ann:pw@host/log.csv?X-Amz-Signature=5ec2e7"
    config = load_config(None, {"data.path": url, "data.titles_path": f"{url}&a"})
    assert (config.data.source, config.data.path, config.data.titles_path) == ("table", url, f"{url}&a")
    saved = tomli.loads(config.to_toml())["data"]
    assert (saved["path"], saved["titles_path"]) == ("https://host/log.csv", "https://host/log.csv")
    assert load_config(None, {"data.path": "s3://b/log.csv"}).to_toml().count('path = "s3://b/log.csv"') == 1


def test_what_follows_from_several_tables() -> None:
    config = load_config(None, {"model.max_len": 50})
    assert (config.window_step, config.shortest_window, config.run_name) == (50, 2, "synthetic-dmp")
    changes = {"preprocessing.sliding_step": 7, "run.name": "mine", "parallelism.mode": "ddp"}
    config = load_config(None, changes)
    assert (config.window_step, config.shortest_window, config.run_name) == (7, 7, "mine")
