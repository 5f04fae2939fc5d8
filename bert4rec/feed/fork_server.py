"""The fork server of the loader processes: it imports what they need once, and they share it, and nothing else.

Forked from the training process, they would inherit the thread pools of torch and Arrow in an unknown state. Imports no
torch, so that the server can be started before the training process has imported its own.
"""

import multiprocessing
import os
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext


def fork_server() -> ForkServerContext:
    """Return the context that starts processes by the fork server, which the first of them starts."""
    # A training that is interrupted ends at once; what it has not freed is freed without a message on the screen.
    os.environ.setdefault("PYTHONWARNINGS", "ignore::UserWarning:multiprocessing.resource_tracker")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bert4rec.feed.preloaded"])
    return context


def start_ahead() -> None:
    """Start the server now: it takes a second for its imports, during which this process has other things to do."""
    fork_server()
    forkserver.ensure_running()
