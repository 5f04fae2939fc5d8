"""Settings that do not go together: one line that blames one of them."""

import pytest

from bert4rec.config.conflicts import conflicts
from bert4rec.config.load import load_config, parse_command_line
from bert4rec.config.tables import Config
from bert4rec.runtime.errors import SettingsError


def test_the_defaults_go_together() -> None:
    assert list(conflicts(Config())) == []


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
            "--run.init_from=runs/a",
            '--run.init_from=runs/a: with run.resume = "runs/b" the weights are there already; choose one of them',
        ),
    ],
)
def test_a_conflict_is_one_line(argument: str, message: str) -> None:
    others = ["--preprocessing.min_user_interactions=5", "--preprocessing.time_from=2019-03-01T12:00:00"]
    resume = ["--resume=runs/b"] if "init_from" in argument else []
    with pytest.raises(SettingsError) as caught:
        load_config(None, parse_command_line([*others, *resume, argument])[1])
    assert str(caught.value) == message


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
