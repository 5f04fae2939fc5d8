"""Tables of settings: their defaults, what they accept, and what follows from them."""

from pathlib import Path

import pytest
import tomli

from bert4rec.config.load import load_config, parse_command_line
from bert4rec.config.tables import Config, instant
from bert4rec.runtime.errors import SettingsError

ROOT = Path(__file__).parents[2]


def test_the_shipped_file_names_every_key_with_its_default() -> None:
    assert tomli.loads((ROOT / "config.toml").read_text()) == Config().model_dump(mode="json")


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--model.n_heads=3", "--model.n_heads=3: must divide model.embed_dim = 64; valid: [1, 2, 4, 8, 16, 32, 64]"),
        ("--model.embed_dim=30", "--model.embed_dim=30: must be a multiple of 4"),
        (
            "--training.per_device_train_batch_size=0",
            "--training.per_device_train_batch_size=0: must be greater than or equal to 1",
        ),
        ("--training.seed=4294967296", "--training.seed=4294967296: must be less than 4294967296"),
        ("--model.dropout=lots", "--model.dropout=lots: must be a valid number"),
        ("--training.compile=1", "--training.compile=1: must be a valid boolean"),
        ("--model.n_layers=2.5", "--model.n_layers=2.5: must be a valid integer"),
        ("--training.learning_rate=nan", "--training.learning_rate=nan: must be a finite number"),
        ("--evaluation.ks=[0]", "--evaluation.ks=[0]: every cut-off must be at least 1"),
        ("--preprocessing.validation_users=0", '--preprocessing.validation_users=0: must be at least 1, or "all"'),
        (
            "--preprocessing.sliding_step=51",
            "--preprocessing.sliding_step=51: above model.max_len = 50 items between two windows would never be "
            "trained on",
        ),
        (
            "--training.random_token_share=0.5",
            "--training.random_token_share=0.5: with mask_token_share = 1.0 the sum is above 1",
        ),
        ("--parallelism.sparse_learning_rate=0", '--parallelism.sparse_learning_rate=0: must be above 0, or "auto"'),
        ("--parallelism.cache_load_factor=1", "--parallelism.cache_load_factor=1: must be less than 1"),
        ("--parallelism.cache_load_factor=0", "--parallelism.cache_load_factor=0: must be greater than 0"),
        (
            "--run.dir=~no-such-user/runs",
            "--run.dir=~no-such-user/runs: there is no home folder ~no-such-user on this machine; write the whole path",
        ),
    ],
)
def test_a_setting_that_cannot_be_is_one_line(argument: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_config(None, parse_command_line([argument])[1])
    assert str(caught.value) == message


def test_titles_come_from_one_place() -> None:
    load_config(None, {"data.title_column": "name"})
    with pytest.raises(SettingsError) as caught:
        load_config(None, {"data.title_column": "name", "data.titles_path": "t.csv"})
    assert str(caught.value) == (
        'data.title_column = "name": titles come from data.titles_path = "t.csv" already; leave one of them empty'
    )


def test_how_many_bad_rows_may_be_is_not_what_a_dataset_is_made_of() -> None:
    recipes = [
        load_config(None, {f"preprocessing.{name}": value}).preprocessing.recipe
        for name, value in (("seed", 1), ("few_bad_rows", 0), ("max_bad_rows", 0.5), ("memory_gb", 1.0))
    ]
    assert all(recipe == recipes[0] for recipe in recipes)


def test_row_wise_adagrad_over_cut_rows_is_refused() -> None:
    with pytest.raises(SettingsError, match="is another algorithm when a row is cut column_wise"):
        load_config(
            None, {"parallelism.sharding_type": "column_wise", "parallelism.sparse_optimizer": "rowwise_adagrad"}
        )


@pytest.mark.parametrize(("mode", "device"), [("ddp", "cuda"), ("ddp", "auto"), ("dmp", "cpu")])
def test_tables_in_host_memory_are_for_sharded_tables_on_gpus(mode: str, device: str) -> None:
    how = {"parallelism.mode": mode, "parallelism.device": device, "parallelism.compute_kernel": "fused_uvm"}
    with pytest.raises(SettingsError) as caught:
        load_config(None, how)
    assert str(caught.value) == (
        'parallelism.compute_kernel = "fused_uvm": only with mode = "dmp" on CUDA; valid with '
        f'mode = "{mode}", device = "{device}": "fused"'
    )


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


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("-1", -1),
        ("1970-01-02", 86_400),
        ("2001-09-09T01:46:40", 10**9),
        ("2001-09-09T03:46:40+02:00", 10**9),
    ],
)
def test_an_instant_is_text_in_utc_unless_it_says_otherwise_or_seconds(text: str, seconds: int) -> None:
    assert instant(text) == seconds


def test_what_follows_from_several_tables() -> None:
    config = Config()
    assert (config.window_step, config.shortest_window, config.run_name) == (50, 2, "synthetic-dmp")
    changes = {"preprocessing.sliding_step": 7, "run.name": "mine", "parallelism.mode": "ddp"}
    config = load_config(None, changes)
    assert (config.window_step, config.shortest_window, config.run_name) == (7, 7, "mine")
