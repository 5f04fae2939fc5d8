"""Which process holds which part of the item table, and how long TorchRec's planner thinks that a step takes."""

import itertools

import pytest

from bert4rec.runtime.collectives import Partition
from bert4rec.sharding.groups import Groups
from bert4rec.sharding.parallelize import _plan_of_group
from bert4rec.sharding.placement import allowed_types
from bert4rec.sharding.plan import make_plan
from tests.fixture_types import Patch
from tests.sharding.make_job import NO_LIMIT, make_job


def test_rows_are_dealt_as_torchrec_deals_them() -> None:
    """8 rows a process, and the last one what is left: worked out by hand for 2 + 20 rows on 3 processes."""
    shards = make_plan(make_job(20, 3, loss="sampled_softmax"), NO_LIMIT).shards
    assert [(part.rank, part.row, part.n_rows, part.n_columns) for part in shards] == [
        (0, 0, 8, 68), (1, 8, 8, 68), (2, 16, 6, 68),
    ]  # fmt: skip
    assert [(part.weight_bytes, part.state_bytes) for part in shards] == [(2176, 32), (2176, 32), (1632, 24)]


def test_a_gpu_that_each_process_sees_alone_is_the_first_of_each(monkeypatch: Patch) -> None:
    def devices() -> list[str]:
        plan = make_plan(make_job(20, 3, "cuda", loss="sampled_softmax"), NO_LIMIT).sharding_plan
        assert plan is not None
        ((table,),) = (tables.values() for tables in plan.plan.values())
        return [str(shard.placement) for shard in table.sharding_spec.shards]

    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    assert devices() == ["rank:0/cuda:0", "rank:1/cuda:1", "rank:2/cuda:2"]
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    assert devices() == ["rank:0/cuda:0", "rank:1/cuda:0", "rank:2/cuda:0"]


def test_it_is_the_first_of_each_in_every_group(monkeypatch: Patch) -> None:
    def devices() -> list[str]:
        plan = make_plan(make_job(20, 4, "cuda", loss="sampled_softmax", sharding_group_size=2), NO_LIMIT)
        second = Groups(Partition(0, 2), Partition(1, 2), Partition(2, 4))
        of_group = _plan_of_group(plan, second)
        assert of_group is not None
        ((table,),) = (tables.values() for tables in of_group.plan.values())
        return [str(shard.placement) for shard in table.sharding_spec.shards]

    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    assert devices() == ["rank:2/cuda:2", "rank:3/cuda:3"]
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    assert devices() == ["rank:2/cuda:0", "rank:3/cuda:0"]


def test_no_row_is_lost_or_held_twice() -> None:
    for sharding_type, n in itertools.product(["row_wise", "table_wise", "column_wise", "auto"], [1, 2, 5, 16]):
        plan = make_plan(make_job(1000, n, sharding_type=sharding_type, sparse_optimizer="sgd"), NO_LIMIT)
        assert sum(part.n_rows * part.n_columns for part in plan.shards) == 1002 * 68


def test_trained_shards_are_looked_up_for_sequences_alone() -> None:
    """So TorchRec's time does not depend on the catalogue; a lone process sends no messages."""
    few, many = (make_plan(make_job(n, 8, "cuda"), NO_LIMIT).times[0] for n in (10_000, 10**7))
    assert few == many
    assert min(many) > 0
    alone = make_plan(make_job(10**7, 1, "cuda"), NO_LIMIT).times[0]
    assert (alone.forward_communication, alone.backward_communication) == (0, 0)


def test_rows_of_its_own_send_no_messages() -> None:
    """Row-wise, the share that a process looks up to score it is the one that it holds; column-wise it is not."""
    uvm = {"compute_kernel": "fused_uvm"}
    few, many = (make_plan(make_job(n, 8, "cuda", **uvm), NO_LIMIT).times[0] for n in (10_000, 10**7))
    assert few.forward_communication == many.forward_communication > 0
    assert few.backward_communication == many.backward_communication > 0
    assert many.forward_compute > 100 * few.forward_compute
    column_wise = make_plan(make_job(10**7, 8, "cuda", sharding_type="column_wise", sparse_optimizer="sgd"), NO_LIMIT)
    assert column_wise.times[0].forward_communication > 100 * many.forward_communication
    alone = make_plan(make_job(10**7, 1, "cuda", **uvm), NO_LIMIT).times[0]
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
