"""Settings: what is accepted, and the one line for what is not."""

from pathlib import Path

import pytest
import tomli

from bert4rec.config.load import load_config, parse_command_line, usage
from bert4rec.config.tables import Config
from bert4rec.runtime.errors import SettingsError

ROOT = Path(__file__).parents[2]


def test_the_shipped_file_names_every_key_with_its_default() -> None:
    assert tomli.loads((ROOT / "config.toml").read_text()) == Config().model_dump(mode="json")


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.toml")), ids=lambda path: path.stem)
def test_ready_made_files_are_valid(path: Path) -> None:
    config = load_config(path)
    assert config.data.dataset_dir == f"data/{path.stem}"


def test_the_command_line_beats_the_file_and_the_file_beats_the_default(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[model]\nmax_len = 30\nn_layers = 5\n")
    path, overrides = parse_command_line([f"--config={file}", "--model.n_layers=7", "--mode", "ddp"])
    config = load_config(path, overrides)
    assert (config.model.max_len, config.model.n_layers, config.model.n_heads) == (30, 7, 2)
    assert config.parallelism.mode == "ddp"


def test_values_are_read_as_toml_or_else_as_text() -> None:
    table = ["--data.source=table", "--data.path=my file.csv"]
    arguments = ["--evaluation.ks=[3, 7]", "--training.compile=true", *table, "--run.name=7"]
    config = load_config(None, parse_command_line(arguments)[1])
    assert config.evaluation.ks == [3, 7]
    assert config.training.compile is True
    assert (config.data.path, config.run.name) == ("my file.csv", "7")


def test_resolved_settings_can_be_passed_back(tmp_path: Path) -> None:
    config = load_config(None, {"model.max_len": 7, "evaluation.protocols": ["full"], "training.max_minutes": 1.5})
    (tmp_path / "config.toml").write_text(config.to_toml())
    assert load_config(tmp_path / "config.toml") == config


def test_help_lists_every_key_with_its_default() -> None:
    text = usage("train.py")
    for table, values in Config().model_dump().items():
        for key in values:
            assert f"--{table}.{key}=" in text
    assert "--training.learning_rate=0.001 " in text


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
        (
            "--training.n_epoch=3",
            "--training.n_epoch: no such option; did you mean --training.n_epochs? --help lists all",
        ),
        (
            "--trainig.n_epochs=3",
            "--trainig.n_epochs: no such option; did you mean --training.n_epochs? --help lists all",
        ),
        ("--mdoe=dmp", "--mdoe: no such option; did you mean --mode? --help lists all"),
        ("--mode=both", '--mode=both: must be "dmp" or "ddp"'),
        ("--model.dropout=lots", "--model.dropout=lots: must be a valid number"),
        ("--training.compile=1", "--training.compile=1: must be a valid boolean"),
        ("--model.n_layers=2.5", "--model.n_layers=2.5: must be a valid integer"),
        ("--training.learning_rate=nan", "--training.learning_rate=nan: must be a finite number"),
        ("--evaluation.ks=[0]", "--evaluation.ks=[0]: every cut-off must be at least 1"),
        ('--evaluation.protocols=["ful"]', '--evaluation.protocols=["ful"]: must be "full", "popular" or "uniform"'),
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
        (
            "--parallelism.compute_kernel=uvm",
            '--parallelism.compute_kernel=uvm: must be "fused", "fused_uvm" or "fused_uvm_caching"',
        ),
        ("--parallelism.cache_load_factor=1", "--parallelism.cache_load_factor=1: must be less than 1"),
        ("--parallelism.cache_load_factor=0", "--parallelism.cache_load_factor=0: must be greater than 0"),
        ("--evaluation.ks=3", "--evaluation.ks=3: must be a list, in quotes for the shell: '[1, 5]' or '[\"full\"]'"),
        ("--evaluation.protocols=[]", "--evaluation.protocols=[]: must not be empty"),
        (
            "--lr=0.1",
            "--lr: no such option; did you mean --training.learning_rate or --parallelism.sparse_learning_rate? "
            "--help lists all",
        ),
        (
            "--batch-size=8",
            "--batch-size: no such option; did you mean --training.per_device_train_batch_size? --help lists all",
        ),
        ("--training.max_len=8", "--training.max_len: no such option; did you mean --model.max_len? --help lists all"),
        ("--qqq=8", "--qqq: no such option; --help lists all"),
        ("--training.qqq=8", "--training.qqq: no such option; --help lists all"),
        (
            "--data.source=csv",
            '--data.source=csv: must be "synthetic", "random", "ml-100k", "ml-1m", "ml-20m", "ml-25m", "ml-32m", '
            '"ml-latest-small", "goodreads", "sequences" or "table"; did you mean "table"?',
        ),
        (
            "--run.dir=~no-such-user/runs",
            "--run.dir=~no-such-user/runs: there is no home folder ~no-such-user on this machine; write the whole path",
        ),
        ("dmp", '"dmp": options have the form --table.key=value; --help lists all'),
        ("--mode", "--mode: a value is missing; write --mode=VALUE"),
    ],
)
def test_a_bad_setting_is_one_line(argument: str, message: str) -> None:
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
    ("content", "message"),
    [
        ("[model\n", "{file}: not TOML: "),
        ("max_len = 3\n", "{file}: max_len = 3 stands outside the tables; did you mean model.max_len?"),
        ("[modle]\nmax_len = 3\n", "{file}: [modle]: no such table; did you mean [model]?"),
        (
            "[training]\nlr = 3\n",
            "{file}: training.lr: no such key; did you mean training.learning_rate? --help lists all",
        ),
        ("[training]\nqqq = 3\n", "{file}: training.qqq: no such key; --help lists all"),
        ('[training]\nn_epochs = "x"\n', '{file}: training.n_epochs = "x": must be a valid integer'),
        ("[model]\nn_heads = 3\n", "{file}: model.n_heads = 3: must divide model.embed_dim = 64; valid: [1, 2, "),
        ("[model]\nembed_dim = 36\nn_heads = 8\n", "{file}: model.n_heads = 8: must divide model.embed_dim = 36; "),
        (
            '[data]\npath = "~no-such-user/a.csv"\n',
            '{file}: data.path = "~no-such-user/a.csv": there is no home folder ',
        ),
    ],
)
def test_a_bad_file_is_one_line_that_names_it(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(content)
    with pytest.raises(SettingsError) as caught:
        load_config(file)
    assert str(caught.value).startswith(message.format(file=file))
    assert "\n" not in str(caught.value)


def test_what_the_command_line_says_over_a_file_is_not_laid_to_the_file(tmp_path: Path) -> None:
    file = tmp_path / "good.toml"
    file.write_text("[model]\nmax_len = 30\n")
    path, overrides = parse_command_line([f"--config={file}", "--preprocessing.sliding_step=31"])
    with pytest.raises(SettingsError) as caught:
        load_config(path, overrides)
    assert str(caught.value).startswith("--preprocessing.sliding_step=31: above model.max_len = 30 items")


def test_a_combination_with_a_key_of_the_file_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "short.toml"
    file.write_text("[model]\nmax_len = 10\n")
    with pytest.raises(SettingsError) as caught:
        load_config(file, {"preprocessing.sliding_step": 11})
    assert str(caught.value).startswith(f"{file}: preprocessing.sliding_step = 11: above model.max_len = 10 items")


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


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"none\.toml: cannot read the settings: No such file or directory$"):
        load_config(tmp_path / "none.toml")
