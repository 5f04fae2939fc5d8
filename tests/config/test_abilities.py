"""What can be combined, and what cannot, to the letter."""

from typing import Any

from bert4rec.config.abilities import (
    has_kernel,
    has_optimizer,
    needs_negatives,
    supports_column_sharding,
    table_updates,
)
from bert4rec.config.kinds import KINDS

EXACT: dict[str, Any] = {
    "mode": "dmp", "device_type": "cpu", "loss": "softmax", "is_scored": True, "sharding_type": "row_wise",
    "compute_kernel": "fused", "optimizer": "rowwise_adagrad", "weight_decay": 0.0,
}  # fmt: skip
SAMPLED = ["sampled_softmax", "gbce", "bpr"]


def test_shards_are_dense_parameters_where_every_item_has_a_gradient() -> None:
    assert table_updates(**EXACT) == "dense_shards"
    assert table_updates(**EXACT | {"mode": "ddp"}) == "replicated"
    others = {"loss": "gbce", "is_scored": False, "sharding_type": "table_wise", "compute_kernel": "fused_uvm"}
    assert {table_updates(**EXACT | {name: value}) for name, value in others.items()} == {"fused"}


def test_shards_are_dense_where_every_row_decays_or_fbgemm_has_no_such_optimizer() -> None:
    sampled = EXACT | {"loss": "bpr"}
    assert table_updates(**sampled | {"weight_decay": 0.1}) == "dense_shards"
    assert table_updates(**sampled | {"weight_decay": 0.1, "sharding_type": "table_wise"}) == "fused"  # and refused
    assert table_updates(**sampled | {"optimizer": "adam"}) == "dense_shards"
    assert table_updates(**sampled | {"optimizer": "adam", "device_type": "cuda"}) == "fused"


def test_losses_neither_of_the_whole_catalogue_nor_of_ratings_need_negatives() -> None:
    assert [loss for loss in ("softmax", *SAMPLED, "mse") if needs_negatives(loss)] == SAMPLED


def test_scores_of_an_mlp_are_no_products() -> None:
    factors = KINDS["matrix_factorization"]
    assert [factors.has_products(form) for form in ("dot", "bias", "neural")] == [True, True, False]
    assert KINDS["sasrec"].has_products("neural")


def test_there_is_no_fused_adam_on_a_cpu() -> None:
    assert not has_optimizer("adam", "fused", "cpu")
    assert has_optimizer("adam", "fused", "cuda")
    assert has_optimizer("adam", "dense_shards", "cpu")
    assert has_optimizer("adam", "replicated", "cpu")
    assert has_optimizer("rowwise_adagrad", "fused", "cpu")


def test_row_wise_adagrad_needs_whole_rows() -> None:
    pairs = [(name, kind) for name in ("rowwise_adagrad", "adagrad") for kind in ("row_wise", "column_wise")]
    assert [pair for pair in pairs if not supports_column_sharding(*pair)] == [("rowwise_adagrad", "column_wise")]


def test_tables_in_host_memory_need_shards_and_a_gpu() -> None:
    assert has_kernel("fused", "ddp", "cpu")
    assert [has_kernel("fused_uvm", "dmp", device) for device in ("cpu", "cuda", "auto")] == [False, True, True]
    assert not has_kernel("fused_uvm", "ddp", "cuda")
