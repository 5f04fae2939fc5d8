"""What to say where a script is started by a Python that cannot run it: one line in place of a traceback.

Imports the standard library alone, and nothing that Python 3.6 does not have.
"""

import os
import sys
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


def _this_python() -> str:
    return "{} (Python {}.{}.{})".format(sys.executable, *sys.version_info[:3])


def _exit(problem: str) -> NoReturn:
    advice = ACTIVATE if os.path.exists("train.py") else "activate the .venv of the project first"
    if os.environ.get("LOCAL_RANK", "0") == "0":  # once a host, where a launcher has started several
        print(f"error: {problem}: {advice}", file=sys.stderr)
    sys.exit(2)
