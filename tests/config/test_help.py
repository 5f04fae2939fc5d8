"""One line for a setting that is unknown or has an impossible value: the setting, the value, what is valid."""

from typing import get_args

import pytest

from bert4rec.config.help import (
    OTHER_KEYS,
    OTHER_SOURCES,
    PREPARE_OPTIONS,
    SHORT_OPTIONS,
    all_keys,
)
from bert4rec.config.load import load_config, parse_command_line
from bert4rec.config.tables import Source
from bert4rec.runtime.errors import SettingsError

AUTO = '"auto"'


@pytest.mark.parametrize(
    ("argument", "named"),
    [
        ("dmp", ['"dmp"']),
        ("--mode", ["--mode=VALUE"]),
        ("--mod", ["--mod:", "--mode?"]),
        ("--epoch=3", ["--epoch:", "--epochs?"]),
        ("--batch_size=8", ["--batch_size:", "--batch-size?"]),
        ("--learning-rate=1", ["--learning-rate:", "--lr?"]),
        ("--epochs=x", ["--epochs=x:", "integer"]),
        ("--parallelism.mod=ddp", ["--parallelism.mode?"]),
        ("--training.n_epoch=3", ["--training.n_epoch:", "--training.n_epochs?"]),
        ("--trainig.n_epochs=3", ["--trainig.n_epochs:", "--training.n_epochs?"]),
        ("--rate=0.1", ["--rate:", "--lr or --parallelism.sparse_learning_rate?"]),
        ("--training.max_len=8", ["--training.max_len:", "--model.max_len?"]),
        ("--training.epochs=3", ["--training.n_epochs?"]),
        ("--model.hidden_size=8", ["--model.embed_dim?"]),
        ("--preprocessing.seeed=1", ["--preprocessing.seed?"]),  # the same table comes first
        ("--negatives=3", ["--training.n_train_negatives or --preprocessing.n_eval_negatives?"]),
        ("--dataset=x", ["--data.dataset_dir, --data.source or --data.path?"]),
        ("--qqq=8", ["--qqq:", "--help-all"]),
        ("--training.qqq=8", ["--training.qqq:", "--help-all"]),
        ("--mode=both", ["--mode=both:", '"dmp"', '"ddp"']),
        ('--evaluation.protocols=["ful"]', ['protocols=["ful"]:', '"full"', '"popular"', '"uniform"']),
        ("--parallelism.compute_kernel=uvm", ["compute_kernel=uvm:", '"fused"', '"fused_uvm"', '"fused_uvm_caching"']),
        ("--evaluation.ks=3", ["--evaluation.ks=3:", "'[1, 5]'"]),
        ("--evaluation.protocols=[]", ["--evaluation.protocols=[]:"]),
        ("--data.source=csv", ["--data.source=csv:", '"synthetic"', '"goodreads"', '"table"?']),
        ("--data.source=ml_1m", ['"ml-1m"?']),
        ("--data.source=ml-25", ['"ml-25m"?']),
        ("--data.source=movielens", ['"ml-1m", "ml-32m" or "ml-latest-small"?']),
        ("--data.source=qqq", ['"table"']),
        ("--model.embed_dim=30", ["--model.embed_dim=30:", "4"]),
        ("--training.per_device_train_batch_size=0", ["batch_size=0:", "1", AUTO]),
        ("--training.seed=4294967296", ["--training.seed=4294967296:", "less than 4294967296"]),
        ("--model.dropout=lots", ["--model.dropout=lots:", "number", AUTO]),
        ("--training.compile=1", ["--training.compile=1:", "boolean"]),
        ("--model.n_layers=2.5", ["--model.n_layers=2.5:", "integer"]),
        ("--training.learning_rate=nan", ["--training.learning_rate=nan:", "finite"]),
        ("--evaluation.ks=[0]", ["--evaluation.ks=[0]:", "1"]),
        ("--preprocessing.validation_users=0", ["validation_users=0:", "1", '"all"']),
        ("--parallelism.sparse_learning_rate=0", ["sparse_learning_rate=0:", "greater than 0", AUTO]),
        ("--training.rating_validation=0.9", ["rating_validation=0.9:", "less than 0.9"]),
        ("--run.dir=~no-such-user/runs", ["--run.dir=", "~no-such-user "]),
        ("--data.dataset_dir=s3://b/dataset", ["--data.dataset_dir=s3://b/dataset:", "data.path", "data.titles_path"]),
        ("--data.titles_path=ftp://ann:pw@host/titles.csv", ["=ftp://host/titles.csv:", "s3://", "https://"]),
        ("--preprocessing.split_at=soon", ["split_at=soon:", "2019-03-01"]),
        ("--preprocessing.split_at=", ["split_at=:", "2019-03-01"]),
        ("--preprocessing.time_from=soon", ["time_from=soon:", "2019-03-01"]),
        ("--preprocessing.split_at=1.5", ["split_at=1.5:", "0 and 1", '"2019-03-01"']),
    ],
)
def test_an_error_names_the_option_and_what_is_valid(argument: str, named: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        load_config(None, parse_command_line([argument])[1])
    line = str(caught.value)
    assert [text for text in named if text not in line] == [], line
    assert "\n" not in line
    assert "pw@" not in line


def test_every_setting_is_named_as_people_write_it() -> None:
    assert {*PREPARE_OPTIONS.values(), *SHORT_OPTIONS.values(), "checkpoint.async"} <= {*all_keys()}
    assert not [key for key in all_keys() if key.endswith("_")]


def test_other_names_are_those_of_settings_and_sources_that_exist() -> None:
    for names, valid in ((OTHER_KEYS, {*all_keys()}), (OTHER_SOURCES, {*get_args(Source)})):
        assert names.keys() <= valid
        others = {name for text in names.values() for name in text.split()}
        assert not others & {name.partition(".")[2] or name for name in valid}
