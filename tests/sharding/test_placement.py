"""Which process holds which part of the item table, and how long TorchRec's planner thinks that a step takes."""

from dataclasses import replace

import pytest

from bert4rec.sharding.plan import StepTime, allowed_types, make_plan
from bert4rec.sharding.torchrec_internals import move_plan
from tests.fixture_types import Patch
from tests.sharding.make_job import NO_LIMIT, make_job


@pytest.mark.parametrize(("n_gpus", "numbers"), [(4, [0, 1, 2, 3]), (1, [0] * 4)])
def test_a_gpu_that_each_process_sees_alone_is_the_first_of_each(
    monkeypatch: Patch, n_gpus: int, numbers: list[int]
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: n_gpus)
    job = make_job(20, 4, "cuda", loss="sampled_softmax")
    for group_size in (0, 2):
        plan = make_plan(replace(job, sharding_group_size=group_size), NO_LIMIT)
        found = {}
        for first in range(0, 4, group_size or 4):
            ((table,),) = (tables.values() for tables in move_plan(plan.sharding_plan, first, 4).plan.values())
            found |= dict(zip(table.ranks, map(str, [s.placement for s in table.sharding_spec.shards]), strict=True))
        assert found == {rank: f"rank:{rank}/cuda:{number}" for rank, number in enumerate(numbers)}


def time(n_items: int, n_processes: int, **changes: str) -> StepTime:
    return make_plan(make_job(n_items, n_processes, "cuda", **changes), NO_LIMIT).times[0]


@pytest.mark.parametrize("kernel", ["fused", "fused_uvm"])
def test_rows_of_its_own_send_no_messages(kernel: str) -> None:
    """Row-wise, the share that a process looks up to score it is the one that it holds; column-wise it is not."""
    settings = {"compute_kernel": kernel}
    few, many, alone = time(10_000, 8, **settings), time(10**7, 8, **settings), time(10**7, 1, **settings)
    column_wise = time(10**7, 8, sharding_type="column_wise", sparse_optimizer="sgd")
    assert few.forward_communication == many.forward_communication > 0
    assert few.backward_communication == many.backward_communication > 0
    assert many.forward_compute > 100 * few.forward_compute if kernel == "fused_uvm" else few == many
    assert column_wise.forward_communication > 100 * many.forward_communication
    assert (alone.forward_communication, alone.backward_communication) == (0, 0)


def test_the_planner_may_not_cut_rows_of_which_the_optimizer_keeps_one_number() -> None:
    assert allowed_types("auto", "adagrad") == ["row_wise", "table_wise", "column_wise"]
    assert allowed_types("auto", "rowwise_adagrad") == ["row_wise", "table_wise"]
    assert allowed_types("table_wise", "rowwise_adagrad") == ["table_wise"]
