"""Output that nobody reads any more, as in `python train.py --help | head -1`."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ending_on_broken_pipe() -> Iterator[None]:
    """End this process as `ls` and `cat` do where the reader of its output has gone: by SIGPIPE, without a word.

    Python ignores that signal, and would end with a traceback, or with a message when the interpreter shuts down.
    """
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGPIPE)
