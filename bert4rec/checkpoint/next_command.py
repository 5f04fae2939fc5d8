"""What to type next: whole commands, for the program and the launcher with which this process was started."""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from bert4rec.checkpoint.run_folder import CHECKPOINTS, CONFIG, found
from bert4rec.config.load import read_options
from bert4rec.config.setting_errors import SHORT_OPTIONS
from bert4rec.config.urls import without_secrets

SCRIPT = "train.py"
COMMAND = "train"
MODULE = ["-m", "bert4rec", COMMAND]


def train_command(*options: str) -> str:
    """A training with `options`, started as this process was: by python, torchrun or torchx, on as many processes."""
    return " ".join([*_launcher(), *map(shlex.quote, options)])


def on_processes(world_size: int, *options: str) -> str:
    """A training with `options` on so many processes of this host, whoever starts it."""
    if world_size == 1:
        return shlex.join(["bert4rec", COMMAND, *options])
    return shlex.join(["torchrun", "--standalone", f"--nproc_per_node={world_size}", *MODULE, *options])


def how_to_continue(run: Path | None = None) -> str:
    """The advice to somebody whose `run` has ended before its time; None: which one it was is not known here."""
    if run is None:
        resumes = any(_name(option) == "run.resume" for option in _typed())
        return f"continue with: {train_command(*_typed(), *(() if resumes else ['--resume=auto']))}"
    if found(run / CHECKPOINTS):
        return f"continue with: {train_command(f'--resume={run}')}"
    return f"start again with: {train_command(*(_typed() if _is_started() else [f'--config={run / CONFIG}']))}"


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
    """The options of this process, if it was started to train."""
    words = sys.argv[1 if _is_script() else 2 :] if _is_started() else []
    return [without_secrets(word) for word in words]


def _is_started() -> bool:
    """Whether this process was started to train, and not to do something else of which that is a part."""
    return _is_script() or ((_is_module() or Path(sys.argv[0]).name == "bert4rec") and sys.argv[1:2] == [COMMAND])


def _is_script() -> bool:
    return Path(sys.argv[0]).name == SCRIPT


def _is_module() -> bool:
    """Whether by `python -m bert4rec`, which a launcher may have typed."""
    return Path(sys.argv[0]).parts[-2:] == ("bert4rec", "__main__.py")


def _launcher() -> list[str]:
    """The words before the options."""
    program = [shlex.quote(sys.argv[0])] if _is_script() else MODULE
    n_hosts, n_processes = (os.environ.get(name, "1") for name in ("GROUP_WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    if job := os.environ.get("TORCHX_JOB_ID"):
        torchx = ["torchx", "run", "-s", job.partition("://")[0], "dist.ddp", "-j", f"{n_hosts}x{n_processes}"]
        # torchx takes what stands behind its "--" for the arguments of the script or module.
        return [*torchx, "--script", *program, "--"] if _is_script() else [*torchx, "-m", "bert4rec", "--", COMMAND]
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return ["python", *program] if _is_script() or _is_module() else ["bert4rec", COMMAND]
    if n_hosts == "1":
        return ["torchrun", "--standalone", f"--nproc_per_node={n_processes}", *program]
    # Where the processes meet is not known here.
    return ["(on every host)", "torchrun", f"--nnodes={n_hosts}", f"--nproc_per_node={n_processes}", "…", *program]
