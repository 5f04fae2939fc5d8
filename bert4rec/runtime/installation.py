"""Checks of the installation: one line in place of a traceback for a Python that cannot run a script.

Imports the standard library alone, and nothing that Python 3.6 does not have.
"""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

ACTIVATE = "type `source .venv/bin/activate` first (`make setup` makes .venv), then the same command again"


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
