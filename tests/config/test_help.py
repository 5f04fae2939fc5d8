"""One line for a setting that is unknown or has an impossible value: the setting, the value, what is valid."""

from typing import get_args

import pytest

from bert4rec.config.help import (
    OTHER_KEYS,
    OTHER_SOURCES,
    PREPARE_OPTIONS,
    SHORT_OPTIONS,
    all_settings,
)
from bert4rec.config.load import load_config, parse_command_line
from bert4rec.config.tables import Source
from bert4rec.runtime.errors import SettingsError
from tests.checks import one_line

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
    "--training.rating_validation=0.9", "--run.dir=~no-such-user/runs", "--data.dataset_dir=s3://b/dataset",
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
