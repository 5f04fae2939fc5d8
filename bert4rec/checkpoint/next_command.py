"""How to go on with a training: a command for the launcher with which this process was started."""

import os
import shlex
from pathlib import Path

from bert4rec.checkpoint.run_folder import CHECKPOINTS, CONFIG, found

PROGRAM = ["-m", "bert4rec"]
COMMAND = "train"


def train_command(*options: str) -> str:
    """Return the command of a training with `options`, by the launcher of this process, on as many processes."""
    return " ".join([*_launcher(), *map(shlex.quote, options)])


def on_processes(world_size: int, *options: str) -> str:
    """Return the command of a training with `options` on `world_size` processes of this host."""
    if world_size == 1:
        return shlex.join(["bert4rec", COMMAND, *options])
    return shlex.join(["torchrun", "--standalone", f"--nproc_per_node={world_size}", *PROGRAM, COMMAND, *options])


def how_to_continue(run: Path | None = None) -> str:
    """Return the advice for a `run` that has ended too early; without a run its folder is not known."""
    if run is None:
        return "continue with: the same command and --resume=auto"
    if found(run / CHECKPOINTS):
        return f"continue with: {train_command(f'--resume={run}')}"
    return f"start again with: {train_command(f'--config={run / CONFIG}')}"


def _launcher() -> list[str]:
    """Return the words before the options."""
    n_hosts, n_processes = (os.environ.get(name, "1") for name in ("GROUP_WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    if job := os.environ.get("TORCHX_JOB_ID"):
        scheduler = job.partition("://")[0]
        # torchx passes what follows its "--" to the module.
        return ["torchx", "run", "-s", scheduler, "dist.ddp", "-j", f"{n_hosts}x{n_processes}", *PROGRAM, "--", COMMAND]
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return ["bert4rec", COMMAND]
    if n_hosts == "1":
        return ["torchrun", "--standalone", f"--nproc_per_node={n_processes}", *PROGRAM, COMMAND]
    # The address of the rendezvous is not known here.
    nodes = [f"--nnodes={n_hosts}", f"--nproc_per_node={n_processes}", "…"]
    return ["(on every host)", "torchrun", *nodes, *PROGRAM, COMMAND]
