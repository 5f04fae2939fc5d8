"""Which process holds which part of the item table, and how long TorchRec's planner thinks that a step takes."""

from dataclasses import replace

import pytest
from torchrec.distributed.types import ShardingPlan

from bert4rec.runtime.collectives import Partition
from bert4rec.sharding.groups import Groups
from bert4rec.sharding.parallelize import _plan_of_group
from bert4rec.sharding.plan import StepTime, allowed_types, make_plan
from tests.fixture_types import Patch
from tests.sharding.make_job import NO_LIMIT, make_job


def test_rows_are_dealt_as_torchrec_deals_them() -> None:
    """7 rows a process, and the last one what is left: worked out by hand for 20 rows on 3 processes."""
    shards = make_plan(make_job(20, 3, loss="sampled_softmax"), NO_LIMIT).shards
    assert [(one.rank, one.row, one.n_rows, one.n_columns, one.weight_bytes, one.state_bytes) for one in shards] == [
        (0, 0, 7, 68, 1904, 28), (1, 7, 7, 68, 1904, 28), (2, 14, 6, 68, 1632, 24),
    ]  # fmt: skip


@pytest.mark.parametrize(("n_gpus", "expected"), [(4, ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]), (1, ["cuda:0"] * 4)])
def test_a_gpu_that_each_process_sees_alone_is_the_first_of_each(
    monkeypatch: Patch, n_gpus: int, expected: list[str]
) -> None:
    """In every group, too, whose plan is moved in a copy."""

    def devices(plan: ShardingPlan | None) -> list[str]:
        ((table,),) = (tables.values() for tables in plan.plan.values())
        shards = zip(table.ranks, table.sharding_spec.shards, strict=True)
        return [f"{rank} {shard.placement}" for rank, shard in shards]

    monkeypatch.setattr("torch.cuda.device_count", lambda: n_gpus)
    every = [f"{rank} rank:{rank}/{device}" for rank, device in enumerate(expected)]
    sampled = make_job(20, 4, "cuda", loss="sampled_softmax")
    assert devices(make_plan(sampled, NO_LIMIT).sharding_plan) == every
    second = Groups(Partition(0, 2), Partition(1, 2), Partition(2, 4))
    in_groups = make_plan(replace(sampled, sharding_group_size=2), NO_LIMIT)
    first = devices(in_groups.sharding_plan)
    assert devices(_plan_of_group(in_groups, second)) == every[2:]
    assert devices(in_groups.sharding_plan) == first != every[2:]


def time(n_items: int, n_processes: int, **changes: str) -> StepTime:
    return make_plan(make_job(n_items, n_processes, "cuda", **changes), NO_LIMIT).times[0]


def test_trained_shards_are_looked_up_for_sequences_alone() -> None:
    """So TorchRec's time does not depend on the catalogue; a lone process sends no messages."""
    few, many, alone = time(10_000, 8), time(10**7, 8), time(10**7, 1)
    assert few == many
    assert min(many) > 0
    assert (alone.forward_communication, alone.backward_communication) == (0, 0)


def test_rows_of_its_own_send_no_messages() -> None:
    """Row-wise, the share that a process looks up to score it is the one that it holds; column-wise it is not."""
    uvm = {"compute_kernel": "fused_uvm"}
    few, many, alone = time(10_000, 8, **uvm), time(10**7, 8, **uvm), time(10**7, 1, **uvm)
    column_wise = time(10**7, 8, sharding_type="column_wise", sparse_optimizer="sgd")
    assert few.forward_communication == many.forward_communication > 0
    assert few.backward_communication == many.backward_communication > 0
    assert many.forward_compute > 100 * few.forward_compute
    assert column_wise.forward_communication > 100 * many.forward_communication
    assert (alone.forward_communication, alone.backward_communication) == (0, 0)


@pytest.mark.parametrize(
    ("sharding_type", "sparse_optimizer", "allowed"),
    [
        ("auto", "adagrad", ["row_wise", "table_wise", "column_wise"]),
        ("auto", "rowwise_adagrad", ["row_wise", "table_wise"]),
        ("table_wise", "rowwise_adagrad", ["table_wise"]),
    ],
)
def test_the_planner_may_not_cut_rows_of_which_the_optimizer_keeps_one_number(
    sharding_type: str, sparse_optimizer: str, allowed: list[str]
) -> None:
    assert allowed_types(sharding_type, sparse_optimizer) == allowed
