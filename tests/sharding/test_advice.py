"""What is said of a job that cannot fit, to the letter, and that what it advises is true."""

import re
from dataclasses import replace
from typing import Any

import pytest

from bert4rec.runtime.errors import SettingsError
from bert4rec.runtime.memory import Memory
from bert4rec.sharding.advice import few_steps, fitting_changes, refuse_unless_it_fits
from bert4rec.sharding.footprint import Job
from bert4rec.sharding.plan import make_plan, size
from tests.sharding.make_job import make_job

HALF_OF_24_GB = Memory(host=12 * 10**9)


def refused(job: Job, memory: Memory) -> str:
    with pytest.raises(SettingsError) as caught:
        refuse_unless_it_fits(make_plan(job, memory))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_twenty_million_items_by_adam_in_ddp_are_refused_and_dmp_advised() -> None:
    sampled = {"loss": "sampled_softmax", "n_train_negatives": 256}
    job = make_job(20_000_000, 2, mode="ddp", sparse_optimizer="adam", **sampled)
    assert refused(job, HALF_OF_24_GB) == (
        "this configuration needs 33.1 GB of host memory per process (10.9 GB of it activations and copies), 12 GB "
        "available; it fits with --mode=dmp --parallelism.sparse_optimizer=rowwise_adagrad (3.33 GB of host memory); "
        "or --model.embed_dim=20 (12 GB of host memory)"
    )
    refuse_unless_it_fits(make_plan(replace(job, mode="dmp", sparse_optimizer="rowwise_adagrad"), HALF_OF_24_GB))


def test_a_billion_items_on_two_processes_need_many_more() -> None:
    line = refused(make_job(10**9, 2, loss="sampled_softmax"), HALF_OF_24_GB)
    found = re.search(r"it fits with (\d+) processes, 2 a host as large as now", line)
    assert found is not None
    enough = int(found[1])
    for n_processes, fits in ((enough, True), (enough - 2, False)):
        job = make_job(10**9, n_processes, local_world_size=2, loss="sampled_softmax")
        assert make_plan(job, HALF_OF_24_GB).fits is fits


def test_a_gpu_and_a_host_are_both_named() -> None:
    line = refused(make_job(10**8, 8, "cuda", sparse_optimizer="adam"), Memory(host=10**9, device=10**9))
    assert line == (
        "this configuration needs 18.7 GB of GPU memory per process (6.8 GB of it table optimizer state), 1 GB "
        "available; and 3.76 GB of host memory per process (3.62 GB of it the process itself), 1 GB available; no "
        "change of a single setting makes it fit"
    )


def job_of(changes: dict[str, Any]) -> Job:
    return make_job(**{"n_items": 10**9, "world_size": 64, "device_type": "cuda", "embed_dim": 128} | changes)


@pytest.mark.parametrize(
    ("changes", "advised"),
    [
        ({"mode": "ddp", "sparse_optimizer": "adam"}, "--mode=dmp"),
        ({"sharding_type": "table_wise", "sparse_optimizer": "adam"}, "--parallelism.sharding_type=row_wise"),
        ({"world_size": 8, "mode": "ddp", "sparse_optimizer": "adam"}, "--mode=dmp on 24 processes, 8 a host"),
    ],
)
def test_every_kind_of_advice(changes: dict[str, Any], advised: str) -> None:
    job = replace(job_of(changes), loss="sampled_softmax", n_train_negatives=256)
    fitting = list(fitting_changes(job, Memory(host=None, device=80 * 10**9)))
    assert [text for text in fitting if text.startswith(advised)], fitting


def test_what_fits_stands_in_one_order() -> None:
    job = replace(job_of({"world_size": 16, "sparse_optimizer": "adam"}), loss="sampled_softmax")
    fitting = fitting_changes(job, Memory(host=None, device=80 * 10**9))
    assert [text.split(" (")[0] for text in fitting] == [
        "--parallelism.compute_kernel=fused_uvm_caching",
        "24 processes, 8 a host as large as now",
        "--parallelism.sparse_optimizer=rowwise_adagrad",
        "--model.embed_dim=100",
    ]


def test_too_many_processes_need_more_again() -> None:
    """Of 2.5 GB 1,024 processes have not enough, though fewer would: they gather hidden states from all the others."""
    job = make_job(10**7, 8, "cuda", embed_dim=128, sparse_optimizer="adam")
    memory = Memory(host=None, device=25 * 10**8)
    assert not make_plan(replace(job, world_size=1024), memory).fits
    advice = [text.split(" (")[0] for text in fitting_changes(job, memory)]
    assert "40 processes, 8 a host as large as now" in advice
    for n_processes, fits in ((32, False), (40, True)):
        assert make_plan(replace(job, world_size=n_processes), memory).fits is fits


def test_what_can_fit_nowhere_is_said_to() -> None:
    assert refused(make_job(10**12, 2), HALF_OF_24_GB).endswith("; no change of a single setting makes it fit")


def test_a_loss_that_does_not_score_the_whole_catalogue_is_advised() -> None:
    """Fused Adam needs no gradient as large as the shard."""
    job = job_of({"world_size": 32, "sparse_optimizer": "adam", "n_train_negatives": 256})
    memory = Memory(host=None, device=80 * 10**9)
    assert "; or --training.loss=sampled_softmax (51.3 GB of GPU memory and " in refused(job, memory)
    assert make_plan(replace(job, loss="sampled_softmax"), memory).fits


@pytest.mark.parametrize(
    ("loss", "optimizer", "typed", "needed"),
    [
        ("softmax", "adam", "--mode=dmp", "14.1 GB"),
        (
            "sampled_softmax", "rowwise_adagrad",
            "--mode=dmp --parallelism.sparse_optimizer=rowwise_adagrad", "3.33 GB",
        ),
    ],
)  # fmt: skip
def test_adam_on_cpu_stays_where_it_is_there(loss: str, optimizer: str, typed: str, needed: str) -> None:
    """Trained shards have an ordinary Adam; fbgemm has no fused one on CPU."""
    job = make_job(20_000_000, 2, mode="ddp", sparse_optimizer="adam", loss=loss, n_train_negatives=256)
    memory = Memory(host=15 * 10**9)
    assert next(fitting_changes(job, memory)) == f"{typed} ({needed} of host memory)"
    (_, host), _ = make_plan(replace(job, mode="dmp", sparse_optimizer=optimizer), memory).needs
    assert size(sum(host.values())) == needed


def test_a_sampled_loss_brings_an_optimizer_that_is_there() -> None:
    """The same line has both settings: with Adam alone the run would be refused."""
    job = make_job(20_000_000, 2, sparse_optimizer="adam", n_train_negatives=256)
    assert list(fitting_changes(job, HALF_OF_24_GB))[1] == (
        "--training.loss=sampled_softmax --parallelism.sparse_optimizer=rowwise_adagrad (3.33 GB of host memory)"
    )


def test_a_batch_that_is_too_large_is_answered_with_smaller_ones_and_shorter_ones() -> None:
    """The largest round number that fits is named; the next one would not, or only in the last 5 % of the memory."""
    job, memory = make_job(2000, 2, batch_size=100_000), Memory(host=11 * 10**9)
    assert refused(job, memory) == (
        "this configuration needs 76.5 GB of host memory per process (76.2 GB of it activations and copies), 11 GB "
        "available; it fits with --training.per_device_train_batch_size=12288 (9.78 GB of host memory); or "
        "--model.max_len=6, the dataset prepared again with it (10.4 GB of host memory)"
    )
    for batch_size, fits in ((12_288, True), (16_384, False)):
        assert make_plan(replace(job, batch_size=batch_size), memory).fits is fits
    for length, fits in ((6, True), (8, False)):
        assert make_plan(replace(job, model={**job.model, "max_len": length}), memory).fits is fits


def test_fewer_negatives_are_advised_as_many_in_all_where_processes_can_have_their_own() -> None:
    """A sixteenth for each of 16 processes; where groups have their own already, fewer of them."""
    job = job_of({"n_items": 10**7, "world_size": 16, "sparse_optimizer": "adam", "n_train_negatives": 720_896})
    job, memory = replace(job, loss="sampled_softmax"), Memory(host=None, device=8 * 10**9)
    own = "--training.negatives_shared_by=1 --training.n_train_negatives=45056"
    assert [text.split(" (")[0] for text in fitting_changes(job, memory) if "n_train_neg" in text] == [own]
    assert make_plan(replace(job, negatives_shared_by=1, n_train_negatives=45_056), memory).fits
    advised = [text.split(" (")[0] for text in fitting_changes(replace(job, negatives_shared_by=8), memory)]
    n = next(int(text.rpartition("=")[2]) for text in advised if text.startswith("--training.n_train_negatives="))
    for more, fits in ((1, True), (2, False)):
        assert make_plan(replace(job, n_train_negatives=more * n), memory).fits is fits


def test_a_length_stays_above_the_step_of_the_windows() -> None:
    job, memory = make_job(2000, 2, batch_size=100_000), Memory(host=11 * 10**9)
    lengths = [[text for text in fitting_changes(job, memory, min_len=n) if "max_len" in text] for n in (6, 7)]
    assert [len(found) for found in lengths] == [1, 0]


def test_four_suggestions_at_most() -> None:
    job = job_of({"world_size": 32, "sparse_optimizer": "adam", "n_train_negatives": 256})
    memory = Memory(host=None, device=80 * 10**9)
    assert len(list(fitting_changes(job, memory))) == 5
    assert refused(job, memory).count("; or ") == 3


@pytest.mark.parametrize(
    ("n_windows", "batch_size", "world_size", "warning"),
    [
        (320, 64, 1, ""),
        (
            1000, 64, 8,
            "an epoch has only 2 steps: 1,000 windows in batches of 512 (8 processes x 64); better: 3 "
            "processes or --training.per_device_train_batch_size=24",
        ),
        (
            97, 64, 1,
            "an epoch has only 2 steps: 97 windows in batches of 64 (1 process x 64); better: "
            "--training.per_device_train_batch_size=24",
        ),
        (
            6, 4, 2,
            "an epoch has only 1 step: 6 windows in batches of 8 (2 processes x 4); better: 1 process with "
            "--training.per_device_train_batch_size=1",
        ),
        (1, 1, 1, "an epoch has only 1 step: 1 window in batches of 1 (1 process x 1)"),
    ],
)  # fmt: skip
def test_too_few_steps_for_the_processes(n_windows: int, batch_size: int, world_size: int, warning: str) -> None:
    assert few_steps(n_windows, batch_size, world_size) == warning


def test_what_is_better_than_few_steps_is_enough() -> None:
    for n_windows in range(5, 400, 7):
        for batch_size in (1, 3, 64):
            for world_size in (1, 2, 8):
                _, _, better = few_steps(n_windows, batch_size, world_size).partition("better: ")
                for advice in filter(None, better.split(" or ")):
                    processes = re.search(r"(\d+) process", advice)
                    size_of_batch = re.search(r"batch_size=(\d+)", advice)
                    assert not few_steps(
                        n_windows,
                        int(size_of_batch[1]) if size_of_batch else batch_size,
                        int(processes[1]) if processes else world_size,
                    )


def test_an_evaluation_is_advised_what_it_can_change() -> None:
    job = make_job(10**8, 2, mode="ddp", sparse_optimizer="sgd", optimizer="sgd", trains=False)
    assert refused(job, HALF_OF_24_GB) == (
        "this configuration needs 28.1 GB of host memory per process (27.2 GB of it table weights), 12 GB available; "
        "it fits with --mode=dmp on 4 processes, 2 a host as large as now (7.69 GB of host memory)"
    )


def test_copies_that_do_not_fit_are_advised_to_be_one() -> None:
    """More processes are not: each group would hold what it holds now. Nor host memory, where copies cannot be."""
    job = make_job(
        10**8, 64, "cuda", sparse_optimizer="adam", loss="sampled_softmax", sharding_group_size=8, sync_every_n_steps=4
    )
    few = Memory(host=None, device=4 * 10**9)
    assert list(fitting_changes(job, few)) == [
        "--parallelism.sharding_group_size=0 --parallelism.sync_every_n_steps=1 (2.97 GB of GPU memory and 3.76 GB of "
        "host memory)",
        "--model.embed_dim=8 (3.43 GB of GPU memory and 3.76 GB of host memory)",
    ]
    one_group = replace(job, sharding_group_size=0, sync_every_n_steps=1)
    assert make_plan(one_group, few).fits
