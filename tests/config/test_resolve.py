"""What the settings left to the program become, for a device and a catalogue."""

from typing import Any

import pytest

from bert4rec.config.load import load_config
from bert4rec.config.resolve import resolve
from bert4rec.runtime.errors import SettingsError


@pytest.mark.parametrize(
    ("mode", "device", "changes", "optimizer", "rate"),
    [
        ("ddp", "cpu", {"training.loss": "gbce"}, "adam", 0.003),
        ("dmp", "cuda", {"training.loss": "gbce"}, "adam", 0.003),
        ("dmp", "cpu", {}, "adam", 0.003),  # every row has a gradient at every step, and an ordinary optimizer
        ("dmp", "cpu", {"parallelism.sparse_weight_decay": 0.1, "training.loss": "gbce"}, "adam", 0.003),
        ("dmp", "cpu", {"training.loss": "gbce"}, "rowwise_adagrad", 0.02),
        ("dmp", "cpu", {"parallelism.sharding_type": "table_wise"}, "rowwise_adagrad", 0.02),
        ("dmp", "cpu", {"model.head": "linear"}, "rowwise_adagrad", 0.02),
    ],
)
def test_auto_is_adam_unless_fbgemm_updates_the_table_on_cpu(
    mode: str, device: str, changes: dict[str, Any], optimizer: str, rate: float
) -> None:
    config = load_config(
        None, {"parallelism.mode": mode, "training.learning_rate": 0.003, "training.n_train_negatives": 9, **changes}
    )
    resolved = resolve(config, device, 100).parallelism
    assert (resolved.sparse_optimizer, resolved.sparse_learning_rate, resolved.device) == (optimizer, rate, device)


@pytest.mark.parametrize(
    ("changes", "age"),
    [
        ({}, 0.1),
        ({"parallelism.mode": "ddp", "training.loss": "gbce"}, 0.1),
        ({"training.loss": "gbce"}, 0.0),  # fbgemm updates a table that may be as large as the memory
        ({"training.loss": "gbce", "training.average_age": 0.2}, 0.2),
        ({"training.lr_schedule": "linear"}, 0.0),
        ({"training.lr_schedule": "linear", "training.average_age": 0.2}, 0.2),
        ({"training.average_age": 0.0}, 0.0),
    ],
)
def test_weights_are_averaged_at_a_constant_rate(changes: dict[str, Any], age: float) -> None:
    config = load_config(None, {"training.average_age": "auto", "training.n_train_negatives": 9, **changes})
    assert resolve(config, "cpu", 100).training.average_age == age


@pytest.mark.parametrize(("kind", "chosen"), [("sasrec", True), ("bert4rec", False)])
def test_what_enters_the_blocks_is_normalised_in_causal_models(kind: str, chosen: bool) -> None:
    config = load_config(None, {"model.kind": kind, "model.input_norm": "auto"})
    assert resolve(config, "cpu", 100).model.input_norm == chosen
    for fixed in (True, False):
        config = load_config(None, {"model.kind": kind, "model.input_norm": fixed})
        assert resolve(config, "cpu", 100).model.input_norm == fixed


def test_tables_in_host_memory_need_gpus() -> None:
    config = load_config(None, {"parallelism.compute_kernel": "fused_uvm_caching"})
    assert resolve(config, "cuda", 100).parallelism.compute_kernel == "fused_uvm_caching"
    with pytest.raises(SettingsError) as caught:
        resolve(config, "cpu", 100)
    assert str(caught.value) == (
        'parallelism.compute_kernel = "fused_uvm_caching": only with mode = "dmp" on CUDA; valid with mode = "dmp", '
        'device = "cpu": "fused"'
    )


def test_what_auto_becomes_must_fit_the_sharding() -> None:
    with pytest.raises(SettingsError, match='sparse_optimizer = "rowwise_adagrad": is another algorithm'):
        resolve(load_config(None, {"parallelism.sharding_type": "column_wise"}), "cpu", 100)


def test_rows_of_half_precision_are_for_updates_by_fbgemm() -> None:
    half = {"parallelism.table_precision": "fp16"}
    for fused in ({"training.loss": "gbce"}, {"parallelism.sharding_type": "table_wise"}, {"model.head": "linear"}):
        assert resolve(load_config(None, half | fused), "cpu", 1000).parallelism.table_precision == "fp16"
    gbce = {"training.loss": "gbce"}
    for ordinary in (
        {}, gbce | {"parallelism.sparse_optimizer": "adam"}, gbce | {"parallelism.sparse_weight_decay": 0.1}
    ):  # fmt: skip
        with pytest.raises(SettingsError, match='table_precision = "fp16": fbgemm alone updates such rows') as caught:
            resolve(load_config(None, half | ordinary), "cpu", 1000)
        assert "\n" not in str(caught.value)


def test_adam_of_shards_on_cpu_goes_with_row_wise_ones_only() -> None:
    settings = {"parallelism.sparse_optimizer": "adam"}
    assert resolve(load_config(None, settings), "cpu", 100_000).parallelism.sparse_optimizer == "adam"
    assert resolve(load_config(None, settings), "cuda", 100_001).parallelism.sparse_optimizer == "adam"
    for changes in ({"training.loss": "gbce"}, {"model.head": "linear"}):
        assert resolve(load_config(None, settings | changes), "cpu", 1000).parallelism.sparse_optimizer == "adam"
    for changes in ({"parallelism.sharding_type": "table_wise"}, {"parallelism.sharding_type": "column_wise"}):
        with pytest.raises(SettingsError, match='sparse_optimizer = "adam": fbgemm has no fused Adam on CPU'):
            resolve(load_config(None, settings | changes), "cpu", 1000)


def test_an_mlp_has_no_exact_softmax() -> None:
    settings = {"model.kind": "matrix_factorization", "model.form": "neural"}
    assert resolve(load_config(None, settings), "cpu", 1000).training.loss == "sampled_softmax"
    assert resolve(load_config(None, settings | {"model.form": "dot"}), "cpu", 1000).training.loss == "softmax"


def test_negatives_are_fewer_than_items() -> None:
    config = load_config(None, {"training.loss": "gbce", "training.n_train_negatives": 50})
    assert resolve(config, "cpu", 51).training.loss == "gbce"
    with pytest.raises(SettingsError) as caught:
        resolve(config, "cpu", 50)
    assert str(caught.value) == (
        'training.n_train_negatives = 50: the catalogue has 50 items; draw 49 at most, or set training.loss = "softmax"'
    )


def test_a_single_item_leaves_no_negatives() -> None:
    settings = {"training.loss": "gbce", "training.n_train_negatives": 1}
    with pytest.raises(SettingsError) as caught:
        resolve(load_config(None, settings), "cpu", 1)
    assert str(caught.value) == (
        'training.loss = "gbce": the catalogue has a single item, which leaves no negatives; set training.loss = '
        '"softmax"'
    )
    assert resolve(load_config(None, settings), "cpu", 2).training.loss == "gbce"
