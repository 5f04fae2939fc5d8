"""The plan as written-out arithmetic; that it is what a run then holds is tested in distributed/."""

import itertools
import pickle
from dataclasses import replace
from typing import Any

import pytest

from bert4rec.footprint import CACHE_SET, GRADIENTS, STEP, TABLE_STATE, TABLES, Job, needed
from bert4rec.plan import Memory, Plan, make_plan, page, size, summary

NO_LIMIT = Memory(host=None)
SHAPE = {"embed_dim": 64, "n_heads": 2, "n_layers": 2, "ffn_dim": 256, "max_len": 50, "dropout": 0.1, "head": "tied",
         "output_bias": True}  # fmt: skip


def wanted(n_items: int, world_size: int = 1, device_type: str = "cpu", **changes: Any) -> Job:
    """A job of the default shape; `changes` may name its fields and the model's."""
    shape = SHAPE | {key: changes.pop(key) for key in list(changes) if key in SHAPE}
    usual = {"mode": "dmp", "sparse_optimizer": "rowwise_adagrad", "optimizer": "adamw", "batch_size": 64,
             "mask_prob": 0.2, "local_world_size": min(8, world_size)}  # fmt: skip
    return Job(
        model={"n_rows": n_items + 2, **shape}, world_size=world_size, device_type=device_type, **usual | changes
    )


def largest_held(plan: Plan) -> int:
    return max(sum(plan.held(rank).values()) for rank in range(plan.job.world_size))


def test_rows_are_dealt_as_torchrec_deals_them() -> None:
    """8 rows a process, and the last one what is left: worked out by hand for 2 + 20 rows on 3 processes."""
    shards = make_plan(wanted(20, 3), NO_LIMIT).shards
    assert [(part.table, part.rank, part.row, part.n_rows, part.n_columns) for part in shards] == [
        ("item", 0, 0, 8, 64), ("item", 1, 8, 8, 64), ("item", 2, 16, 6, 64),
        ("bias", 0, 0, 8, 4), ("bias", 1, 8, 8, 4), ("bias", 2, 16, 6, 4),
    ]  # fmt: skip
    assert [(part.weight_bytes, part.state_bytes) for part in shards[:3]] == [(2048, 32), (2048, 32), (1536, 24)]


@pytest.mark.parametrize(
    ("mode", "optimizer", "state_bytes"),
    [
        ("dmp", "sgd", 0), ("dmp", "adagrad", 25600), ("dmp", "rowwise_adagrad", 400), ("dmp", "adam", 51200),
        ("ddp", "sgd", 0), ("ddp", "adagrad", 25604), ("ddp", "rowwise_adagrad", 404), ("ddp", "adam", 51204),
    ],
)  # fmt: skip
def test_optimizer_state_of_a_hundred_rows_of_64(mode: str, optimizer: str, state_bytes: int) -> None:
    """Ordinary optimizers count steps in four bytes of their own."""
    job = wanted(98, device_type="cuda", mode=mode, sparse_optimizer=optimizer)
    (item,) = [part for part in make_plan(job, NO_LIMIT).shards if part.table == "item"]
    assert (item.weight_bytes, item.state_bytes) == (25600, state_bytes)


def test_replicated_tables_cost_gradients_and_copies() -> None:
    """A bucket of gradients, and in backward one more for each of the two lookups in the item table."""
    _, needs = make_plan(wanted(10**6, 2, mode="ddp", loss="sampled_softmax"), NO_LIMIT).needs[1]
    table = 1_000_002 * 68 * 4
    assert (needs[TABLES], needs[GRADIENTS], needs[TABLE_STATE]) == (table, table, 1_000_002 * 4 * 2 + 8)
    assert 2 * 1_000_002 * 64 * 4 < needs[STEP] < 2 * 1_000_002 * 64 * 4 + 10e6


@pytest.mark.parametrize("kernel", ["fused", "fused_uvm", "fused_uvm_caching"])
@pytest.mark.parametrize("optimizer", ["rowwise_adagrad", "adam"])
def test_kernels_put_the_tables_where_fbgemm_does(kernel: str, optimizer: str) -> None:
    """Whole tables and whole states go to the host; one number a row stays on the GPU, as do cached rows."""
    job = wanted(998, 1, "cuda", compute_kernel=kernel, sparse_optimizer=optimizer, output_bias=False)
    plan = make_plan(job, NO_LIMIT)
    on_gpu, on_host = plan.needs[0]
    weights, state = 1000 * 64 * 4, 1000 * 4 if optimizer == "rowwise_adagrad" else 2 * 1000 * 64 * 4
    slots = 7 * CACHE_SET  # a fifth of 1000 rows, in whole sets
    cache = slots * (64 * 4 + 16) + 1000 * 4
    gpu_weights = {"fused": weights, "fused_uvm": 0, "fused_uvm_caching": cache}[kernel]
    stays = kernel == "fused" or optimizer == "rowwise_adagrad"
    assert (on_gpu[TABLES], on_gpu[TABLE_STATE]) == (gpu_weights, state if stays else 0)
    assert on_host.get(TABLES, 0) == (0 if kernel == "fused" else weights)
    assert on_host.get(TABLE_STATE, 0) == (0 if stays else state)
    assert plan.sharding_plan is not None
    parameter = plan.sharding_plan.plan["item_table"]["item"]
    assert parameter.compute_kernel == kernel
    load_factor = parameter.cache_params.load_factor if parameter.cache_params else None
    assert load_factor == (0.2 if kernel == "fused_uvm_caching" else None)


@pytest.mark.parametrize("sharding_type", ["row_wise", "table_wise", "column_wise"])
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam"])
def test_more_processes_never_hold_more_each(sharding_type: str, optimizer: str) -> None:
    job = wanted(10**7, 1, "cuda", sharding_type=sharding_type, sparse_optimizer=optimizer, local_world_size=1)
    plans = [make_plan(replace(job, world_size=n), NO_LIMIT) for n in (1, 2, 3, 4, 7, 8, 31, 64)]
    for fewer, more in itertools.pairwise(plans):
        assert largest_held(more) <= largest_held(fewer)


@pytest.mark.parametrize("loss", ["softmax", "sampled_softmax"])
def test_more_processes_never_need_more_each_row_wise(loss: str) -> None:
    job = wanted(10**7, 1, "cuda", loss=loss, n_train_negatives=256, local_world_size=1)
    needs = [
        sum(make_plan(replace(job, world_size=n), NO_LIMIT).needs[0][0].values()) for n in (1, 2, 3, 4, 7, 8, 31, 64)
    ]
    assert needs == sorted(needs, reverse=True)


def test_no_row_is_lost_or_held_twice() -> None:
    for sharding_type, n in itertools.product(["row_wise", "table_wise", "column_wise", "auto"], [1, 2, 5, 16]):
        plan = make_plan(wanted(1000, n, sharding_type=sharding_type, sparse_optimizer="sgd"), NO_LIMIT)
        for table, width in (("item", 64), ("bias", 4)):
            cells = [part.n_rows * part.n_columns for part in plan.shards if part.table == table]
            assert sum(cells) == 1002 * width


def test_a_thousand_processes_and_a_billion_items() -> None:
    job = wanted(10**9, 1024, "cuda", embed_dim=128, sparse_optimizer="adam")
    plan = make_plan(job, Memory(host=None, device=80 * 10**9))
    assert plan.fits
    assert len(plan.shards) == 2 * 1024
    assert len(summary(plan).splitlines()) == 5
    assert page(plan).count("\n") > 3 * 1024
    rows = -(-(10**9 + 2) // 1024)
    assert sum(part.weight_bytes for part in plan.of_rank(0)) == rows * (128 + 4) * 4


def test_the_page_names_every_shard_and_every_process() -> None:
    plan = make_plan(wanted(20, 2), Memory(host=10**9))
    lines = page(plan).splitlines()
    assert lines[0] == "plan: dmp on 2 x cpu, 2 a host"
    assert lines[1] == (
        "  item: 22 x 64, row_wise, 2 x [11 x 64] on 2 of 2 processes; each 2.82 kB of weights, 44 bytes of optimizer "
        "state"
    )
    assert "  item: rows 11…21, columns 0…63 on process 1: 2816 bytes of weights, 44 of optimizer state" in lines
    held, needs = plan.held(1), sum(plan.needs[1][1].values())
    assert lines[-1] == (
        f"  1: {held['weights']} of weights and {held['optimizer_state']} of optimizer state, dense part included; "
        f"needs {needs} of host memory"
    )


def test_a_plan_can_be_sent_to_other_processes() -> None:
    plan = make_plan(wanted(20, 2), NO_LIMIT)
    sent = pickle.loads(pickle.dumps(plan))
    assert page(sent) == page(plan)
    assert "built" not in pickle.loads(pickle.dumps(plan.job)).__dict__


def test_candidates_by_loss() -> None:
    """64 windows of 50, a fifth masked and one more a window: 704 positions to predict."""
    assert wanted(1001, 4).n_candidates == 251
    assert wanted(1001, 4, loss="sampled_softmax", n_train_negatives=256).n_candidates == 704 + 256
    assert wanted(1001, 4, head="linear").n_candidates == 0


def test_rows_of_its_own_send_no_messages() -> None:
    """Row-wise, the share that a process scores is the one that it holds; column-wise it is not."""
    few, many = (make_plan(wanted(n, 8, "cuda"), NO_LIMIT).times[0] for n in (8, 10**7))
    assert few.forward_communication == many.forward_communication > 0
    assert few.backward_communication == many.backward_communication > 0
    assert many.forward_compute > 100 * few.forward_compute
    column_wise = make_plan(wanted(10**7, 8, "cuda", sharding_type="column_wise", sparse_optimizer="sgd"), NO_LIMIT)
    assert column_wise.times[0].forward_communication > 100 * many.forward_communication
    alone = make_plan(wanted(10**7, 1, "cuda"), NO_LIMIT).times[0]
    assert (alone.forward_communication, alone.backward_communication) == (0, 0)


def test_a_process_without_shards_needs_what_stands_beside_the_tables() -> None:
    job = wanted(10**6, 3, sharding_type="table_wise", loss="sampled_softmax")
    plan = make_plan(job, NO_LIMIT)
    (idle,) = {0, 1, 2} - {part.rank for part in plan.shards}
    assert plan.needs[idle] == needed(job, [])
    assert plan.needs[idle][1][TABLES] == 0


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1234, "1.23 kB"), (999_999, "1 MB"), (5.44e9, "5.44 GB"), (2.5e12, "2.5 TB")],
)
def test_sizes_for_people(n_bytes: float, text: str) -> None:
    assert size(n_bytes) == text
