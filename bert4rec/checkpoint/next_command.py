"""What to type next: whole commands, for the launcher with which this process was started."""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from bert4rec.checkpoint.run_folder import CHECKPOINTS, found
from bert4rec.config.load import read_options
from bert4rec.config.setting_errors import SHORT_OPTIONS

SCRIPT = "train.py"


def train_command(*options: str) -> str:
    """train.py with `options`, started as this process was: by python, torchrun or torchx, on as many processes."""
    return " ".join([*_launcher(), *map(shlex.quote, options)])


def on_processes(world_size: int, *options: str) -> str:
    """train.py with `options` on so many processes of this host, whoever starts it."""
    if world_size == 1:
        return shlex.join(["python", SCRIPT, *options])
    return shlex.join([*_torchx("local_cwd", f"1x{world_size}"), *options])


def how_to_continue(run: Path | None = None) -> str:
    """The advice to somebody whose `run` has ended before its time; None: which one it was is not known here."""
    if run is None:
        resumes = any(_name(option) == "run.resume" for option in _typed())
        return f"continue with: {train_command(*_typed(), *(() if resumes else ['--resume=auto']))}"
    if found(run / CHECKPOINTS):
        return f"continue with: {train_command(f'--resume={run}')}"
    return f"start again with: {train_command(*_typed())}"


def free_the_disk(run: Path | None = None) -> str:
    """The advice where a disk is full."""
    return f"free the disk, then {how_to_continue(run)}"


def without(argv: Sequence[str], *options: str) -> list[str]:
    """The options of a command line, a word each, but for those that set the same as one of `options`."""
    names = {_name(option) for option in options}
    return [f"--{name}={text}" for name, text in read_options(argv) if _name(name) not in names]


def _name(option: str) -> str:
    name = option.removeprefix("--").partition("=")[0]
    return SHORT_OPTIONS.get(name, name)


def _typed() -> list[str]:
    """The options of this process, if it runs the script."""
    return sys.argv[1:] if Path(sys.argv[0]).name == SCRIPT else []


def _launcher() -> list[str]:
    """The words before the options."""
    script = sys.argv[0] if Path(sys.argv[0]).name == SCRIPT else SCRIPT
    n_hosts, n_processes = (os.environ.get(name, "1") for name in ("GROUP_WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    if job := os.environ.get("TORCHX_JOB_ID"):
        return _torchx(job.partition("://")[0], f"{n_hosts}x{n_processes}", script)
    script = shlex.quote(script)
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return ["python", script]
    if n_hosts == "1":
        return ["torchrun", "--standalone", f"--nproc_per_node={n_processes}", script]
    # Where the processes meet is not known here.
    return ["(on every host)", "torchrun", f"--nnodes={n_hosts}", f"--nproc_per_node={n_processes}", "…", script]


def _torchx(scheduler: str, size: str, script: str = SCRIPT) -> list[str]:
    return ["torchx", "run", "-s", scheduler, "dist.ddp", "-j", size, "--script", shlex.quote(script), "--"]
