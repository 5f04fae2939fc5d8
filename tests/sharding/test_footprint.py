"""Bytes of a training as written-out arithmetic."""

from dataclasses import replace
from typing import Any

import pytest

from bert4rec.sharding.footprint import (
    AVERAGE,
    COUNTED_PRIOR,
    DENSE_PART,
    GRADIENTS,
    STEP,
    TABLE_STATE,
    TABLES,
    dense_bytes,
    hidden_bytes,
    sync_bytes,
)
from bert4rec.sharding.plan import make_plan
from tests.sharding.make_job import NO_LIMIT, make_job


def needs_of(n_items: int, n: int = 1, device_type: str = "cuda", **changes: Any) -> dict[str, int]:
    """Bytes of the first process by use, on its GPU or on the CPU."""
    return make_plan(make_job(n_items, n, device_type, **changes), NO_LIMIT).needs[0][device_type == "cpu"]


def test_replicated_tables_cost_gradients_and_copies() -> None:
    """A bucket of gradients, and in backward one more for each of the two lookups in the item table."""
    needs, table = needs_of(10**6, 2, "cpu", mode="ddp", loss="sampled_softmax"), 1_000_000 * 68 * 4
    assert (needs[TABLES], needs[GRADIENTS], needs[TABLE_STATE]) == (table, table, 1_000_000 * 4 + 4)
    assert 2 * table < needs[STEP] < 2 * table + 10e6


@pytest.mark.parametrize("device_type", ["cuda", "cpu"])
@pytest.mark.parametrize(("optimizer", "n_states"), [("sgd", 0), ("adagrad", 1), ("adam", 2)])
def test_trained_shards_have_gradients(device_type: str, optimizer: str, n_states: int) -> None:
    needs, shard = needs_of(10**7, 2, device_type, sparse_optimizer=optimizer), 5_000_000 * 68 * 4
    steps = 4 if n_states else 0
    assert (needs[TABLES], needs[GRADIENTS], needs[TABLE_STATE]) == (shard, shard, n_states * shard + steps)


@pytest.mark.parametrize(
    ("n_items", "passing"),
    [
        (20_000, 704 * 20_000 * 4),  # one tile
        (30_000, 559 * 30_000 * 4),  # tiles that take one room in turn
        (200_000, 83 * 200_000 * 4),
        (10**7, 10**7 * 4),  # one position a tile
    ],
)
def test_scores_pass_through_in_tiles(n_items: int, passing: int) -> None:
    """Of 704 positions, in tiles of 2^24 scores; beside a tile there is the gradient, as large as the table."""
    fewer, all_items = needs_of(10_000), needs_of(n_items)
    assert all_items[STEP] - fewer[STEP] == (passing + n_items * 68 * 4) - (704 + 68) * 10_000 * 4


def test_the_update_of_a_shard_by_adam_takes_no_copies() -> None:
    few = {"batch_size": 1, "max_len": 2, "mask_prob": 0.1, "n_layers": 1}
    sgd, adam = (needs_of(10**6, sparse_optimizer=name, **few)[STEP] for name in ("sgd", "adam"))
    least = 1_000_000 * 68 * 4 + 2 * 10**6 * 4  # the gradient, and the scores of two positions
    assert least < sgd == adam < least + 1e6


@pytest.mark.parametrize("sharding_type", ["table_wise", "column_wise"])
def test_looked_up_candidates_cost_three_of_their_vectors(sharding_type: str) -> None:
    """Themselves, their gradient as it is added up and as it is looked up, where shards are not trained as they are."""
    on_gpu = needs_of(10**7, sharding_type=sharding_type, sparse_optimizer="sgd")
    assert not on_gpu[GRADIENTS]
    least = 10**7 * (3 * 68 * 4 + 128 + 16 + 4)  # in all numbers, ids and scores an item
    assert least < on_gpu[STEP] < least + 60e6


def test_the_catalogue_streams_by_whoever_holds_it() -> None:
    """Each process asks for 65,536 rows at once; table-wise one looks up all of them, in four copies."""
    table_wise = {"sharding_type": "table_wise", "loss": "sampled_softmax", "local_world_size": 8}
    plans = [make_plan(make_job(10**7, n, "cuda", **table_wise), NO_LIMIT) for n in (8, 64)]
    few, many = (max(on_gpu[STEP] for on_gpu, _ in plan.needs) for plan in plans)
    assert many - few == 56 * 65_536 * (4 * 68 * 4 + 16)


def test_candidates_and_lookups_by_loss() -> None:
    """64 windows of 50, a fifth masked and one more a window: 704 positions to predict.

    An id is looked up once: at most as many as there are rows.
    """
    sampled = {"loss": "sampled_softmax", "n_train_negatives": 256}
    assert make_job(1001, 4, **sampled).n_candidates == 704 + 256
    assert make_job(1001, 4, head="linear").n_candidates == 0
    assert make_job(10_000, **sampled).lookups_per_step == {"item": 3200, "candidate": 960}
    assert make_job(100, **sampled).lookups_per_step == {"item": 100, "candidate": 100}
    assert make_job(100, head="linear").lookups_per_step == {"item": 100}


@pytest.mark.parametrize(
    "changes",
    [
        {},  # the rows that it holds, where they lie
        {"mode": "ddp"}, {"sharding_type": "table_wise"}, {"sharding_type": "auto"}, {"compute_kernel": "fused_uvm"},
    ],
)  # fmt: skip
def test_a_softmax_over_the_catalogue_looks_up_what_a_process_does_not_train(changes: dict[str, Any]) -> None:
    job = make_job(1001, 4, "cuda", **changes)
    assert (job.updates == {"item": "dense_shards"}, job.n_candidates) == (not changes, 251 if changes else 0)


@pytest.mark.parametrize("mode", ["dmp", "ddp"])
def test_an_average_is_as_large_as_the_weights_and_an_evaluation_has_neither_gradients_nor_states(mode: str) -> None:
    job = make_job(10**7, 2, "cuda", mode=mode, sparse_optimizer="sgd", optimizer="sgd")
    training, averaged, evaluation = (
        make_plan(replace(job, **changes), NO_LIMIT).needs[0][0]
        for changes in ({}, {"averages": True}, {"trains": False})
    )
    assert averaged == training | {AVERAGE: training[TABLES] + dense_bytes(job)[0]}
    assert (evaluation[GRADIENTS], evaluation[TABLE_STATE]) == (0, 0)
    assert evaluation[TABLES] == training[TABLES] == training[GRADIENTS]
    assert 2 * evaluation[DENSE_PART] == training[DENSE_PART]
    assert evaluation[STEP] < 0.1 * training[STEP]


@pytest.mark.parametrize("device_type", ["cuda", "cpu"])
def test_a_prior_is_planned_where_the_model_is(device_type: str) -> None:
    """64 weights of 8 bytes for each of 12,500 items a process; from each of 50,000 items a place and 4 groups."""
    names = ("transitions", "neighbours")
    weights, places = 8 * (64 * 12_500 + 1), 8 * 50_001 + 5 * 50_000
    assert needs_of(50_000, 4, device_type, prior=names)[COUNTED_PRIOR] == 2 * (weights + places) + 4 * (
        50_000 + 12_500
    )
    on_device, on_host = make_plan(make_job(50_000, 4, "cuda", prior=names), NO_LIMIT).needs[0]
    assert (COUNTED_PRIOR in on_device, COUNTED_PRIOR in on_host) == (True, False)
    assert needs_of(50_000, 4, device_type)[COUNTED_PRIOR] == 0


def test_what_keeps_groups_in_step_worked_out_by_hand() -> None:
    """20 rows of 68 floats on 2 of 8 processes each; 64 x 50 positions per rank, 704 of them predicted."""
    in_step = {"sharding_group_size": 2, "n_train_negatives": 20}
    sampled = make_plan(make_job(20, 8, loss="sampled_softmax", **in_step), NO_LIMIT)
    assert [(part.rank, part.n_rows) for part in sampled.shards] == [(rank, 10) for rank in range(8)]
    n_ids = 20 + 20  # lookups of a rank, each row once; each rank of a group holds half of the rows
    assert sync_bytes(sampled.job, sampled.shards_of(3)) == 8 * n_ids // 2 * (68 * 4 + 8) * 3 // 4  # 3 of 4 by others
    shard_bytes = 10 * 68 * 4
    softmax = make_plan(make_job(20, 8, loss="softmax", **in_step), NO_LIMIT)
    assert sync_bytes(softmax.job, softmax.shards_of(3)) == 2 * 3 / 4 * shard_bytes
    assert sync_bytes(make_job(20, 8), make_plan(make_job(20, 8), NO_LIMIT).shards_of(0)) == 0


def test_hidden_states_go_to_those_who_share_a_catalogue() -> None:
    """Once there, and twice around as gradients."""
    assert hidden_bytes(make_job(20, 8)) == 3 * 7 * 704 * 68 * 4
    assert hidden_bytes(make_job(20, 8, sharding_group_size=2)) == 3 * 1 * 704 * 68 * 4
    assert hidden_bytes(make_job(20, 8, loss="gbce")) == 0


@pytest.mark.parametrize(("window_length", "n_positions"), [(0.0, 3200), (50.0, 3200), (8.0, 952), (49.0, 3200)])
def test_positions_of_a_batch_by_the_mean_length_of_windows(window_length: float, n_positions: int) -> None:
    """64 windows of at most 50: 64 x 8 + 3 x sqrt(64 x 8 x 42) = 951.9…; never more than 64 x 50."""
    assert replace(make_job(100), batch_size=64, window_length=window_length).n_positions == n_positions
