"""The folder of a run: a new one for each, and one job at a time in it."""

import fcntl
import itertools
import os
import re
import socket
from pathlib import Path
from types import TracebackType

from bert4rec.errors import SettingsError

LOCK = ".lock"


def new_folder(parent: Path, name: str) -> Path:
    """`parent`/`name`, made, or `name`-2, -3, … where there is such a run. Raises `SettingsError`."""
    for number in itertools.count(1):
        folder = parent / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise SettingsError(f"run.dir: cannot make {folder}: {error.strerror}; choose another folder") from None
        return folder
    raise AssertionError


def runs(parent: Path, name: str) -> list[Path]:
    """The folders of the runs of that name, the first ones first."""
    form = re.compile(rf"{re.escape(name)}(?:-(\d+))?")
    matches = [match for path in parent.glob("*") if (match := form.fullmatch(path.name))]
    return [parent / match[0] for match in sorted(matches, key=lambda match: int(match[1] or 1))]


class Lock:
    """As a context: nobody else works in `folder`, on this host, or on others where the file system tells them.

    Raises `SettingsError` where somebody does. The lock goes with the process, however it ends.
    """

    def __init__(self, folder: Path) -> None:
        try:
            self._file = (folder / LOCK).open("a+")
        except OSError as error:
            raise SettingsError(f"{folder}: cannot be written to: {error.strerror}") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            holder = self._file.read() or "who it is stands nowhere"
            self._file.close()
            raise SettingsError(f"{folder}: another job is at work there ({holder}); stop it, or wait for it") from None
        except OSError:
            return  # a file system without locks
        self._file.truncate(0)
        self._file.write(f"process {os.getpid()} on {socket.gethostname()}")
        self._file.flush()

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()
