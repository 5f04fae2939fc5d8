"""The fork server of the loader processes: it imports their modules once, and they share the memory of these.

A loader process that is forked from the training process would inherit the thread pools of torch and Arrow in an
unknown state. This module does not import torch: the server can start before the training process has imported it.
"""

import multiprocessing
import os
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext


def fork_server() -> ForkServerContext:
    """Return the multiprocessing context of the fork server; starting its first process also starts the server."""
    # An interrupted training ends at once; its shared memory is then freed without a warning on the screen.
    os.environ.setdefault("PYTHONWARNINGS", "ignore::UserWarning:multiprocessing.resource_tracker")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bert4rec.feed.preloaded"])
    return context


def start_ahead() -> None:
    """Start the server now: its imports take a second, during which this process can continue."""
    fork_server()
    forkserver.ensure_running()
