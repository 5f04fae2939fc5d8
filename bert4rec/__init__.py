"""Bert4Rec on TorchRec: from raw interactions to a trained, evaluated, sharded sequential recommender."""

import logging
import os
from importlib import import_module
from typing import TYPE_CHECKING

# The import sets `bert4rec.prepare` to the package of that name; the `del` below makes way for the function.
# `from bert4rec.prepare.… import …` still finds its modules.
import bert4rec.prepare  # noqa: F401
from bert4rec.runtime.startup import set_thread_defaults

if TYPE_CHECKING:
    from bert4rec.api import Run, load, prepare, train
    from bert4rec.runtime.console import log_to_terminal
    from bert4rec.runtime.errors import ArgumentError, DataWarning, UserError
    from bert4rec.serving.histories import TimedHistory
else:
    del prepare

__version__ = "0.1.0"
__all__ = [
    "ArgumentError", "DataWarning", "Run", "TimedHistory", "UserError", "load", "log_to_terminal", "prepare", "train",
]  # fmt: skip

_MODULES = dict.fromkeys(("ArgumentError", "DataWarning", "UserError"), "bert4rec.runtime.errors") | {
    "TimedHistory": "bert4rec.serving.histories", "log_to_terminal": "bert4rec.runtime.console",
}  # fmt: skip

# torch asks once, at its first large tensor, whether to take pages of 2 MiB: those of 4 KiB come one by one, which took
# half of a step with a large catalogue (docs/performance.md).
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
set_thread_defaults()  # before torch loads libgomp
logging.getLogger(__name__).addHandler(logging.NullHandler())  # a library says nothing unless it is asked to


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, since torch takes seconds."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from bert4rec.runtime.console import quiet_libraries

    with quiet_libraries():
        return getattr(import_module(_MODULES.get(name, "bert4rec.api")), name)


def __dir__() -> "list[str]":  # in quotes for a Python that is too old, which is to be told so
    """With what has not been imported yet."""
    return sorted({*globals(), *__all__})
