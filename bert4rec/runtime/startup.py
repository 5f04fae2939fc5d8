"""The check of the installation, and the threads of the libraries: done before any package is imported.

Imports the standard library alone, so that a Python that cannot run a script is named in one line.
"""

from __future__ import annotations  # for a Python that is too old, which is to be told so

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from typing import NoReturn

ACTIVATE = "type `source .venv/bin/activate` first (`make setup` makes .venv), then the same command again"
CGROUPS = Path("/sys/fs/cgroup")
# Between two parallel regions a thread of libgomp spins, by default some milliseconds: on cores that other programs use
# too it takes the time of those that it waits for. benchmarks/busy_cores.py has both conditions.
SPIN_COUNT = "1000"


def require_python() -> None:
    """End the process with status 2 where this Python is older than 3.11."""
    if sys.version_info < (3, 11):  # noqa: UP036
        _exit(f"{_this_python()} is too old, 3.11 to 3.13 are supported")


def exit_for_missing(error: ModuleNotFoundError) -> NoReturn:
    """End the process with status 2 for a package that is not installed; raise `error` for a module of this one."""
    name = (error.name or "").partition(".")[0]
    if name in ("", "bert4rec"):
        raise error
    _exit(f"{_this_python()} does not have the package {name}")


@contextmanager
def importing() -> Iterator[None]:
    """Import TorchRec and other packages in a block a fifth faster, without garbage collection.

    The imports create a million objects that stay; afterwards they are never looked at again.
    """
    if "torchrec" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _this_python() -> str:
    return "{} (Python {}.{}.{})".format(sys.executable, *sys.version_info[:3])


def _exit(problem: str) -> NoReturn:
    advice = ACTIVATE if os.path.exists("train.py") else "activate the .venv of the project first"
    if os.environ.get("LOCAL_RANK", "0") == "0":  # once a host, where a launcher has started several
        print(f"error: {problem}: {advice}", file=sys.stderr)
    sys.exit(2)


def set_thread_defaults() -> None:
    """Set what libgomp and Polars read when they are loaded, unless the environment has it."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
    if usable_cores() < len(os.sched_getaffinity(0)):  # Polars does not know of the limit
        os.environ.setdefault("POLARS_MAX_THREADS", str(usable_cores()))


def usable_cores() -> int:
    """Return on how many cores this process may compute: its affinity, and the limit of its control groups."""
    return min([len(os.sched_getaffinity(0)), *(max(1, ceil(limit)) for limit in _limits())])


def threads_of_process(local_world_size: int) -> int | None:
    """Return how many threads a process takes, one of `local_world_size` on this host; None: what OMP_NUM_THREADS says.

    torchrun sets that to 1 where it is not set. Below it a 1 counts as that default, not as anybody's choice.
    """
    chosen = os.environ.get("OMP_NUM_THREADS", "")
    is_default = chosen in ("", "1") if "RANK" in os.environ else not chosen
    return max(1, usable_cores() // local_world_size) if is_default else None


def group_folders(controller: str, groups: str | None = None, root: Path = CGROUPS) -> Iterator[tuple[int, Path]]:
    """Yield the version (1 or 2) and folder of each control group of this process, the outermost first.

    `groups` is the text of /proc/self/cgroup. A container sees some of the folders.
    """
    for line in (groups or Path("/proc/self/cgroup").read_text()).splitlines():
        number, controllers, group = line.split(":", 2)
        parts = [part for part in group.split("/") if part not in ("", "..")]
        if number == "0" and not controllers:
            yield from ((2, root.joinpath(*parts[:depth])) for depth in range(len(parts) + 1))
        elif controller in controllers.split(","):
            yield from ((1, root.joinpath(controller, *parts[:depth])) for depth in range(len(parts) + 1))


def _limits(groups: str | None = None, root: Path = CGROUPS) -> Iterator[float]:
    """Yield the cores that each control group grants, where it has a limit."""
    try:
        for version, folder in group_folders("cpu", groups, root):
            files = (
                [folder / "cpu.max"] if version == 2 else [folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us"]
            )
            if all(file.is_file() for file in files):
                quota, period = " ".join(file.read_text() for file in files).split()
                if quota not in ("max", "-1"):
                    yield int(quota) / int(period)
    except (OSError, ValueError):  # no /proc, or a kernel that writes something else: no limit is known
        return
