"""A command on the processes of a launcher: one error line for each host, and the exit status of each process."""

import contextlib
import errno
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import NoReturn, TypeVar

from bert4rec.checkpoint.run_settings import how_to_continue
from bert4rec.runtime.console import emit_event
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
    "Timed out waiting": NO_ANSWER, "Application timeout": NO_ANSWER,  # the latter where another message was first
}  # fmt: skip
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
SECONDS_FOR_THE_FIRST = 5.0  # the other processes of a host wait this long with an error: one line is enough

T = TypeVar("T")


def is_rank_zero() -> bool:
    """Return whether this is rank zero."""
    return int(os.environ.get("RANK", 0)) == 0


def run(prepare: Callable[[], T | None], work: Callable[[T], None], *, resumes: bool) -> int:
    """Call `work` with the result of `prepare` unless that is None; every process calls this.

    `resumes`: a stopped command can be resumed. Return the exit status: 0 finished, 2 bad settings or input, 130, 143
    or 129 after SIGINT, SIGTERM or SIGHUP, else 1.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # which torch reads when it is imported
    try:
        prepared = prepare()
        if prepared is None:
            return 0
        # Only now, because importing torch takes seconds and a wrong setting should not wait for it. `record` leaves
        # the traceback of a crash in a file, where the launcher finds the first cause.
        with importing():
            from torch.distributed.elastic.multiprocessing.errors import record

        return record(_work)(work, prepared, resumes=resumes) or 0
    except UserError as error:
        return show(_told_to_all_hosts(error))
    except ModuleNotFoundError as error:
        exit_for_missing(error)
    except KeyboardInterrupt:
        if is_rank_zero():
            log_interrupted("stopped before the first step: nothing has changed")
        return 130


def show(error: UserError, *, is_awaited: bool = True) -> int:
    """Print one line from a process of each host, whose launcher ends the other processes; return the exit status.

    An error of all processes (`is_on_all`) is the same line on all hosts. `is_awaited`: other processes wait for this
    one to print.
    """
    rank = int(os.environ.get("RANK", 0))
    is_first_of_host = int(os.environ.get("LOCAL_RANK", rank)) == 0
    if is_awaited and not is_first_of_host:
        time.sleep(SECONDS_FOR_THE_FIRST)
    if is_first_of_host or not error.is_on_all:
        _print(f"error: {error}" + (f" (process {rank})" if rank and not error.is_on_all else ""))
    return error.status


def _work(work: Callable[[T], None], prepared: T, *, resumes: bool) -> int:
    _quiet_libraries()
    try:
        work(prepared)
    except Interrupted as interrupted:  # on all processes together: said once
        if is_rank_zero():
            emit_event(stopped=str(interrupted))
            log_interrupted(f"{interrupted}; {interrupted.advice}" if resumes else str(interrupted))
        os._exit(interrupted.status)  # at once: the launcher's patience is short, and library threads may be waiting
    except UserError as error:
        return show(error)  # here: `record` would take it for a crash
    except OSError as error:
        if error.errno not in FULL:
            raise
        where = error.filename or "the run folder"
        advice = how_to_continue() if resumes else "start it again"
        return show(RunInterruptedError(f"{where}: {error.strerror}; free the disk, then {advice}"))
    except RuntimeError as error:
        gone = next((said for words, said in GONE.items() if words in str(error)), None)
        if gone is None:
            raise
        advice = how_to_continue() if resumes else "start it again"
        return show(RunInterruptedError(f"{gone}; {advice}"), is_awaited=False)
    return 0


def _told_to_all_hosts(error: UserError) -> UserError:
    """Return the error that all hosts show for wrong settings on one of them, since the others wait for this one."""
    if "RANK" not in os.environ or os.environ.get("WORLD_SIZE") == os.environ.get("LOCAL_WORLD_SIZE"):
        error.is_on_all = True  # the only host, whose processes have the same settings
        return error  # at once, without importing torch
    _quiet_libraries()
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
    with contextlib.suppress(OSError):  # of a terminal that was closed
        print(text, file=sys.stderr, flush=True)


def _quiet_libraries() -> None:
    """Hide the libraries' warnings about themselves; errors stay."""
    warnings.simplefilter("ignore")
    for name in ("torchrec", "torch"):
        logging.getLogger(name).setLevel(logging.ERROR)
