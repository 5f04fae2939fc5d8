"""How rows of a table are updated, to the letter; what goes together is tested where settings are refused."""

from typing import Any

import pytest

from bert4rec.config.kinds import KINDS, needs_negatives, table_updates

EXACT: dict[str, Any] = {
    "mode": "dmp", "device_type": "cpu", "loss": "softmax", "is_scored": True, "sharding_type": "row_wise",
    "compute_kernel": "fused", "optimizer": "rowwise_adagrad", "weight_decay": 0.0,
}  # fmt: skip
DECAYED, ADAM = {"loss": "bpr", "weight_decay": 0.1}, {"loss": "bpr", "optimizer": "adam"}


@pytest.mark.parametrize(
    ("changes", "updates"),
    [
        ({}, "dense_shards"), ({"mode": "ddp"}, "replicated"), ({"loss": "gbce"}, "fused"),
        ({"is_scored": False}, "fused"), ({"sharding_type": "table_wise"}, "fused"),
        ({"compute_kernel": "fused_uvm"}, "fused"), (DECAYED, "dense_shards"),
        (DECAYED | {"sharding_type": "table_wise"}, "fused"),  # and refused
        (ADAM, "dense_shards"), (ADAM | {"device_type": "cuda"}, "fused"),
    ],
)  # fmt: skip
def test_shards_are_dense_parameters_where_every_row_changes_or_fbgemm_has_no_optimizer(
    changes: dict[str, Any], updates: str
) -> None:
    assert table_updates(**EXACT | changes) == updates


def test_losses_neither_of_the_whole_catalogue_nor_of_ratings_need_negatives() -> None:
    sampled = ["sampled_softmax", "gbce", "bpr"]
    assert [loss for loss in ("softmax", *sampled, "mse") if needs_negatives(loss)] == sampled


def test_scores_of_an_mlp_are_no_products() -> None:
    factors = KINDS["matrix_factorization"]
    assert [factors.has_products(form) for form in ("dot", "bias", "neural")] == [True, True, False]
    assert KINDS["sasrec"].has_products("neural")
