"""A job that cannot fit is refused with its figures, and the advice is true."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bert4rec.runtime.errors import SettingsError
from bert4rec.runtime.memory import Memory
from bert4rec.sharding.footprint import Job
from bert4rec.sharding.memory_check import (
    few_negatives,
    few_steps,
    fitting_changes,
    load_imbalance,
    refuse_unless_it_fits,
)
from bert4rec.sharding.plan import make_plan
from tests.conftest import long
from tests.sharding.make_job import make_job

HOST = Memory(host=12 * 10**9)
SAMPLED = {"loss": "sampled_softmax", "n_train_negatives": 256}


def gpu(n_gb: float) -> Memory:
    return Memory(host=None, device=int(n_gb * 10**9))


def large(**changes: Any) -> Job:
    return make_job(**{"n_items": 10**9, "world_size": 64, "device_type": "cuda", "embed_dim": 128} | changes)


BATCH = "--training.per_device_train_batch_size"
CASES: list[tuple[Job, Memory, list[str]]] = [
    (make_job(20_000_000, 2, mode="ddp", sparse_optimizer="adam", **SAMPLED), HOST,
     ["--mode=dmp --parallelism.sparse_optimizer=rowwise_adagrad", "--model.embed_dim=16"]),
    (make_job(10**9, 2, loss="sampled_softmax"), HOST, ["32 processes, 2 a host"]),
    # 1,024 processes need more again: they gather hidden states from all others.
    (make_job(10**7, 8, "cuda", embed_dim=128, sparse_optimizer="adam"), gpu(2.5),
     ["64 processes, 8 a host", "--model.embed_dim=16"]),
    (make_job(2000, 2, batch_size=100_000), Memory(host=11 * 10**9), [f"{BATCH}=12500", "--model.max_len=6"]),
    (make_job(10**8, 2, mode="ddp", sparse_optimizer="sgd", optimizer="sgd", trains=False), HOST,
     ["--mode=dmp on 4 processes, 2 a host"]),
    # Fused Adam needs no gradient as large as the shard.
    (large(world_size=32, sparse_optimizer="adam", n_train_negatives=256), gpu(80),
     ["--parallelism.compute_kernel=fused_uvm_caching", "64 processes, 8 a host", "--training.loss=sampled_softmax",
      "--parallelism.sparse_optimizer=rowwise_adagrad", "--model.embed_dim=64"]),
    (large(world_size=8, mode="ddp", sparse_optimizer="adam", **SAMPLED), gpu(80),
     ["--mode=dmp on 32 processes, 8 a host"]),
    (large(sharding_type="table_wise", sparse_optimizer="adam", **SAMPLED), gpu(80),
     ["--parallelism.sharding_type=row_wise", "--parallelism.compute_kernel=fused_uvm"]),
    # As many negatives in all, if each process can draw its own.
    (large(n_items=10**7, world_size=16, sparse_optimizer="adam", loss="sampled_softmax", n_train_negatives=720_896),
     gpu(8),
     [f"{BATCH}=32", "--training.negatives_shared_by=1 --training.n_train_negatives=45056", "--model.max_len=12"]),
    # More processes are no advice for groups, nor is host memory.
    (make_job(10**8, 64, "cuda", sparse_optimizer="adam", sharding_group_size=8, **SAMPLED),
     gpu(4),
     ["--parallelism.sharding_group_size=0", "--model.embed_dim=8"]),
    # With Adam on CPU alone the run would be refused.
    (make_job(20_000_000, 2, sparse_optimizer="adam", n_train_negatives=256), HOST,
     ["4 processes, 2 a host", "--training.loss=sampled_softmax --parallelism.sparse_optimizer=rowwise_adagrad",
      "--parallelism.sparse_optimizer=rowwise_adagrad", "--model.embed_dim=32"]),
    (make_job(10**12, 2), HOST, []),
]  # fmt: skip


def typed(job: Job, advice: str) -> Job:
    """Return the job whose settings are typed as the advice says."""
    options = dict(re.findall(r"--(\S+)=(\S+)", advice))
    values = {name.rpartition(".")[2]: int(value) if value.isdigit() else value for name, value in options.items()}
    if processes := re.search(r"(\d+) processes, \d+ a host", advice):
        values["world_size"] = int(processes[1])
    if (batch_size := values.pop("per_device_train_batch_size", None)) is not None:
        values["batch_size"] = batch_size
    model_settings = {name: values.pop(name) for name in values.keys() & job.model.keys()}
    return replace(job, **values, model={**job.model, **model_settings})


@pytest.mark.parametrize(
    ("job", "memory", "expected"),
    [long(*case) if number in (5, 7, 8, 9) else case for number, case in enumerate(CASES)],  # with many processes
)
def test_each_advice_fits(job: Job, memory: Memory, expected: list[str]) -> None:
    plan = make_plan(job, memory)
    assert not plan.fits
    advice = list(fitting_changes(job, memory))
    for text, start in zip(advice, expected, strict=True):
        assert text.startswith((f"{start} (", f"{start} as large as now ("))
        assert make_plan(typed(job, text), memory).fits
    with pytest.raises(SettingsError) as caught:
        refuse_unless_it_fits(plan)
    assert [text in str(caught.value) for text in advice] == [True] * min(4, len(advice)) + [False] * (len(advice) - 4)
    assert "\n" not in str(caught.value)


def test_a_refusal_names_each_memory_that_lacks() -> None:
    job, memory = make_job(10**8, 8, "cuda", sparse_optimizer="adam"), Memory(host=10**9, device=10**9)
    with pytest.raises(SettingsError) as caught:
        refuse_unless_it_fits(make_plan(job, memory))
    assert all(name in str(caught.value) for name in ("GPU memory", "host memory"))
    refuse_unless_it_fits(make_plan(job, gpu(80)))


def test_a_length_stays_above_the_step_of_the_windows() -> None:
    job, memory = make_job(2000, 2, batch_size=100_000), Memory(host=11 * 10**9)
    lengths = [[text for text in fitting_changes(job, memory, min_len=n) if "max_len" in text] for n in (6, 7)]
    assert [len(found) for found in lengths] == [1, 0]


def test_adam_stays_for_shards_that_are_trained_as_parameters() -> None:
    job = make_job(20_000_000, 2, mode="ddp", sparse_optimizer="adam", loss="softmax", n_train_negatives=256)
    assert next(fitting_changes(job, Memory(host=15 * 10**9))).startswith("--mode=dmp (14.1 GB")


def test_fewer_steps_than_enough_are_found_and_what_is_better_is_enough() -> None:
    assert not few_steps(320, 64, 1)
    for n_windows, batch_size, world_size in itertools.product(range(5, 400, 7), (1, 3, 64), (1, 2, 8)):
        _, _, better = few_steps(n_windows, batch_size, world_size).partition("better: ")
        for advice in filter(None, better.split(" or ")):
            processes, size = re.search(r"(\d+) process", advice), re.search(r"batch_size=(\d+)", advice)
            changed = int(size[1]) if size else batch_size, int(processes[1]) if processes else world_size
            assert not few_steps(n_windows, *changed)
    assert "3 processes or --training.per_device_train_batch_size=31" in few_steps(1000, 64, 8)
    assert few_steps(1, 1, 1)
    assert "better" not in few_steps(1, 1, 1)


@pytest.mark.parametrize(
    ("changes", "world_size", "n", "better"),
    [
        ({}, 1, 256, []),  # the defaults
        ({"kind": "sasrec"}, 1, 256, ["3200"]),
        ({}, 512, 256, ["704", "360448"]),  # of each process and of all
        ({}, 512, 90_112, []),  # a quarter of the positions
        ({}, 512, 90_111, ["90111", "360448"]),  # a process keeps as many as it has
        ({"negatives_shared_by": 1}, 512, 256, []),
        ({"negatives_shared_by": 8}, 512, 256, ["704", "5632"]),
        ({"n_items": 600}, 512, 256, ["599", "599"]),  # all but the target
        ({"loss": "softmax"}, 512, 256, []),
    ],
)
def test_too_few_negatives_for_the_positions_that_share_them(
    changes: dict[str, Any], world_size: int, n: int, better: list[str]
) -> None:
    job = make_job(**{"n_items": 10**6, "world_size": world_size, "loss": "gbce", "n_train_negatives": n} | changes)
    advice = few_negatives(job).partition("better: ")[2]
    assert re.findall(r"n_train_negatives=(\d+)", advice) == better
    for text in advice.split(" or ") if advice and "n_items" not in changes else ():
        assert not few_negatives(typed(job, text))


FEW = {"batch_size": 1, "max_len": 2}


@pytest.mark.parametrize(
    ("job", "popularity", "expected"),
    [
        # Of two draws an item with p = 3/4 is there with 1 - 1/16, one with p = 1/4 with 1 - 9/16.
        (make_job(4, 2, **FEW), [3, 0, 0, 1], 15 / ((15 + 7) / 2)),
        (make_job(4, 2, **FEW), [0, 0, 1, 1], 2.0),
        # Two positions and two targets, and negatives that are an even load.
        (make_job(4, 2, **FEW, loss="gbce", n_train_negatives=2, mask_prob=0.1), [3, 0, 0, 1],
         (2 * 15 + 16) / ((2 * 15 + 16 + 2 * 7 + 16) / 2)),
        (make_job(6, 2), [1, 1, 0, 1, 1, 0], 1.0), (make_job(6, 2), [0] * 6, 1.0), (make_job(6, 1), range(6), 1.0),
    ],
)  # fmt: skip
def test_the_load_of_the_busiest_process(job: Job, popularity: Sequence[int], expected: float) -> None:
    assert load_imbalance(job, np.array(popularity)) == pytest.approx(expected)
