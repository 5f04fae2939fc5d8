"""Settings that do not go together: one line that blames one of them."""

from typing import Any

import pytest

from bert4rec.config.conflicts import conflicts
from bert4rec.config.load import load_config, parse_command_line
from bert4rec.config.tables import Config
from bert4rec.runtime.errors import SettingsError


def test_the_defaults_go_together() -> None:
    assert list(conflicts(Config())) == []


@pytest.mark.parametrize(("name", "value"), [("table_precision", "fp16"), ("messages", "bf16")])
def test_half_precision_is_for_tables_in_shards(name: str, value: str) -> None:
    settings = {f"parallelism.{name}": value, "parallelism.mode": "ddp"}
    with pytest.raises(SettingsError) as caught:
        load_config(None, settings)
    assert str(caught.value).endswith(
        f'parallelism.{name} = "{value}": only for tables in shards, with mode = "dmp"; valid with mode = "ddp": "fp32"'
    )
    load_config(None, settings | {"parallelism.mode": "dmp"})


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--model.n_heads=3", "--model.n_heads=3: must divide model.embed_dim = 64; valid: [1, 2, 4, 8, 16, 32, 64]"),
        (
            "--preprocessing.sliding_step=51",
            "--preprocessing.sliding_step=51: above model.max_len = 50 items between two windows would never be "
            "trained on",
        ),
        (
            "--training.random_token_share=0.5",
            "--training.random_token_share=0.5: with mask_token_share = 1.0 the sum is above 1",
        ),
        (
            "--preprocessing.max_user_interactions=4",
            "--preprocessing.max_user_interactions=4: no user can pass with min_user_interactions = 5",
        ),
        (
            "--preprocessing.time_until=2019-03-01",
            '--preprocessing.time_until=2019-03-01: must be after time_from = "2019-03-01T12:00:00"',
        ),
        (
            "--parallelism.sync_every_n_steps=4",
            "--parallelism.sync_every_n_steps=4: without groups (sharding_group_size = 0) there are no copies to keep "
            "in step; set it to 1",
        ),
        (
            "--run.init_from=runs/a",
            '--run.init_from=runs/a: with run.resume = "runs/b" the weights are there already; choose one of them',
        ),
    ],
)
def test_a_conflict_is_one_line(argument: str, message: str) -> None:
    others = ["--preprocessing.min_user_interactions=5", "--preprocessing.time_from=2019-03-01T12:00:00"]
    others.append("--model.max_len=50")
    resume = ["--resume=runs/b"] if "init_from" in argument else []
    with pytest.raises(SettingsError) as caught:
        load_config(None, parse_command_line([*others, *resume, argument])[1])
    assert str(caught.value) == message


FACTORS = {"model.kind": "matrix_factorization"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"model.positions": "rotary", "model.embed_dim": 36, "model.n_heads": 4},
            'model.positions = "rotary": "rotary" turns pairs of numbers, and a head has 36 / 4 of them; make that an '
            'even number, or choose "learned"',
        ),
        (
            {"training.average_age": 0.1, "parallelism.table_precision": "fp16"},
            'training.average_age = 0.1: in table_precision = "fp16" most of what goes into a mean is rounded away; '
            "set it to 0",
        ),
        (
            {
                "training.average_age": 0.1,
                "parallelism.sync_every_n_steps": 4,
                "parallelism.sharding_group_size": 2,
            },
            "training.average_age = 0.1: with sync_every_n_steps = 4 the copies of a table differ; set it to 0",
        ),
        (
            {"training.average_age": 0.1, "parallelism.compute_kernel": "fused_uvm"},
            'training.average_age = 0.1: compute_kernel = "fused_uvm" is for tables that do not fit twice; set it to 0',
        ),
        (
            {**FACTORS, "model.head": "linear"},
            'model.head = "linear": a layer of scores stands behind a transformer; valid with model.kind = '
            '"matrix_factorization": "tied"',
        ),
        (
            {**FACTORS, "training.compile": True},
            "training.compile = true: compiles the blocks of a transformer, of which model.kind = "
            '"matrix_factorization" has none; set it to false',
        ),
        (
            {**FACTORS, "preprocessing.sliding_step": 10, "model.max_len": 50},
            "preprocessing.sliding_step = 10: below model.max_len = 50 the windows overlap, and model.kind = "
            '"matrix_factorization" would take pairs several times; set it to 0 and prepare the dataset again',
        ),
        (
            {"training.precision": "tf32", "parallelism.device": "cpu"},
            'training.precision = "tf32": "tf32" is an arithmetic of NVIDIA GPUs; valid on CPU: "fp32", "bf16"',
        ),
        (
            {"training.loss": "mse"},
            'training.loss = "mse": "mse" is for ratings of pairs, with model.kind = "matrix_factorization"; not for '
            'model.kind = "bert4rec"',
        ),
        (
            {**FACTORS, "model.form": "neural", "training.loss": "softmax"},
            'training.loss = "softmax": "softmax" scores the whole catalogue by products, which model.form = "neural" '
            'does not have; valid: "sampled_softmax", "gbce", "bpr", "mse"',
        ),
        (
            {"training.rating_range": [5.0, 0.0]},
            "training.rating_range = [5.0, 0.0]: must be two ascending numbers, such as [0, 5.5], or [] for no limits",
        ),
        (
            {"training.rating_holdout": 0.5, "training.rating_validation": 0.5},
            "training.rating_validation = 0.5: with rating_holdout = 0.5 nothing is left to train on; the sum must be "
            "below 1",
        ),
        (
            {"training.lr_schedule": "one_cycle", "training.warmup_steps": 3},
            'training.warmup_steps = 3: lr_schedule = "one_cycle" has a warm-up of its own; set it to 0',
        ),
        (
            {"parallelism.sparse_weight_decay": 0.1, "parallelism.sharding_type": "table_wise"},
            "parallelism.sparse_weight_decay = 0.1: fbgemm's fused updates reach only rows that a step looks up, and "
            'decay is for all of them; it goes with sharding_type = "row_wise" with compute_kernel = "fused", or '
            "--mode=ddp",
        ),
    ],
)
def test_what_a_kind_of_model_cannot_do_is_one_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_config(None, settings)
    assert str(caught.value) == message


def test_heads_are_a_transformers_own_affair() -> None:
    assert load_config(None, FACTORS | {"model.n_heads": 3}).model.n_heads == 3


def test_titles_come_from_one_place() -> None:
    load_config(None, {"data.title_column": "name"})
    with pytest.raises(SettingsError) as caught:
        load_config(None, {"data.title_column": "name", "data.titles_path": "t.csv"})
    assert str(caught.value) == (
        'data.title_column = "name": titles come from data.titles_path = "t.csv" already; leave one of them empty'
    )


def test_row_wise_adagrad_over_cut_rows_is_refused() -> None:
    with pytest.raises(SettingsError, match="is another algorithm when a row is cut column_wise"):
        load_config(
            None, {"parallelism.sharding_type": "column_wise", "parallelism.sparse_optimizer": "rowwise_adagrad"}
        )


@pytest.mark.parametrize(("mode", "device"), [("ddp", "cuda"), ("ddp", "auto"), ("dmp", "cpu")])
def test_tables_in_host_memory_are_for_sharded_tables_on_gpus(mode: str, device: str) -> None:
    how = {"parallelism.mode": mode, "parallelism.device": device, "parallelism.compute_kernel": "fused_uvm"}
    with pytest.raises(SettingsError) as caught:
        load_config(None, how)
    assert str(caught.value) == (
        'parallelism.compute_kernel = "fused_uvm": only with mode = "dmp" on CUDA; valid with '
        f'mode = "{mode}", device = "{device}": "fused"'
    )
