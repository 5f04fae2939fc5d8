"""What is suggested in place of a name that does not exist."""

from typing import get_args

import pytest

from bert4rec.config.setting_errors import all_keys
from bert4rec.config.suggestions import OTHER_KEYS, OTHER_SOURCES, did_you_mean, nearest_keys, nearest_values
from bert4rec.config.tables import Source


def test_only_settings_and_sources_have_other_names() -> None:
    assert OTHER_KEYS.keys() <= {*all_keys()}
    assert OTHER_SOURCES.keys() <= {*get_args(Source)}


def test_no_other_name_is_the_name_of_a_setting() -> None:
    others = [{name for text in names.values() for name in text.split()} for names in (OTHER_KEYS, OTHER_SOURCES)]
    assert not others[0] & {key.partition(".")[2] for key in all_keys()}
    assert not others[1] & {*get_args(Source)}


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("lr", ["training.learning_rate", "parallelism.sparse_learning_rate"]),
        ("Batch-Size", ["training.per_device_train_batch_size"]),
        ("training.epochs", ["training.n_epochs"]),
        ("model.hidden_size", ["model.embed_dim"]),
        ("data.user", ["data.user_column"]),
        ("training.max_len", ["model.max_len"]),  # another table's
        ("seed", ["preprocessing.seed", "training.seed"]),
        ("preprocessing.seeed", ["preprocessing.seed"]),  # the same table's before the others'
        ("dataset", ["data.dataset_dir", "data.source", "data.path"]),
        ("n_epoch", ["training.n_epochs"]),
        ("qqq", []),
    ],
)
def test_the_nearest_settings(name: str, keys: list[str]) -> None:
    assert nearest_keys(name, all_keys()) == keys


def test_never_more_than_three() -> None:
    assert nearest_keys("x", [f"{table}.x" for table in "abcde"]) == ["a.x", "b.x", "c.x"]


@pytest.mark.parametrize(
    ("value", "sources"),
    [
        ("csv", ["table"]),
        ("Parquet", ["table"]),
        ("json", ["table"]),
        ("ml_1m", ["ml-1m"]),
        ("ml-25", ["ml-25m"]),
        ("ml-latest", ["ml-32m", "ml-latest-small"]),
        ("movielens", ["ml-1m", "ml-32m", "ml-latest-small"]),
        ("tabel", ["table"]),
        ("qqq", []),
    ],
)
def test_the_nearest_sources(value: str, sources: list[str]) -> None:
    assert nearest_values(value, get_args(Source), OTHER_SOURCES) == sources


def test_names_as_a_question() -> None:
    assert [did_you_mean(names) for names in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == [
        "", "; did you mean a?", "; did you mean a or b?", "; did you mean a, b or c?",
    ]  # fmt: skip
