"""The check of the installation and the thread settings of libraries, done before any package is imported.

This module imports only the standard library, so that an unsuitable Python is reported in one line.
"""

from __future__ import annotations  # an old Python must reach the check

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from typing import NoReturn

ACTIVATE = "type `source .venv/bin/activate` first (`make setup` makes .venv), then the same command again"
INACTIVE = "activate the .venv of the project first"
DISTRIBUTION = "bert4rec-torchrec"
CGROUPS = Path("/sys/fs/cgroup")
CPU_FILES = {2: ["cpu.max"], 1: ["cpu.cfs_quota_us", "cpu.cfs_period_us"]}  # version of control groups → limit
# Between two parallel regions a thread of libgomp spins, by default for some milliseconds. On cores that other programs
# use too, this takes time from the threads that it waits for. benchmarks/busy_cores.py measures both conditions.
SPIN_COUNT = "1000"


def require_python() -> None:
    """End the process with status 2 if this Python is older than 3.11."""
    if sys.version_info < (3, 11):  # noqa: UP036
        _exit("is too old, 3.11 to 3.13 are supported", INACTIVE)


def exit_for_missing(error: ModuleNotFoundError) -> NoReturn:
    """End the process with status 2 if a package is not installed; raise `error` for a module of this package."""
    name = (error.name or "").partition(".")[0]
    if name in ("", "bert4rec"):
        raise error
    _exit(f"does not have the package {name}", _to_install(name))


@contextmanager
def importing() -> Iterator[None]:
    """Disable garbage collection in a block, which makes the import of TorchRec and other packages a fifth faster.

    The imports create a million permanent objects, which are excluded from garbage collection afterwards.
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


def _to_install(name: str) -> str:
    """Return what to type for the missing package `name`, if this one is installed and knows where it belongs."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        wanted = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        return INACTIVE
    for line in wanted:
        requirement, _, condition = line.partition(";")
        if requirement.replace("-", "_").lower().startswith(name.lower()):
            extra = condition.partition('extra == "')[2].partition('"')[0]
            return f"type pip install '{DISTRIBUTION}{f'[{extra}]' if extra else ''}'"
    return INACTIVE


def _exit(problem: str, advice: str) -> NoReturn:
    """End the process with status 2: this Python has the `problem`."""
    advice = ACTIVATE if os.path.exists("train.py") else advice
    if os.environ.get("LOCAL_RANK", "0") == "0":  # once per host, if a launcher has started several processes
        version = "{}.{}.{}".format(*sys.version_info[:3])
        print(f"error: {sys.executable} (Python {version}) {problem}: {advice}", file=sys.stderr)
    sys.exit(2)


def set_thread_defaults() -> None:
    """Set the thread variables that libgomp and Polars read when loaded, unless they are in the environment."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
    if usable_cores() < len(os.sched_getaffinity(0)):  # Polars ignores the limit of control groups
        os.environ.setdefault("POLARS_MAX_THREADS", str(usable_cores()))


def usable_cores() -> int:
    """Return the number of cores for this process, by its affinity and the limits of its control groups."""
    return min([len(os.sched_getaffinity(0)), *(max(1, ceil(limit)) for limit in _limits())])


def threads_of_process(local_world_size: int) -> int | None:
    """Return the number of threads for each of `local_world_size` processes of this host; None to keep OMP_NUM_THREADS.

    torchrun sets OMP_NUM_THREADS to 1 if it is not set. With a launcher, 1 therefore counts as this default, not as a
    choice of the user.
    """
    chosen = os.environ.get("OMP_NUM_THREADS", "")
    is_default = chosen in ("", "1") if "RANK" in os.environ else not chosen
    return max(1, usable_cores() // local_world_size) if is_default else None


def group_folders(controller: str, groups: str | None = None, root: Path = CGROUPS) -> Iterator[tuple[int, Path]]:
    """Yield the version (1 or 2) and folder of each control group of this process, the outermost first.

    `groups` is the text of /proc/self/cgroup. In a container only some of the folders exist.
    """
    for line in (groups or Path("/proc/self/cgroup").read_text()).splitlines():
        number, controllers, group = line.split(":", 2)
        parts = [part for part in group.split("/") if part not in ("", "..")]
        if number == "0" and not controllers:
            yield from ((2, root.joinpath(*parts[:depth])) for depth in range(len(parts) + 1))
        elif controller in controllers.split(","):
            yield from ((1, root.joinpath(controller, *parts[:depth])) for depth in range(len(parts) + 1))


def _limits(groups: str | None = None, root: Path = CGROUPS) -> Iterator[float]:
    """Yield the number of cores of each control group that has a limit."""
    try:
        for version, folder in group_folders("cpu", groups, root):
            files = [folder / name for name in CPU_FILES[version]]
            if all(file.is_file() for file in files):
                quota, period = " ".join(file.read_text() for file in files).split()
                if quota not in ("max", "-1"):
                    yield int(quota) / int(period)
    except (OSError, ValueError):  # without /proc or with an unknown format, no limit is known
        return
