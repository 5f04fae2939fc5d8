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
    "settings",  # the error names the first
    [
        "model.n_heads = 3", "training.sliding_step = 51; model.max_len = 50", "training.random_token_share = 0.5",
        "preprocessing.max_user_interactions = 4; preprocessing.min_user_interactions = 5",
        'preprocessing.time_until = "2019-03-01"; preprocessing.time_from = "2019-03-01T12:00:00"',
        'run.init_from = "runs/a"; run.resume = "runs/b"', 'training.loss = "mse"',
        'model.positions = "rotary"; model.embed_dim = 36; model.n_heads = 4', f'model.head = "linear"; {FACTORS}',
        f'{AVERAGE}; parallelism.table_precision = "fp16"', f"{AVERAGE}; {UVM}", f"training.compile = true; {FACTORS}",
        'training.precision = "tf32"; parallelism.device = "cpu"', "training.rating_range = [5.0, 0.0]",
        f'training.loss = "softmax"; model.form = "neural"; {FACTORS}',
        'training.warmup_steps = 3; training.lr_schedule = "one_cycle"',
        'parallelism.sparse_weight_decay = 0.1; parallelism.sharding_type = "table_wise"',
        'data.title_column = "name"; data.titles_path = "t.csv"',
        'parallelism.sparse_optimizer = "rowwise_adagrad"; parallelism.sharding_type = "column_wise"',
        'parallelism.table_precision = "fp16"; parallelism.mode = "ddp"',
        'parallelism.messages = "bf16"; parallelism.mode = "ddp"',
        *[
            f'{UVM}; parallelism.mode = "{mode}"; parallelism.device = "{device}"'
            for mode, device in (("ddp", "cuda"), ("ddp", "auto"), ("dmp", "cpu"))
        ],
    ],
)  # fmt: skip
def test_a_conflict_is_one_line_that_begins_with_the_setting_and_its_value(settings: str) -> None:
    with one_line(f"{settings.partition('; ')[0]}: ", error=SettingsError):
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
