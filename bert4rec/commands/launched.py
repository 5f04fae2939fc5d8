"""Run a command on the processes of a launcher, print one error line per host, and return the exit status."""

import contextlib
import errno
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeVar

from bert4rec.checkpoint.run_settings import how_to_continue
from bert4rec.runtime.console import emit_event, hide_warnings, visible
from bert4rec.runtime.errors import Interrupted, RunInterruptedError, UserError
from bert4rec.runtime.signals import log_interrupted
from bert4rec.runtime.startup import exit_for_missing, importing

LOST_ANOTHER = "lost another process of this run; if it printed no error it was probably out of memory (see `dmesg`)"
NO_ANSWER = (
    "another process of this run has not answered for parallelism.timeout_minutes: its host or the network is lost, "
    "or it is busy for longer than that"
)
# Errors of gloo for a dead process, and for one that cannot be reached.
GONE = {
    "Connection closed by peer": LOST_ANOTHER, "Connection reset by peer": LOST_ANOTHER, "Broken pipe": LOST_ANOTHER,
    "Timed out waiting": NO_ANSWER, "Application timeout": NO_ANSWER,  # the latter if another message came first
}  # fmt: skip
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
SECONDS_FOR_THE_FIRST = 5.0  # delay of errors of local ranks above 0, so that the host prints only one line

T = TypeVar("T")


def is_rank_zero() -> bool:
    """Return whether this is rank zero."""
    return int(os.environ.get("RANK", 0)) == 0


def run(prepare: Callable[[], T | None], work: Callable[[T], None], *, resumes: bool) -> int:
    """Call `work` with the result of `prepare` unless that is None, and return the exit status; every rank calls this.

    `resumes`: a stopped command can be resumed. The status is 0 for finished, 2 for bad settings or input, 130, 143 or
    129 after SIGINT, SIGTERM or SIGHUP, else 1.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # torch reads it on import
    try:
        prepared = prepare()
        if prepared is None:
            return 0
        # Imported late, because torch takes seconds and wrong settings should be reported at once. `record` writes the
        # traceback of a crash to a file, in which the launcher finds the first cause.
        with importing():
            from torch.distributed.elastic.multiprocessing.errors import record

        return record(_work)(work, prepared, resumes=resumes) or 0
    except UserError as error:
        return show(_shared_with_all_hosts(error))
    except ModuleNotFoundError as error:
        exit_for_missing(error)
    except KeyboardInterrupt:
        if is_rank_zero():
            log_interrupted("stopped before the first step: nothing has changed")
        return 130


def show(error: UserError, *, is_awaited: bool = True) -> int:
    """Print one error line per host, and return the exit status; the launcher then ends the host's other processes.

    An error of all ranks (`is_on_all`) is printed only by the first rank of each host. With `is_awaited`, other ranks
    of a host wait, so that its first rank can print.
    """
    rank = int(os.environ.get("RANK", 0))
    is_first_of_host = int(os.environ.get("LOCAL_RANK", rank)) == 0
    if is_awaited and not is_first_of_host:
        time.sleep(SECONDS_FOR_THE_FIRST)
    if is_first_of_host or not error.is_on_all:
        _print(f"error: {error}" + (f" (process {rank})" if rank and not error.is_on_all else ""))
    return error.status


def _work(work: Callable[[T], None], prepared: T, *, resumes: bool) -> int:
    hide_warnings()
    advice = how_to_continue() if resumes else "start it again"
    try:
        work(prepared)
    except Interrupted as interrupted:  # raised on all ranks together, so only rank zero prints it
        if is_rank_zero():
            emit_event(stopped=str(interrupted))
            log_interrupted(f"{interrupted}; {interrupted.advice}" if resumes else str(interrupted))
        os._exit(interrupted.status)  # at once: the launcher waits only briefly, and library threads may block
    except UserError as error:
        return show(error)  # not outside of `record`, which would treat it as a crash
    except OSError as error:
        if error.errno not in FULL:
            raise
        path = error.filename or "the run folder"
        return show(RunInterruptedError(f"{path}: {error.strerror}; free the disk, then {advice}"))
    except RuntimeError as error:
        problem = next((problem for words, problem in GONE.items() if words in str(error)), None)
        if problem is None:
            raise
        return show(RunInterruptedError(f"{problem}; {advice}"), is_awaited=False)
    return 0


def _shared_with_all_hosts(error: UserError) -> UserError:
    """Send an error in the settings of this host to all hosts, which would wait for it, and return the common error."""
    if "RANK" not in os.environ or os.environ.get("WORLD_SIZE") == os.environ.get("LOCAL_WORLD_SIZE"):
        error.is_on_all = True  # there is only one host, and its ranks have the same settings
        return error  # at once, without importing torch
    hide_warnings()
    from bert4rec.runtime.processes import rendezvous
    from bert4rec.training.agreement import preflight

    def fail() -> NoReturn:
        raise error

    try:
        preflight(*rendezvous(), fail)
    except UserError as common:
        return common
    return error


def _print(text: str) -> None:
    """Print `text`, and write it where torchrun looks for the cause of a failure, so that its last lines have it."""
    if file := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        content = {"message": {"message": text, "extraInfo": {"timestamp": f"{time.time():.0f}"}}}
        Path(file).write_text(json.dumps(content))
    with contextlib.suppress(OSError):  # the terminal may be closed
        print(visible(text), file=sys.stderr, flush=True)
