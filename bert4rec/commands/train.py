"""`bert4rec train …`: dataset folder → run folder, on one process or on all that a launcher starts."""

import argparse
import contextlib
import errno
import logging
import os
import sys
import time
import warnings
from typing import NoReturn

from bert4rec.checkpoint.next_command import free_the_disk, how_to_continue
from bert4rec.checkpoint.run_settings import load_run_settings
from bert4rec.config.load import parse_command_line, settings_help
from bert4rec.config.tables import Config
from bert4rec.runtime.console import log_to_terminal
from bert4rec.runtime.errors import Interrupted, RunInterruptedError, UserError
from bert4rec.runtime.installation import exit_for_missing

SUMMARY = "dataset folder → run folder"

LOST_ANOTHER = (
    "lost another process of this run; where it has left no message of its own it was killed, for want of memory "
    "perhaps"
)
LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")  # what gloo says of a dead process
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
SECONDS_FOR_THE_FIRST = 5.0  # a host's other processes wait so long with an error, since one line is enough

logger = logging.getLogger("bert4rec")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Any setting."""
    parser.usage = "%(prog)s [--config=FILE] [--table.key=value …]"
    parser.description = "Trains, validates, tests, and writes a report; under torchrun or torchx on many processes."
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = settings_help()
    parser.set_defaults(settings=[])


def run(arguments: argparse.Namespace) -> int:
    """The exit status: 0 finished, 2 bad settings or input, 130, 143 or 129 after SIGINT, SIGTERM or SIGHUP, else 1."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # which torch reads when it is imported
    try:
        log_to_terminal(is_shown=int(os.environ.get("RANK", 0)) == 0, outlives_reader=True)
        settings = load_run_settings(*parse_command_line(arguments.settings), looks_around=True)
        for note in settings.notes:
            logger.info(note)
        if settings.finished:
            return 0
        # Only now, because importing torch takes seconds and a wrong setting should not wait for it. `record` leaves
        # the traceback of a crash in a file, where the launcher finds the first cause.
        from torch.distributed.elastic.multiprocessing.errors import record

        return record(_train)(settings.config) or 0
    except UserError as error:
        return _show(_told_to_all_hosts(error))
    except ModuleNotFoundError as error:
        exit_for_missing(error)
    except KeyboardInterrupt:
        _print("stopped before the first step: nothing has changed")
        return 130


def _train(config: Config) -> int:
    _quiet_libraries()
    from bert4rec.training.run import run as run_training  # after the libraries are quiet

    try:
        run_training(config)
    except Interrupted as interrupted:  # on all processes together: said once
        if int(os.environ.get("RANK", 0)) == 0:
            _print(f"{interrupted}; {interrupted.advice}")
        os._exit(interrupted.status)  # at once: the launcher's patience is short, and library threads may be waiting
    except UserError as error:
        return _show(error)  # here: `record` would take it for a crash
    except OSError as error:
        if error.errno not in FULL:
            raise
        where = error.filename or "the run folder"
        return _show(RunInterruptedError(f"{where}: {error.strerror}; {free_the_disk()}"))
    except RuntimeError as error:
        if not any(words in str(error) for words in LOST):
            raise
        return _show(RunInterruptedError(f"{LOST_ANOTHER}; {how_to_continue()}"), is_awaited=False)
    return 0


def _told_to_all_hosts(error: UserError) -> UserError:
    """The error that all hosts show for settings that are wrong on this one: the others would wait for it."""
    if "RANK" not in os.environ or os.environ.get("WORLD_SIZE") == os.environ.get("LOCAL_WORLD_SIZE"):
        error.is_on_all = True  # the only host, whose processes have the same settings
        return error  # at once, without importing torch
    _quiet_libraries()
    from bert4rec.runtime.processes import rendezvous
    from bert4rec.training.agreement import agreed

    def fail() -> NoReturn:
        raise error

    try:
        agreed(*rendezvous(), fail)
    except UserError as common:
        return common
    return error


def _show(error: UserError, *, is_awaited: bool = True) -> int:
    """One line from a process of each host: its launcher ends the others when the first one ends, unless that is lost.

    What all processes have met is said in the same words by all hosts.
    """
    rank = int(os.environ.get("RANK", 0))
    is_first_of_host = int(os.environ.get("LOCAL_RANK", rank)) == 0
    if is_awaited and not is_first_of_host:
        time.sleep(SECONDS_FOR_THE_FIRST)
    if is_first_of_host or not error.is_on_all:
        _print(f"error: {error}" + (f" (process {rank})" if rank and not error.is_on_all else ""))
    return error.status


def _print(text: str) -> None:
    with contextlib.suppress(OSError):  # of a terminal that was closed
        print(text, file=sys.stderr, flush=True)


def _quiet_libraries() -> None:
    """Hide the libraries' warnings about themselves; errors stay."""
    warnings.simplefilter("ignore")
    for name in ("torchrec", "torch"):
        logging.getLogger(name).setLevel(logging.ERROR)
