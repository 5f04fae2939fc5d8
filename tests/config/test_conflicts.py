"""Settings that contradict each other: one line that names one of them."""

from typing import Any

import pytest

from bert4rec.config.conflicts import conflicts
from bert4rec.config.load import load_config
from bert4rec.config.tables import Config
from bert4rec.runtime.errors import SettingsError
from tests.checks import one_line

FACTORS = {"model.kind": "matrix_factorization"}
AVERAGE = {"training.average_age": 0.1}
UVM = {"parallelism.compute_kernel": "fused_uvm"}


def test_the_defaults_go_together() -> None:
    assert list(conflicts(Config())) == []


@pytest.mark.parametrize(
    ("settings", "blamed", "valid"),
    [
        ({"model.n_heads": 3}, "model.n_heads = 3", "[1, 2, 4, 8, 16, 32, 64]"),
        ({"training.sliding_step": 51, "model.max_len": 50}, "training.sliding_step = 51", "50"),
        ({"training.random_token_share": 0.5}, "training.random_token_share = 0.5", "mask_token_share = 1.0"),
        (
            {"preprocessing.max_user_interactions": 4, "preprocessing.min_user_interactions": 5},
            "preprocessing.max_user_interactions = 4", "min_user_interactions = 5",
        ),
        (
            {"preprocessing.time_from": "2019-03-01T12:00:00", "preprocessing.time_until": "2019-03-01"},
            'preprocessing.time_until = "2019-03-01"', 'time_from = "2019-03-01T12:00:00"',
        ),
        ({"parallelism.sync_every_n_steps": 4}, "parallelism.sync_every_n_steps = 4", "sharding_group_size = 0"),
        ({"run.init_from": "runs/a", "run.resume": "runs/b"}, 'run.init_from = "runs/a"', 'run.resume = "runs/b"'),
        (
            {"model.positions": "rotary", "model.embed_dim": 36, "model.n_heads": 4},
            'model.positions = "rotary"', '"learned"',
        ),
        (AVERAGE | {"parallelism.table_precision": "fp16"}, "training.average_age = 0.1", 'table_precision = "fp16"'),
        (
            AVERAGE | {"parallelism.sync_every_n_steps": 4, "parallelism.sharding_group_size": 2},
            "training.average_age = 0.1", "sync_every_n_steps = 4",
        ),
        (AVERAGE | UVM, "training.average_age = 0.1", "fused_uvm"),
        (FACTORS | {"model.head": "linear"}, 'model.head = "linear"', '"tied"'),
        (FACTORS | {"training.compile": True}, "training.compile = true", "false"),
        ({"training.precision": "tf32", "parallelism.device": "cpu"}, 'training.precision = "tf32"', '"fp32", "bf16"'),
        ({"training.loss": "mse"}, 'training.loss = "mse"', '"matrix_factorization"'),
        (
            FACTORS | {"model.form": "neural", "training.loss": "softmax"},
            'training.loss = "softmax"', '"sampled_softmax", "gbce", "bpr", "mse"',
        ),
        ({"training.rating_range": [5.0, 0.0]}, "training.rating_range = [5.0, 0.0]", "[]"),
        (
            {"training.rating_holdout": 0.5, "training.rating_validation": 0.5},
            "training.rating_validation = 0.5", "rating_holdout = 0.5",
        ),
        (
            {"training.lr_schedule": "one_cycle", "training.warmup_steps": 3}, "training.warmup_steps = 3", "one_cycle",
        ),
        (
            {"parallelism.sparse_weight_decay": 0.1, "parallelism.sharding_type": "table_wise"},
            "parallelism.sparse_weight_decay = 0.1", '"row_wise"',
        ),
        (
            {"data.title_column": "name", "data.titles_path": "t.csv"},
            'data.title_column = "name"', 'data.titles_path = "t.csv"',
        ),
        (
            {"parallelism.sharding_type": "column_wise", "parallelism.sparse_optimizer": "rowwise_adagrad"},
            'parallelism.sparse_optimizer = "rowwise_adagrad"', "column_wise",
        ),
        *[
            ({f"parallelism.{name}": value, "parallelism.mode": "ddp"}, f'parallelism.{name} = "{value}"', '"fp32"')
            for name, value in (("table_precision", "fp16"), ("messages", "bf16"))
        ],
        *[
            (
                UVM | {"parallelism.mode": mode, "parallelism.device": device},
                'parallelism.compute_kernel = "fused_uvm"', '"fused"',
            )
            for mode, device in (("ddp", "cuda"), ("ddp", "auto"), ("dmp", "cpu"))
        ],
    ],
)  # fmt: skip
def test_a_conflict_is_one_line(settings: dict[str, Any], blamed: str, valid: str) -> None:
    """It begins with the setting and its value, and names the other setting or the valid values."""
    with one_line(f"{blamed}: ", valid, error=SettingsError):
        load_config(None, settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"parallelism.table_precision": "fp16", "parallelism.mode": "dmp"},
        {"parallelism.messages": "bf16", "parallelism.mode": "dmp"},
        FACTORS | {"model.n_heads": 3},
        {"data.title_column": "name"},
    ],
)
def test_these_go_together(settings: dict[str, Any]) -> None:
    load_config(None, settings)
