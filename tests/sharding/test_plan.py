"""The plan as written-out arithmetic; that it is what a run then holds is tested in test_parallelize.py."""

import itertools
import pickle
from dataclasses import replace
from typing import Any

import pytest

from bert4rec.runtime.memory import Memory
from bert4rec.sharding.footprint import CACHE_SET, GRADIENTS, STEP, TABLE_STATE, TABLES, Job, needed
from bert4rec.sharding.plan import Plan, make_plan, page, size, summary

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
    shards = make_plan(wanted(20, 3, loss="sampled_softmax"), NO_LIMIT).shards
    assert [(part.rank, part.row, part.n_rows, part.n_columns) for part in shards] == [
        (0, 0, 8, 68), (1, 8, 8, 68), (2, 16, 6, 68),
    ]  # fmt: skip
    assert [(part.weight_bytes, part.state_bytes) for part in shards] == [(2176, 32), (2176, 32), (1632, 24)]


@pytest.mark.parametrize("sharding_type", ["row_wise", "table_wise", "column_wise", "auto"])
@pytest.mark.parametrize("n_items", [2, 2000])
def test_more_processes_than_rows_or_columns_hold_every_number_once(n_items: int, sharding_type: str) -> None:
    """64 processes: 2,002 rows are 32 a process, of which the last one has none left; 68 columns are 17 fours."""
    plan = make_plan(wanted(n_items, 64, sharding_type=sharding_type, sparse_optimizer="adagrad"), NO_LIMIT)
    shards = sorted(plan.shards, key=lambda part: (part.row, part.column))
    holders = {"row_wise": min(n_items + 2, 63), "table_wise": 1, "column_wise": 17}[plan.sharding_type]
    assert len({part.rank for part in shards}) == len(shards) == holders
    assert sum(part.n_rows * part.n_columns for part in shards) == (n_items + 2) * 68
    assert shards[-1].row + shards[-1].n_rows == n_items + 2
    assert f"on {holders} of 64 processes" in page(plan)


@pytest.mark.parametrize(
    ("changes", "width"),
    [({}, 68), ({"output_bias": False}, 64), ({"head": "linear"}, 64), ({"embed_dim": 128}, 132)],
)
def test_a_bias_stands_behind_the_vectors_that_are_scored(changes: dict[str, Any], width: int) -> None:
    """In four columns, since fbgemm wants widths in multiples of four; a head of its own has its own bias."""
    (item,) = make_plan(wanted(98, **changes), NO_LIMIT).shards
    assert (item.n_columns, item.weight_bytes) == (width, 100 * width * 4)


@pytest.mark.parametrize(
    ("mode", "loss", "optimizer", "state_bytes"),
    [
        ("dmp", "gbce", "sgd", 0), ("dmp", "gbce", "adagrad", 25600), ("dmp", "gbce", "rowwise_adagrad", 400),
        ("dmp", "gbce", "adam", 51200),
        ("dmp", "softmax", "sgd", 0), ("dmp", "softmax", "adagrad", 25604), ("dmp", "softmax", "rowwise_adagrad", 404),
        ("dmp", "softmax", "adam", 51204),
        ("ddp", "gbce", "sgd", 0), ("ddp", "gbce", "adagrad", 25604), ("ddp", "gbce", "rowwise_adagrad", 404),
        ("ddp", "gbce", "adam", 51204),
    ],
)  # fmt: skip
def test_optimizer_state_of_a_hundred_rows_of_64(mode: str, loss: str, optimizer: str, state_bytes: int) -> None:
    """Ordinary optimizers count steps in four bytes of their own: of replicated tables and of trained shards."""
    job = wanted(98, device_type="cuda", mode=mode, loss=loss, sparse_optimizer=optimizer, output_bias=False)
    (item,) = make_plan(job, NO_LIMIT).shards
    assert (item.weight_bytes, item.state_bytes) == (25600, state_bytes)


def test_replicated_tables_cost_gradients_and_copies() -> None:
    """A bucket of gradients, and in backward one more for each of the two lookups in the item table."""
    _, needs = make_plan(wanted(10**6, 2, mode="ddp", loss="sampled_softmax"), NO_LIMIT).needs[1]
    table = 1_000_002 * 68 * 4
    assert (needs[TABLES], needs[GRADIENTS], needs[TABLE_STATE]) == (table, table, 1_000_002 * 4 + 4)
    assert 2 * table < needs[STEP] < 2 * table + 10e6


@pytest.mark.parametrize(("device_type", "kind"), [("cuda", 0), ("cpu", 1)])
@pytest.mark.parametrize(("optimizer", "n_states"), [("sgd", 0), ("adagrad", 1), ("adam", 2)])
def test_trained_shards_have_gradients(device_type: str, kind: int, optimizer: str, n_states: int) -> None:
    needs = make_plan(wanted(10**7, 2, device_type, sparse_optimizer=optimizer), NO_LIMIT).needs[0][kind]
    shard = 5_000_001 * 68 * 4
    steps = 4 if n_states else 0
    assert (needs[TABLES], needs[GRADIENTS], needs[TABLE_STATE]) == (shard, shard, n_states * shard + steps)


@pytest.mark.parametrize(
    ("n_items", "passing"),
    [
        (20_000, 704 * 20_000 * 4),  # one tile
        (30_000, 2 * 559 * 30_000 * 4),  # the second while the first is there
        (200_000, 2 * 83 * 200_000 * 4 + 200_002 * 68 * 4),  # and from the third on the product of the one before
        (10**7, 10**7 * 4 + 2 * 10_000_002 * 68 * 4),  # one position a tile, and two products
    ],
)
def test_scores_pass_through_in_tiles(n_items: int, passing: int) -> None:
    """Of 704 positions, in tiles of 2^24 scores; a product is as large as the table."""
    fewer, all_items = (make_plan(wanted(n, 1, "cuda"), NO_LIMIT).needs[0][0][STEP] for n in (10_000, n_items))
    assert all_items - fewer == passing - 704 * 10_000 * 4


def test_the_update_of_a_shard_takes_copies_where_little_is_scored() -> None:
    """Two positions are one tile: then Adam's two temporaries are more than the scaled gradient."""
    few = {"batch_size": 1, "max_len": 2, "mask_prob": 0.1, "n_layers": 1}
    sgd, adam = (
        make_plan(wanted(10**6, 1, "cuda", sparse_optimizer=name, **few), NO_LIMIT).needs[0][0][STEP]
        for name in ("sgd", "adam")
    )
    assert sgd < adam
    assert 2 * 1_000_002 * 68 * 4 < adam < 2 * 1_000_002 * 68 * 4 + 1e6


@pytest.mark.parametrize("sharding_type", ["table_wise", "column_wise"])
def test_looked_up_candidates_cost_four_of_their_vectors(sharding_type: str) -> None:
    """Themselves, their gradient, and two products that are added to it, where shards are not trained as they are."""
    how = {"sharding_type": sharding_type, "sparse_optimizer": "sgd"}
    on_gpu, _ = make_plan(wanted(10**7, 1, "cuda", **how), NO_LIMIT).needs[0]
    assert GRADIENTS not in on_gpu
    least = 10**7 * (4 * 68 * 4 + 128 + 16 + 4)  # in all numbers, ids and scores an item
    assert least < on_gpu[STEP] < least + 60e6


def test_the_catalogue_streams_by_whoever_holds_it() -> None:
    """Each process asks for 65,536 rows at once; table-wise one looks up all of them, in four copies."""
    table_wise = {"sharding_type": "table_wise", "loss": "sampled_softmax", "local_world_size": 8}
    plans = [make_plan(wanted(10**7, n, "cuda", **table_wise), NO_LIMIT) for n in (8, 64)]
    few, many = (max(on_gpu[STEP] for on_gpu, _ in plan.needs) for plan in plans)
    assert many - few == 56 * 65_536 * (4 * 68 * 4 + 16)


@pytest.mark.parametrize("kernel", ["fused", "fused_uvm", "fused_uvm_caching"])
@pytest.mark.parametrize("optimizer", ["rowwise_adagrad", "adam"])
def test_kernels_put_the_tables_where_fbgemm_does(kernel: str, optimizer: str) -> None:
    """Whole tables and whole states go to the host; one number a row stays on the GPU, as do cached rows."""
    how = {"compute_kernel": kernel, "sparse_optimizer": optimizer, "loss": "sampled_softmax", "output_bias": False}
    job = wanted(998, 1, "cuda", **how)
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
        assert sum(part.n_rows * part.n_columns for part in plan.shards) == 1002 * 68


def test_a_thousand_processes_and_a_billion_items() -> None:
    job = wanted(10**9, 1024, "cuda", embed_dim=128, sparse_optimizer="adam")
    plan = make_plan(job, Memory(host=None, device=80 * 10**9))
    assert plan.fits
    assert len(plan.shards) == 1024
    assert len(summary(plan).splitlines()) == 4
    assert page(plan).count("\n") > 2 * 1024
    rows = -(-(10**9 + 2) // 1024)
    assert sum(part.weight_bytes for part in plan.of_rank(0)) == rows * (128 + 4) * 4


def test_the_page_names_every_shard_and_every_process() -> None:
    plan = make_plan(wanted(20, 2), Memory(host=10**9))
    lines = page(plan).splitlines()
    assert lines[0] == "plan: dmp on 2 x cpu, 2 a host"
    assert lines[1] == (
        "  item: 22 x 68, row_wise, 2 x [11 x 68] on 2 of 2 processes; each 2.99 kB of weights, 48 bytes of optimizer "
        "state"
    )
    assert "  item: rows 11…21, columns 0…67 on process 1: 2992 bytes of weights, 48 of optimizer state" in lines
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
    assert wanted(1001, 4, loss="sampled_softmax", n_train_negatives=256).n_candidates == 704 + 256
    assert wanted(1001, 4, head="linear").n_candidates == 0


@pytest.mark.parametrize(
    ("changes", "n_candidates"),
    [
        ({}, 0),  # the rows that it holds, where they lie
        ({"mode": "ddp"}, 251),
        ({"sharding_type": "table_wise"}, 251),
        ({"sharding_type": "auto"}, 251),
        ({"compute_kernel": "fused_uvm"}, 251),
    ],
)
def test_a_softmax_over_the_catalogue_looks_up_what_a_process_does_not_train(
    changes: dict[str, Any], n_candidates: int
) -> None:
    job = wanted(1001, 4, "cuda", **changes)
    assert (job.updates == "dense_shards", job.n_candidates) == (n_candidates == 0, n_candidates)


def test_trained_shards_are_looked_up_for_sequences_alone() -> None:
    """So TorchRec's time does not depend on the catalogue; a lone process sends no messages."""
    few, many = (make_plan(wanted(n, 8, "cuda"), NO_LIMIT).times[0] for n in (8, 10**7))
    assert few == many
    assert min(many) > 0
    alone = make_plan(wanted(10**7, 1, "cuda"), NO_LIMIT).times[0]
    assert (alone.forward_communication, alone.backward_communication) == (0, 0)


def test_rows_of_its_own_send_no_messages() -> None:
    """Row-wise, the share that a process looks up to score it is the one that it holds; column-wise it is not."""
    uvm = {"compute_kernel": "fused_uvm"}
    few, many = (make_plan(wanted(n, 8, "cuda", **uvm), NO_LIMIT).times[0] for n in (8, 10**7))
    assert few.forward_communication == many.forward_communication > 0
    assert few.backward_communication == many.backward_communication > 0
    assert many.forward_compute > 100 * few.forward_compute
    column_wise = make_plan(wanted(10**7, 8, "cuda", sharding_type="column_wise", sparse_optimizer="sgd"), NO_LIMIT)
    assert column_wise.times[0].forward_communication > 100 * many.forward_communication
    alone = make_plan(wanted(10**7, 1, "cuda", **uvm), NO_LIMIT).times[0]
    assert (alone.forward_communication, alone.backward_communication) == (0, 0)


def test_processes_without_shards_need_what_stands_beside_the_table() -> None:
    job = wanted(10**6, 3, sharding_type="table_wise", loss="sampled_softmax")
    plan = make_plan(job, NO_LIMIT)
    idle = {0, 1, 2} - {part.rank for part in plan.shards}
    assert len(idle) == 2
    for rank in idle:
        assert plan.needs[rank] == needed(job, [])
        assert plan.needs[rank][1][TABLES] == 0


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1234, "1.23 kB"), (999_999, "1 MB"), (5.44e9, "5.44 GB"), (2.5e12, "2.5 TB")],
)
def test_sizes_for_people(n_bytes: float, text: str) -> None:
    assert size(n_bytes) == text
