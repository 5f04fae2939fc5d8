"""The one line for a setting that does not fit, to the letter."""

from typing import Any

import pytest

from bert4rec.config.load import load_config, parse_command_line
from bert4rec.config.setting_errors import NOWHERE, SHORT_OPTIONS, Origins, all_keys, shown
from bert4rec.runtime.errors import SettingsError


@pytest.mark.parametrize(
    ("argument", "message"),
    [
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
        ('--evaluation.protocols=["ful"]', '--evaluation.protocols=["ful"]: must be "full", "popular" or "uniform"'),
        (
            "--parallelism.compute_kernel=uvm",
            '--parallelism.compute_kernel=uvm: must be "fused", "fused_uvm" or "fused_uvm_caching"',
        ),
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
    ],
)
def test_an_unknown_key_or_value_is_one_line_with_what_is_valid(argument: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_config(None, parse_command_line([argument])[1])
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("origins", "blamed"),
    [
        (NOWHERE, "preprocessing.sliding_step = 11"),
        (Origins("my.toml", frozenset({"model.n_heads"})), "preprocessing.sliding_step = 11"),
        (Origins("my.toml", frozenset({"model.max_len"})), "my.toml: preprocessing.sliding_step = 11"),
        (Origins(typed={"preprocessing.sliding_step": "--preprocessing.sliding_step 11"}),
         "--preprocessing.sliding_step 11"),
    ],
)  # fmt: skip
def test_a_combination_is_laid_to_where_it_was_written(origins: Origins, blamed: str) -> None:
    rest = "above model.max_len = 10 items between two windows would never be trained on"
    assert origins.blame("preprocessing.sliding_step", 11, rest) == f"{blamed}: {rest}"


@pytest.mark.parametrize(
    ("value", "text"), [(True, "true"), (7, "7"), (0.5, "0.5"), ("a b", '"a b"'), ("", '""'), ([1, 5], "[1, 5]")]
)
def test_a_value_is_shown_as_it_would_stand_in_the_file(value: Any, text: str) -> None:
    assert shown(value) == text


def test_every_setting_is_named_as_people_write_it() -> None:
    assert {*SHORT_OPTIONS.values(), "checkpoint.async"} <= {*all_keys()}
    assert not [key for key in all_keys() if key.endswith("_")]
