"""Settings that contradict each other: one line that names one of them."""

from typing import Any

import pytest
import tomli

from bert4rec.config.conflicts import conflicts
from bert4rec.config.load import load_config
from bert4rec.config.tables import Config
from bert4rec.runtime.errors import SettingsError
from tests.checks import one_line

FACTORS = 'model.kind = "matrix_factorization"'
AVERAGE = "training.average_age = 0.1"
UVM = 'parallelism.compute_kernel = "fused_uvm"'


def settings_of(lines: str) -> dict[str, Any]:
    """Settings as they stand in a file, by their whole names."""
    pairs = (line.split(" = ", 1) for line in lines.split("; "))
    return {name: tomli.loads(f"value = {value}")["value"] for name, value in pairs}


def test_the_defaults_go_together() -> None:
    assert list(conflicts(Config())) == []


@pytest.mark.parametrize(
    ("settings", "valid"),  # the first setting is the one that is blamed
    [
        ("model.n_heads = 3", "[1, 2, 4, 8, 16, 32, 64]"), ("training.sliding_step = 51; model.max_len = 50", "50"),
        ("training.random_token_share = 0.5", "mask_token_share = 1.0"),
        (
            "preprocessing.max_user_interactions = 4; preprocessing.min_user_interactions = 5",
            "min_user_interactions = 5",
        ),
        (
            'preprocessing.time_until = "2019-03-01"; preprocessing.time_from = "2019-03-01T12:00:00"',
            'time_from = "2019-03-01T12:00:00"',
        ),
        ('run.init_from = "runs/a"; run.resume = "runs/b"', 'run.resume = "runs/b"'),
        ('model.positions = "rotary"; model.embed_dim = 36; model.n_heads = 4', '"learned"'),
        (f'{AVERAGE}; parallelism.table_precision = "fp16"', 'table_precision = "fp16"'),
        (f"{AVERAGE}; {UVM}", "fused_uvm"), (f'model.head = "linear"; {FACTORS}', '"tied"'),
        (f"training.compile = true; {FACTORS}", "false"),
        ('training.precision = "tf32"; parallelism.device = "cpu"', '"fp32", "bf16"'),
        ('training.loss = "mse"', '"matrix_factorization"'),
        (f'training.loss = "softmax"; model.form = "neural"; {FACTORS}', '"sampled_softmax", "gbce", "bpr", "mse"'),
        ("training.rating_range = [5.0, 0.0]", "[]"),
        ('training.warmup_steps = 3; training.lr_schedule = "one_cycle"', "one_cycle"),
        ('parallelism.sparse_weight_decay = 0.1; parallelism.sharding_type = "table_wise"', '"row_wise"'),
        ('data.title_column = "name"; data.titles_path = "t.csv"', 'data.titles_path = "t.csv"'),
        ('parallelism.sparse_optimizer = "rowwise_adagrad"; parallelism.sharding_type = "column_wise"', "column_wise"),
        ('parallelism.table_precision = "fp16"; parallelism.mode = "ddp"', '"fp32"'),
        ('parallelism.messages = "bf16"; parallelism.mode = "ddp"', '"fp32"'),
        *[
            (f'{UVM}; parallelism.mode = "{mode}"; parallelism.device = "{device}"', '"fused"')
            for mode, device in (("ddp", "cuda"), ("ddp", "auto"), ("dmp", "cpu"))
        ],
    ],
)  # fmt: skip
def test_a_conflict_is_one_line(settings: str, valid: str) -> None:
    """It begins with the setting and its value, and names the other setting or the valid values."""
    with one_line(f"{settings.partition('; ')[0]}: ", valid, error=SettingsError):
        load_config(None, settings_of(settings))


@pytest.mark.parametrize(
    "settings",
    [
        'parallelism.table_precision = "fp16"; parallelism.mode = "dmp"',
        'parallelism.messages = "bf16"; parallelism.mode = "dmp"',
        f"{FACTORS}; model.n_heads = 3", 'data.title_column = "name"',
        'parallelism.sparse_optimizer = "adagrad"; parallelism.sharding_type = "column_wise"',
        *[f'{UVM}; parallelism.mode = "dmp"; parallelism.device = "{device}"' for device in ("cuda", "auto")],
    ],
)  # fmt: skip
def test_these_go_together(settings: str) -> None:
    load_config(None, settings_of(settings))
