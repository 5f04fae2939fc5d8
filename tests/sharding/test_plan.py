"""The plan as written-out arithmetic; that it is what a run then holds is tested in test_parallelize.py."""

import pickle
from dataclasses import replace

import pytest

from bert4rec.runtime.errors import SettingsError
from bert4rec.runtime.memory import Memory
from bert4rec.sharding.footprint import CACHE_SET, TABLE_STATE, TABLES, peak_bytes
from bert4rec.sharding.plan import make_plan, summary, to_text
from tests.sharding.make_job import NO_LIMIT, make_job


@pytest.mark.parametrize("sharding_type", ["row_wise", "table_wise", "column_wise", "auto"])
@pytest.mark.parametrize(("n_items", "n_processes"), [(2, 64), (2000, 64), (1000, 1), (1000, 2), (1000, 5), (1000, 16)])
def test_every_number_is_held_once(n_items: int, n_processes: int, sharding_type: str) -> None:
    job = make_job(n_items, n_processes, sharding_type=sharding_type, sparse_optimizer="adagrad")
    plan = make_plan(job, NO_LIMIT)
    shards = sorted(plan.shards, key=lambda part: (part.row, part.column))
    assert sum(part.n_rows * part.n_columns for part in plan.shards) == n_items * 68
    assert shards[-1].row + shards[-1].n_rows == n_items
    if n_processes == 64:  # 2,000 rows are 32 a process, and none on the last process; 68 columns are 17 fours
        holders = {"row_wise": min(n_items, 63), "table_wise": 1, "column_wise": 17}[plan.sharding_types["item"]]
        assert len({part.rank for part in shards}) == len(shards) == holders


def test_groups_that_share_negatives_leave_no_process_over() -> None:
    job = make_job(100, 6, loss="gbce", n_train_negatives=20, negatives_shared_by=4)
    with pytest.raises(SettingsError, match=r"training\.negatives_shared_by = 4: .* 1, 2, 3, 6"):
        make_plan(job, NO_LIMIT)
    for possible in ({"negatives_shared_by": 3}, {"loss": "softmax"}, {"trains": False}):
        make_plan(replace(job, **possible), NO_LIMIT)


@pytest.mark.parametrize("kernel", ["fused", "fused_uvm", "fused_uvm_caching"])
@pytest.mark.parametrize("optimizer", ["rowwise_adagrad", "adam"])
@pytest.mark.parametrize(("precision", "n_bytes"), [("fp32", 4), ("fp16", 2)])
def test_kernels_put_the_tables_where_fbgemm_does(kernel: str, optimizer: str, precision: str, n_bytes: int) -> None:
    tables = {"compute_kernel": kernel, "sparse_optimizer": optimizer, "table_precision": precision}
    plan = make_plan(make_job(1000, 1, "cuda", loss="sampled_softmax", **tables), NO_LIMIT)
    on_gpu, on_host = plan.needs[0]
    weights, state = 1000 * 68 * n_bytes, 1000 * 4 if optimizer == "rowwise_adagrad" else 2 * 1000 * 68 * 4
    slots = 7 * CACHE_SET  # a fifth of 1000 rows, in whole sets
    cache = slots * (68 * n_bytes + 16) + 1000 * 4
    gpu_weights = {"fused": weights, "fused_uvm": 0, "fused_uvm_caching": cache}[kernel]
    stays = kernel == "fused" or optimizer == "rowwise_adagrad"
    assert (on_gpu[TABLES], on_gpu[TABLE_STATE]) == (gpu_weights, state if stays else 0)
    host = (0 if kernel == "fused" else weights, 0 if stays else state)
    assert (on_host.get(TABLES, 0), on_host.get(TABLE_STATE, 0)) == host
    parameter = plan.sharding_plan.plan["item_table.collection"]["item"]
    load_factor = parameter.cache_params.load_factor if parameter.cache_params else None
    assert (parameter.compute_kernel, load_factor) == (kernel, 0.2 if kernel == "fused_uvm_caching" else None)


@pytest.mark.parametrize("sharding_type", ["row_wise", "table_wise", "column_wise"])
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam"])
def test_more_processes_never_hold_or_need_more_each(sharding_type: str, optimizer: str) -> None:
    job = make_job(10**7, 1, "cuda", sharding_type=sharding_type, sparse_optimizer=optimizer, local_world_size=1)
    plans = [make_plan(replace(job, world_size=n), NO_LIMIT) for n in (1, 2, 3, 4, 7, 8, 31, 64)]
    held = [max(sum(plan.resident_bytes(rank).values()) for rank in range(plan.job.world_size)) for plan in plans]
    assert held == sorted(held, reverse=True)
    if sharding_type == "row_wise":
        needs = [sum(plan.needs[0][0].values()) for plan in plans]
        assert needs == sorted(needs, reverse=True)


def test_a_thousand_processes_and_a_billion_items() -> None:
    job = make_job(10**9, 1024, "cuda", embed_dim=128, sparse_optimizer="adam")
    plan = make_plan(job, Memory(host=None, device=80 * 10**9))
    assert plan.fits
    assert len(plan.shards) == 1024
    assert (len(summary(plan).splitlines()), to_text(plan).count("\n") > 2 * 1024) == (4, True)
    assert sum(part.weight_bytes for part in plan.shards_of(0)) == -(-(10**9) // 1024) * (128 + 4) * 4


def test_a_plan_can_be_sent_to_other_processes_without_its_model() -> None:
    plan = make_plan(make_job(20, 2), NO_LIMIT)
    sent = pickle.loads(pickle.dumps(plan))
    assert "built" not in vars(sent.job)
    assert to_text(sent) == to_text(plan)


def test_processes_without_shards_need_what_stands_beside_the_table() -> None:
    job = make_job(10**6, 3, sharding_type="table_wise", loss="sampled_softmax")
    plan = make_plan(job, NO_LIMIT)
    idle = [plan.needs[rank] for rank in {0, 1, 2} - {part.rank for part in plan.shards}]
    assert idle == [peak_bytes(job, [])] * 2
    assert idle[0][1][TABLES] == 0


def test_messages_within_a_host_and_between_hosts() -> None:
    """By TorchRec's bandwidths, in bytes a millisecond: 644 GB/s and 13; what is not sent is not named."""
    job = make_job(1000, 16, "cuda", sharding_group_size=8, local_world_size=8)
    (scored, quick), (synced, slow) = make_plan(job, NO_LIMIT).messages().values()
    assert (scored / quick, synced / slow) == pytest.approx((644245094.4, 13421772.8))
    assert make_plan(make_job(1000, 16, "cuda", loss="sampled_softmax"), NO_LIMIT).messages() == {}
