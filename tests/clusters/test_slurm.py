"""Trainings on a real Slurm of two nodes: by torchx and by sbatch, taken away, put back, gone on with."""

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bert4rec.checkpoint.run_folder import found
from bert4rec.config.load import load_config
from tests.clusters.slurm_cluster import slurm_cluster
from tests.conftest import SMALL
from tests.launch import BIN, ROOT, report_of, settings_file

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1800)]

LONG = 10_000  # epochs, more than any test waits for
TRAINING = {
    "training.n_epochs": 12, "training.per_device_train_batch_size": 4, "training.patience": 0,
    "training.eval_every_n_epochs": 6, "checkpoint.every_steps": 10,
}  # fmt: skip
SAVED = r"stopped by SIGTERM: saved after step (\d+)"
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"}
TORCHX_ENDED = {"SUCCEEDED", "FAILED", "CANCELLED"}


class Slurm:
    """Commands as a person types them, on a machine of the cluster, in a folder that looks like the project's."""

    def __init__(self, settings: Path, folder: Path, dataset: Path) -> None:
        self.folder, self.runs = folder, folder / "runs"
        for name in ("train.py", "scripts", "examples", ".torchxconfig"):
            (folder / name).symlink_to(ROOT / name)
        places = {"data.dataset_dir": str(dataset), "run.dir": str(self.runs)}
        self._file = settings_file(load_config(None, SMALL | TRAINING | places), folder)
        self._environment = {"PATH": f"{BIN}:{os.environ['PATH']}", "SLURM_CONF": str(settings)}
        self._environment |= {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}

    def type(self, *words: str, **variables: str) -> str:
        """What a command prints, which must succeed."""
        environment = os.environ | self._environment | variables
        done = subprocess.run(words, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def torchx(self, *arguments: str, options: tuple[str, ...] = (), **variables: str) -> str:
        """The number of a job of two nodes."""
        component = ["dist.ddp", "-j", "2x1", "--cpu", "1", "--memMB", "2000", "--max_retries", "3"]
        component += ["--rdzv_port", "29417", "--script", "train.py", "--"]
        words = ["torchx", "run", "-s", "slurm", *options, *component, self._file, "--resume=auto", *arguments]
        return self.type(*words, **variables).strip().removeprefix("slurm://torchx/")

    def sbatch(self, *arguments: str) -> str:
        """The number of a job of two nodes, of one core each."""
        words = ["sbatch", "--parsable", "--cpus-per-task=1", "--mem=2000", "examples/slurm.sbatch"]
        return self.type(*words, self._file, *arguments).strip()

    def records(self, job: str, name: str = "State") -> list[str]:
        """A column of what accounting has of each time that a job was on the nodes, and each part of it."""
        words = ["sacct", "--duplicates", "--allocations", "--noheader", "--parsable2", f"--format={name}"]
        return self.type(*words, f"--jobs={job}").splitlines()

    def wait(self, job: str) -> list[str]:
        """Until the job has ended; the states that accounting has."""
        while (states := self.records(job))[-1:] == [] or states[-1].split()[0] not in ENDED:
            self.pause()
        return states

    def torchx_wait(self, job: str) -> str:
        """Until the job has ended; the state that torchx says."""
        while True:
            (state,) = re.findall(r"State: (\w+)", self.type("torchx", "status", f"slurm://torchx/{job}"))
            if state in TORCHX_ENDED:
                return str(state)
            self.pause()

    def pause(self) -> None:
        """A little while, in which something happens: the backfill scheduler looks at its queue again only then."""
        time.sleep(2.0)
        self.type("scontrol", "update", "NodeName=node1", "Comment=nothing new")

    def wait_for_a_checkpoint(self, run: str) -> None:
        while not found(self.runs / run / "checkpoints"):
            time.sleep(0.2)

    def output(self, job: str) -> str:
        """All that a job has written, on both nodes."""
        return "".join(path.read_text() for path in sorted(self.folder.glob(f"slurm-{job}[-.]*")))


@pytest.fixture(scope="module")
def slurm(small_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with slurm_cluster() as settings:
        yield Slurm(settings, tmp_path_factory.mktemp("project"), small_folder)


@pytest.fixture(scope="module")
def whole(slurm: Slurm) -> str:
    """The job of a run without a break, by torchx."""
    job = slurm.torchx("--run.name=whole")
    assert slurm.torchx_wait(job) == "SUCCEEDED", slurm.output(job)
    return job


def test_torchx_and_sbatch_train_the_same_on_both_nodes(slurm: Slurm, whole: str) -> None:
    job = slurm.sbatch("--run.name=by-sbatch")
    assert slurm.wait(job) == ["COMPLETED"], slurm.output(job)
    assert slurm.records(job, "NodeList") == ["node[1-2]"]
    assert slurm.wait(whole) == ["COMPLETED", "COMPLETED"]
    assert slurm.records(whole, "NodeList,ReqMem") == ["node1|2000M", "node2|2000M"]
    for name in ("whole", "by-sbatch"):
        assert json.loads((slurm.runs / name / "report.json").read_text())["world_size"] == 2
        assert report_of(slurm.runs / name) == report_of(slurm.runs / "whole")
    assert report_of(slurm.runs / "whole")["steps"] == 12 * 13


@pytest.mark.parametrize("take_away", ["scancel --signal=TERM", "scontrol requeue", "preempt"])
@pytest.mark.parametrize("submit", [Slurm.torchx, Slurm.sbatch], ids=["torchx", "sbatch"])
def test_a_job_is_taken_away_and_ends_the_same(
    slurm: Slurm, whole: str, submit: Callable[..., str], take_away: str
) -> None:
    run = f"{submit.__name__}-{take_away.split()[0]}"
    job = submit(slurm, f"--run.name={run}")
    slurm.wait_for_a_checkpoint(run)
    if take_away == "preempt":  # by a job that may take nodes from others, which get a minute to end
        urgent = ["--partition=urgent", "--nodes=2", "--exclusive", "--wrap=sleep 2"]
        assert slurm.wait(slurm.type("sbatch", "--parsable", *urgent).strip()) == ["COMPLETED"]
    else:
        slurm.type(*take_away.split(), job)
    n_parts = 2 if submit is Slurm.torchx else 1  # of a heterogeneous job
    assert slurm.wait(job) == ["REQUEUED"] * n_parts + ["COMPLETED"] * n_parts, slurm.output(job)
    output = slurm.output(job)
    (step,) = re.findall(SAVED, output)
    assert f"resumed after step {step}," in output
    assert report_of(slurm.runs / run) == report_of(slurm.runs / "whole")
    print(*(line for line in output.splitlines() if re.search(r"CANCELLED|saved after|resumed after", line)), sep="\n")


def test_before_the_time_limit_a_run_is_saved_and_goes_on_and_a_cancelled_one_does_not(slurm: Slurm) -> None:
    limit = {"options": ("-cfg", "time=3"), "SBATCH_SIGNAL": "TERM@60"}
    job = slurm.torchx("--run.name=limited", f"--training.n_epochs={LONG}", **limit)
    while "resumed after step" not in slurm.output(job):
        assert not {*slurm.records(job)} & ENDED, slurm.output(job)
        slurm.pause()
    (step,) = re.findall(SAVED, slurm.output(job))
    assert f"resumed after step {step}," in slurm.output(job)
    slurm.pause()  # for a step or two
    slurm.type("scancel", job)
    assert [state.split()[0] for state in slurm.wait(job)] == ["REQUEUED"] * 2 + ["CANCELLED"] * 2
    time.sleep(15.0)  # longer than a job that was put back waits, and than a save takes
    assert slurm.type("squeue", "--noheader") == ""
    assert len(re.findall(SAVED, slurm.output(job))) == 2


def test_a_job_that_cannot_train_is_not_put_back_by_the_example(slurm: Slurm) -> None:
    job = slurm.sbatch("--training.n_epoch=3")
    assert slurm.wait(job) == ["FAILED"]
    assert "error: --training.n_epoch: " in slurm.output(job)
