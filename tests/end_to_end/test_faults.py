"""Runs of real processes that are killed, and disks that are full: what is lost, what is said, that all end soon."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from bert4rec.checkpoint.run_folder import FACTS_FILE, found
from bert4rec.config.tables import Config
from tests.fixture_types import Patch, Settings
from tests.launch import ALONE, TORCHRUN, Launched, report_of, settings_file, start

pytestmark = pytest.mark.long

SOON = 120.0  # seconds, also on a busy machine: a process that waits in vain waits for half an hour
STEP = re.compile(r"resumed after step (\d+)")


def launch(file: str, *options: str, script: Sequence[str] = ("train.py",)) -> Launched:
    return Launched([*TORCHRUN[:-1], *options, *script, file, "--resume=auto"])


def kill_and_go_on(config: Config, folder: Path, n_kills: int, seed: int) -> None:
    """Kill one of two processes, again and again, at moments drawn from `seed`; then go on to the end.

    Every part must begin at the newest checkpoint that the one before has left.
    """
    file, draw = settings_file(config, folder), random.Random(seed)
    run, newest = Path(config.run.dir) / config.run_name, 0
    for n_killed in range(n_kills + 1):
        started = launch(file)
        started.wait_for(" epochs of ")
        begun = STEP.search(started.output)
        assert (int(begun[1]) if begun else 0) == newest
        if n_killed == n_kills:
            assert started.end(900) == 0, started.output
            return
        while not found(run / "checkpoints"):
            time.sleep(0.05)  # without a checkpoint the next part would be another run
        time.sleep(draw.uniform(0.0, 2.0))
        os.kill(draw.choice(started.ranks()), signal.SIGKILL)
        assert started.end(SOON) == 1, started.output
        assert "Signal 9 (SIGKILL)" in started.output
        whole = [path for path in found(run / "checkpoints") if (path / FACTS_FILE).exists()]
        newest = int(whole[-1].name.removeprefix("step-")) if whole else 0


@pytest.mark.parametrize("mode", ["dmp", "ddp"])
def test_killed_processes_cost_nothing_but_time(make: Settings, tmp_path: Path, mode: str) -> None:
    n_kills = 5
    how = {"parallelism.mode": mode, "training.n_epochs": 15 * n_kills}  # so that all kills find it at work
    whole = start([*TORCHRUN, settings_file(make(**{"run.name": "whole"}, **how), tmp_path)])
    assert whole.returncode == 0, whole.stderr
    kill_and_go_on(make(**{"run.name": "killed"}, **how), tmp_path, n_kills, seed=1)
    assert report_of(tmp_path / "runs" / "killed") == report_of(tmp_path / "runs" / "whole")


def test_sigterm_to_the_launcher_saves_and_ends(make: Settings, tmp_path: Path) -> None:
    """torchrun signals each training process with its group, in which the loader processes must not be."""
    file = settings_file(make(**{"training.n_epochs": 100_000, "training.num_workers": 1}), tmp_path)
    started = launch(file)
    started.wait_for(" epochs of ")
    time.sleep(1.0)
    started.process.send_signal(signal.SIGTERM)
    assert started.end(SOON) != 0
    assert "leaked" not in started.output
    folder = tmp_path / "runs" / "small"
    command = f"torchrun --standalone --nproc_per_node=2 -m bert4rec train --resume={folder}"
    steps = re.findall(rf"stopped by SIGTERM: saved after step (\d+); continue with: {command}\n", started.output)
    assert len(steps) == 1, started.output
    (step,) = steps
    assert found(folder / "checkpoints")[-1].name == f"step-{int(step):09d}"


def test_torchrun_starts_all_processes_anew_after_one_has_died(
    make: Settings, tmp_path: Path, monkeypatch: Patch
) -> None:
    whole = start([*TORCHRUN, settings_file(make(**{"run.name": "whole"}), tmp_path)])
    assert whole.returncode == 0, whole.stderr
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    file = settings_file(make(**{"run.name": "broken"}), tmp_path)
    run = tmp_path / "runs" / "broken"
    started = launch(file, "--max_restarts=1")
    started.wait_for(" epochs of ")
    while not found(run / "checkpoints"):
        time.sleep(0.05)
    os.kill(started.ranks()[1], signal.SIGKILL)
    assert started.end(240) == 0, started.output
    assert re.search(r"resumed after step \d+,", started.output)
    assert report_of(run) == report_of(tmp_path / "runs" / "whole")


NOT_WRITTEN = (
    r".*\.tmp.*: (File too large|No space left on device|not all of it could be written, is the disk full\?).*"
)
LIMITED = """
import resource, runpy, sys
limit = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
runpy.run_path("train.py", run_name="__main__")
"""


@pytest.mark.parametrize("asynchronous", ["true", "false"])
def test_a_checkpoint_that_the_disk_does_not_take(make: Settings, tmp_path: Path, asynchronous: str) -> None:
    """Files may have 200 kB, a checkpoint has more: the training goes on without."""
    short = {
        "training.n_epochs": 2, "checkpoint.every_steps": 0, "training.eval_every_n_epochs": 1, "model.embed_dim": 64,
        "model.n_layers": 6, "model.prior": "none",
    }  # fmt: skip
    file = settings_file(make(**short), tmp_path)
    command = [sys.executable, "-c", LIMITED, "200000", file, f"--checkpoint.async={asynchronous}"]
    done = start([*command, "--run.name=on"])
    assert done.returncode == 1
    assert f"error: {tmp_path / 'runs' / 'on'}: " in done.stderr
    assert len(re.findall(rf"warning: .*{NOT_WRITTEN}\n", done.stdout)) == 2
    assert list((tmp_path / "runs" / "on" / "checkpoints").iterdir()) == []


def test_a_full_file_system_keeps_the_last_good_checkpoint(make: Settings, tmp_path: Path) -> None:
    """A real one of 1 MB, in which two checkpoints have room; where the system lets us mount it."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1000k", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("this system lets nobody mount a file system here")
    try:
        changes = {"training.n_epochs": 4, "checkpoint.keep": 9, "checkpoint.every_steps": 0, "run.dir": str(disk)}
        file = settings_file(make(**changes, **{"training.eval_every_n_epochs": 1}), tmp_path)
        done = start([*ALONE, file])
        assert re.search(rf"warning: {NOT_WRITTEN}step-\d+", done.stdout)
        last = found(disk / "small" / "checkpoints")[-1]
        subprocess.run(["mount", "-o", "remount,size=9m", str(disk)], check=True)
        resumed = start([*ALONE, f"--resume={disk / 'small'}", "--training.n_epochs=5"])
        assert f"from {last}\n" in resumed.stdout
    finally:
        subprocess.run(["umount", str(disk)], check=True)


RAISING = """
import itertools, os, pkgutil, runpy, sys
where, call, rank = sys.argv.pop(1), int(sys.argv.pop(1)), sys.argv.pop(1)

def fail():
    raise ValueError("this process alone")

def failing(original, calls):
    def function(*args, **options):
        if next(calls) == call:
            fail()
        return original(*args, **options)
    return function

def hooked(original, calls):
    def forward(*args, **options):
        loss = original(*args, **options)
        if next(calls) == call:
            loss.register_hook(lambda _: fail())
        return loss
    return forward

if os.environ["RANK"] == rank:
    place, is_hook = where.removesuffix("!"), where.endswith("!")
    owner, _, name = place.rpartition(".")
    owner = pkgutil.resolve_name(owner)
    setattr(owner, name, (hooked if is_hook else failing)(getattr(owner, name), itertools.count(1)))
runpy.run_path("train.py", run_name="__main__")
"""


@pytest.mark.parametrize(
    ("where", "call", "rank", "settings"),
    [
        pytest.param(where, call, rank, settings, id=name)
        for name, where, call, rank, settings in [
            ("hook", "bert4rec.models.sequence_model.Bert4Rec.forward!", 4, 1, []),
            ("forward", "bert4rec.models.sequence_model.Bert4Rec.forward", 4, 0, []),
            ("update", "bert4rec.sharding.optimizer.Optimizers.step", 4, 1, []),
            ("decision", "bert4rec.runtime.collectives.StepSync.start", 4, 1, []),
            ("batch", "bert4rec.feed.batches.TrainingBatches.__getitem__", 4, 1, []),
            (
                "loader", "torch.utils.data.dataloader._MultiProcessingDataLoaderIter._next_data", 4, 0,
                ["--training.num_workers=1"],
            ),
            ("evaluation", "bert4rec.evaluation.ranker.Ranker._encode_batch", 2, 1, []),
            ("save", "bert4rec.checkpoint.store._write_shards", 1, 1, ["--checkpoint.async=false"]),
            ("save beside", "bert4rec.checkpoint.store._write_shards", 1, 1, ["--checkpoint.async=true"]),
            ("end of a save", "bert4rec.checkpoint.store._finish", 1, 0, ["--checkpoint.async=true"]),
            ("line of progress", "bert4rec.training.trainer.Trainer._report", 2, 0, []),
            ("report", "bert4rec.training.results.write_files", 1, 0, []),
        ]
    ],
)  # fmt: skip
def test_one_process_that_fails_ends_all_and_is_named_once(
    make: Settings, tmp_path: Path, where: str, call: int, rank: int, settings: list[str]
) -> None:
    """Wherever that is, and whatever the other one is waiting for."""
    file = settings_file(make(**{"training.n_epochs": 2, "checkpoint.every_steps": 3}), tmp_path)
    script = tmp_path / "raising.py"
    script.write_text(RAISING)
    started = launch(file, script=(str(script), where, str(call), str(rank), *settings))
    started.wait_for("ValueError: this process alone")
    assert started.end(SOON) == 1
    said, _, by_torchrun = started.output.partition("Root Cause")
    assert re.findall(r"^\[rank(\d)\]: ValueError: this process alone$", said, re.MULTILINE) == [str(rank)], said
    assert by_torchrun.count("ValueError: this process alone") == 1
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(script).encode() in read(path)]


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has ended
        return b""
