"""What the settings left to the program become, for a device and a catalogue."""

from typing import Any

import pytest

from bert4rec.config.kinds import SHARDING_TYPES, supports_column_sharding
from bert4rec.config.load import load_config, with_changes
from bert4rec.config.resolve import Facts, choices, resolve, slow_settings
from bert4rec.runtime.errors import SettingsError
from tests.checks import one_line

BATCHES_OF_8 = {"training.per_device_train_batch_size": 8}


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
        ("dmp", "cpu", {"parallelism.sharding_type": "column_wise"}, "adagrad", 0.02),
        ("dmp", "cuda", {"parallelism.sharding_type": "column_wise"}, "adam", 0.003),
        ("ddp", "cpu", {"parallelism.sharding_type": "column_wise"}, "adam", 0.003),
    ],
)
def test_auto_is_adam_unless_fbgemm_updates_the_table_on_cpu(
    mode: str, device: str, changes: dict[str, Any], optimizer: str, rate: float
) -> None:
    config = load_config(
        None, {"parallelism.mode": mode, "training.learning_rate": 0.003, "training.n_train_negatives": 9, **changes}
    )
    resolved = resolve(config, device, Facts(100)).parallelism
    assert (resolved.sparse_optimizer, resolved.sparse_learning_rate, resolved.device) == (optimizer, rate, device)


@pytest.mark.parametrize(
    ("changes", "age"),
    [
        ({}, 0.1), ({"parallelism.mode": "ddp", "training.loss": "gbce"}, 0.1),
        ({"training.loss": "gbce"}, 0.0),  # fbgemm updates a table that may be as large as the memory
        ({"training.loss": "gbce", "training.average_age": 0.2}, 0.2), ({"training.lr_schedule": "linear"}, 0.0),
        ({"training.lr_schedule": "linear", "training.average_age": 0.2}, 0.2),
        ({"training.average_age": 0.0}, 0.0),
    ],
)  # fmt: skip
def test_weights_are_averaged_at_a_constant_rate(changes: dict[str, Any], age: float) -> None:
    config = load_config(None, {"training.average_age": "auto", "training.n_train_negatives": 9, **changes})
    assert resolve(config, "cpu", Facts(100)).training.average_age == age


@pytest.mark.parametrize("key", ["training.precision", "training.compile"])
def test_what_is_slower_on_cpu_is_warned_of_there(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    slow = load_config(None, {key: {"training.precision": "bf16", "training.compile": True}[key]})
    assert [f"{key} = " in warning for warning in slow_settings(resolve(slow, "cpu", Facts(100)))] == [True]
    for config, device in ((slow, "cuda"), (load_config(None, {}), "cpu")):
        assert [*slow_settings(resolve(config, device, Facts(100)))] == []


@pytest.mark.parametrize(("kind", "chosen"), [("sasrec", True), ("bert4rec", False)])
def test_what_enters_the_blocks_is_normalised_in_causal_models(kind: str, chosen: bool) -> None:
    for given, expected in (("auto", chosen), (True, True), (False, False)):
        config = load_config(None, {"model.kind": kind, "model.input_norm": given})
        assert resolve(config, "cpu", Facts(100)).model.input_norm == expected


@pytest.mark.parametrize(
    ("facts", "sasrec", "bert4rec"),
    [
        (Facts(100, 10_000), 0.1, 0.1), (Facts(100, 9_900), 0.3, 0.2), (Facts(100, 3_000), 0.3, 0.2),
        (Facts(100, 2_900), 0.5, 0.2),
        (Facts(100, 0), 0.1, 0.1),  # not known
    ],
)  # fmt: skip
def test_the_less_is_known_of_an_item_the_higher_dropout_is(facts: Facts, sasrec: float, bert4rec: float) -> None:
    for kind, dropout in (("sasrec", sasrec), ("bert4rec", bert4rec)):
        config, n = load_config(None, {"model.kind": kind}), facts.n_rows // 100
        assert resolve(config, "cpu", facts).model.dropout == dropout
        choice = next(choices(config, facts, 1))
        assert choice.startswith(f"model.dropout = {dropout}: ")
        assert f" {n} " in choice


def test_dropout_that_is_set_is_kept_and_that_of_a_factorisation_does_not_depend_on_the_data() -> None:
    facts, factors = Facts(100, 200), {"model.kind": "matrix_factorization"}
    for settings, dropout in (({"model.dropout": 0.25, **BATCHES_OF_8}, 0.25), (factors, 0.1)):
        config = load_config(None, settings)
        assert (resolve(config, "cpu", facts).model.dropout, [*choices(config, facts, 1)]) == (dropout, [])


@pytest.mark.parametrize(
    ("n_windows", "world_size", "sasrec", "bert4rec"),
    [
        (10, 1, 1, 1), (100, 1, 4, 4),  # 25 steps; 8 would leave 13
        (1090, 1, 16, 64),  # no fewer, as long as 16 steps are left
        (1090, 2, 8, 32), (1090, 3, 4, 16),  # a power of two
        (1090, 32, 1, 2), (2047, 1, 16, 64),  # 32 would leave 64 steps but for one
        (2048, 1, 32, 64), (8648, 1, 64, 64), (8648, 2, 64, 64), (8648, 3, 32, 32), (10**8, 1, 64, 64),
        (10**8, 8, 64, 64), (0, 8, 64, 64),  # not known
    ],
)  # fmt: skip
def test_the_fewer_windows_there_are_the_smaller_are_batches(
    n_windows: int, world_size: int, sasrec: int, bert4rec: int
) -> None:
    facts = Facts(100, 1000, n_windows=n_windows)
    for kind, per_device in (("sasrec", sasrec), ("bert4rec", bert4rec)):
        config = load_config(None, {"model.dropout": 0.1, "model.kind": kind})
        assert resolve(config, "cpu", facts, world_size).training.per_device == per_device
        (choice,) = choices(config, facts, world_size)
        assert choice.startswith(f"training.per_device_train_batch_size = {per_device}: ")


def test_a_batch_that_is_set_is_kept_on_any_number_of_processes() -> None:
    config, facts = load_config(None, {"model.dropout": 0.1, **BATCHES_OF_8}), Facts(100, 1000, n_windows=5000)
    for world_size in (1, 3):
        assert resolve(config, "cpu", facts, world_size).training.per_device == 8
        assert [*choices(config, facts, world_size)] == []


def test_a_batch_of_a_factorisation_is_one_of_pairs() -> None:
    config, facts = load_config(None, {"model.kind": "matrix_factorization"}), Facts(100, 100_000, n_windows=900)
    assert resolve(config, "cpu", facts).training.per_device == 64
    assert resolve(config, "cpu", facts._replace(n_rows=900)).training.per_device == 32


@pytest.mark.parametrize(
    ("typical", "step", "length"), [(0, 0, 50), (50, 0, 50), (51, 0, 100), (101, 0, 200), (900, 0, 200), (50, 70, 70)]
)
def test_most_histories_fit_into_a_window(typical: int, step: int, length: int) -> None:
    config, facts = load_config(None, {"training.sliding_step": step}), Facts(100, typical_length=typical)
    assert resolve(config, "cpu", facts).max_len == length
    assert resolve(with_changes(config, "model", {"max_len": 90}), "cpu", facts).max_len == 90
    said = [line for line in choices(config, facts, 1) if line.startswith(f"model.max_len = {length}: ")]
    assert len(said) == (typical > 0)


def test_tables_in_host_memory_need_gpus() -> None:
    config = load_config(None, {"parallelism.compute_kernel": "fused_uvm_caching"})
    assert resolve(config, "cuda", Facts(100)).parallelism.compute_kernel == "fused_uvm_caching"
    with one_line('parallelism.compute_kernel = "fused_uvm_caching": ', error=SettingsError):
        resolve(config, "cpu", Facts(100))


@pytest.mark.parametrize("mode", ["dmp", "ddp"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("loss", ["auto", "softmax", "gbce"])
@pytest.mark.parametrize("sharding_type", SHARDING_TYPES)
def test_no_auto_becomes_what_the_sharding_refuses(mode: str, device: str, loss: str, sharding_type: str) -> None:
    changes = {"parallelism.mode": mode, "parallelism.sharding_type": sharding_type, "training.loss": loss}
    found = resolve(load_config(None, changes), device, Facts(100)).parallelism
    assert mode == "ddp" or supports_column_sharding(found.sparse_optimizer, sharding_type)


def test_rows_of_half_precision_are_for_updates_by_fbgemm() -> None:
    half = {"parallelism.table_precision": "fp16"}
    for fused in ({"training.loss": "gbce"}, {"parallelism.sharding_type": "table_wise"}, {"model.head": "linear"}):
        assert resolve(load_config(None, half | fused), "cpu", Facts(1000)).parallelism.table_precision == "fp16"
    gbce = {"training.loss": "gbce"}
    for ordinary in (
        {}, gbce | {"parallelism.sparse_optimizer": "adam"}, gbce | {"parallelism.sparse_weight_decay": 0.1}
    ):  # fmt: skip
        with one_line('parallelism.table_precision = "fp16": ', error=SettingsError):
            resolve(load_config(None, half | ordinary), "cpu", Facts(1000))


def test_adam_of_shards_on_cpu_goes_with_row_wise_ones_only() -> None:
    def optimizer(device: str, **changes: str) -> str:
        config = load_config(None, {"parallelism.sparse_optimizer": "adam", **changes})
        return resolve(config, device, Facts(1000)).parallelism.sparse_optimizer

    for changes in ({}, {"training.loss": "gbce"}, {"model.head": "linear"}):
        assert (optimizer("cpu", **changes), optimizer("cuda", **changes)) == ("adam", "adam")
    for kind in ("table_wise", "column_wise"):
        with one_line('parallelism.sparse_optimizer = "adam": ', error=SettingsError):
            optimizer("cpu", **{"parallelism.sharding_type": kind})


def test_an_mlp_has_no_exact_softmax() -> None:
    settings = {"model.kind": "matrix_factorization", "model.form": "neural"}
    assert resolve(load_config(None, settings), "cpu", Facts(1000)).training.loss == "sampled_softmax"
    assert resolve(load_config(None, settings | {"model.form": "dot"}), "cpu", Facts(1000)).training.loss == "softmax"


@pytest.mark.parametrize(
    ("n_negatives", "least", "blamed"),
    [(50, 51, "training.n_train_negatives = 50: "), (1, 2, 'training.loss = "gbce": ')],
)
def test_negatives_are_fewer_than_items(n_negatives: int, least: int, blamed: str) -> None:
    config = load_config(None, {"training.loss": "gbce", "training.n_train_negatives": n_negatives})
    assert resolve(config, "cpu", Facts(least)).training.loss == "gbce"
    with one_line(blamed, '"softmax"', error=SettingsError):
        resolve(config, "cpu", Facts(least - 1))


@pytest.mark.parametrize(
    ("changes", "world_size", "n", "shared_by"),
    [
        ({}, 1, 256, "all"),  # 704 masked positions, 2.75 a negative
        ({}, 2, 256, 1),  # 5.5
        ({"training.negatives_shared_by": "all"}, 512, 131_072, "all"),
        ({"training.negatives_shared_by": 8}, 512, 2048, 8),
        ({"training.n_train_negatives": 352}, 2, 352, "all"),
        ({"training.n_train_negatives": 20}, 2, 20, "all"),  # too few, which is warned of
        ({"model.kind": "sasrec"}, 1, 1024, "all"),  # all 3,200 positions
        ({"model.kind": "sasrec"}, 512, 1024, 1),
        ({"model.kind": "matrix_factorization"}, 4, 256, "all"),
    ],
)  # fmt: skip
def test_few_positions_share_a_negative(changes: dict[str, Any], world_size: int, n: int, shared_by: str | int) -> None:
    batches = {"model.max_len": 50, "training.per_device_train_batch_size": 64, "training.loss": "gbce"}
    training = resolve(load_config(None, batches | changes), "cpu", Facts(10**6), world_size).training
    assert (training.n_negatives, training.negatives_shared_by) == (n, shared_by)
    few_items = resolve(load_config(None, batches | changes), "cpu", Facts(400), world_size).training
    assert few_items.n_negatives <= 399


@pytest.mark.parametrize(("repeats", "chosen"), [(0.0, "leave_out"), (0.05, "leave_out"), (0.06, "keep")])
def test_seen_items_are_kept_where_users_return_to_them(repeats: float, chosen: str) -> None:
    for given, expected in (("auto", chosen), ("keep", "keep"), ("leave_out", "leave_out")):
        config = load_config(None, {"evaluation.seen_items": given})
        assert resolve(config, "cpu", Facts(100, repeats=repeats)).evaluation.seen_items == expected


@pytest.mark.parametrize(
    ("facts", "times"),
    [
        (Facts(100), "none"), (Facts(100, moved=0.149), "none"), (Facts(100, moved=0.15), "history"),
        (Facts(100, moved=0.9, times="none"), "none"), (Facts(100, times="target"), "target"),
    ],
)  # fmt: skip
def test_times_are_used_if_the_log_has_moved_or_the_weights_know_them(facts: Facts, times: str) -> None:
    """A line says so, unless they are not used."""
    config = load_config(None)
    assert resolve(config, "cpu", facts).model.times == times
    lines = [line for line in choices(config, facts, 1) if "model.times" in line]
    assert [f'model.times = "{times}"' in line for line in lines] == [True] * (times != "none")
    for named in ("none", "history", "target"):
        config = load_config(None, {"model.times": named})
        assert resolve(config, "cpu", facts).model.times == named
        assert not [line for line in choices(config, facts, 1) if "model.times" in line]
    other = load_config(None, {"model.kind": "matrix_factorization"})
    assert resolve(other, "cpu", facts).model.times == "none"
