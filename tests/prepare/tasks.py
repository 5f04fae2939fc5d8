"""Tasks of the tests of executors. Each worker imports this module, so it imports little."""

import os
import signal
import time
from pathlib import Path

MEMORY = 100 << 20  # bytes of a task on Ray
KILLED, SLEEPS = "killed-{}", "sleeps-{}"


def write(folder: Path, number: int) -> dict[str, int]:
    """Write the file of a number, and return the process."""
    temporary = folder / f".{number}-{os.getpid()}"
    temporary.write_text(str(number))
    temporary.rename(folder / str(number))
    return {"number": number, "pid": os.getpid(), "threads": int(os.environ.get("POLARS_MAX_THREADS", 0))}


def write_if_tried_before(folder: Path, number: int) -> dict[str, int]:
    """Write the file of a number at the second try; the first names its process in a file, and sleeps."""
    if (folder / KILLED.format(number)).exists():
        return write(folder, number)
    sleep(folder, number, KILLED)
    raise AssertionError("nothing has killed this process")


def sleep(folder: Path, number: int, name: str = SLEEPS) -> None:
    """Name the process in a file, and sleep for ten minutes."""
    temporary = folder / f".pid-{number}"
    temporary.write_text(str(os.getpid()))
    temporary.rename(folder / name.format(number))
    time.sleep(600)


def write_with_more_memory(folder: Path, number: int, planned: int) -> None:
    """Write the file of a number; with only the `planned` memory, first use more and more until the other task dies."""
    import psutil
    import ray

    memory = int(ray.get_runtime_context().get_assigned_resources()["memory"])
    (folder / f"try-{number}-{memory}").write_text(str(os.getpid()))
    if memory == planned:
        other, used = wait_for(folder / f"try-{1 - number}-{planned}"), []
        while psutil.pid_exists(other):
            used += [b"x" * (100 << 20)] * (len(used) < 50)
            time.sleep(0.1)
    write(folder, number)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail(error: Exception) -> None:
    raise error


def fail_until(folder: Path, n_tries: int) -> int:
    """Raise an error of the storage until this is try `n_tries`, and return how many there were."""
    (folder / f"try-{time.time_ns()}").touch()
    if (n_done := len([*folder.glob("try-*")])) < n_tries:
        raise TimeoutError("the storage does not answer")
    return n_done


class UnpicklableError(Exception):
    """An error as some libraries have it: it is not made from its message."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{reason} ({code})")


def fail_unpicklably() -> None:
    raise UnpicklableError(7, "no such bucket")


def wait_for(path: Path) -> int:
    """The number in a file that another process writes."""
    for _ in range(6000):
        if path.exists():
            return int(path.read_text())
        time.sleep(0.01)
    raise AssertionError(f"{path} was not written")
