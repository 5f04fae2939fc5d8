"""Files and folders: whole or not at all, one program at a time, and their checksums."""

import fcntl
import hashlib
import os
import shutil
from pathlib import Path
from typing import IO

PIECES, PIECE_BYTES = 64, 65_536  # of the sample; a file that is no larger than all of them is taken whole


def write_whole(path: Path, content: str | bytes) -> None:
    """Write `content`, all or nothing, to the disk itself: neither a kill nor a loss of power leaves half of it."""
    unfinished = path.with_name(path.name + ".tmp")
    with unfinished.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def put_in_place(new: Path, folder: Path, *, replaced: Path) -> None:
    """Make the folder `new` the `folder`; an older one waits as `replaced`, so that one of them is always there."""
    if folder.exists():
        folder.rename(replaced)
    new.rename(folder)
    sync(folder.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def put_back(replaced: Path, folder: Path) -> None:
    """After a process was killed in `put_in_place`: the older folder again, unless the new one is there."""
    if folder.exists():
        shutil.rmtree(replaced, ignore_errors=True)
    else:
        replaced.rename(folder)


def sync(folder: Path) -> None:
    """Write to the disk itself which files `folder` has."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def locked(file: IO[str] | int, *, wait: bool = False) -> bool:
    """Whether this process has the lock of an open file now; it goes with the file, or with the process.

    A file system without locks grants it to everybody.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def sha256(path: Path) -> str:
    """SHA-256 of every byte of the file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sample_sha256(path: Path) -> str:
    """SHA-256 of at most 4 MiB of the file: all of it up to that size, else 64 pieces at even distances.

    The first piece begins the file and the last one ends it. What was cut short, mixed up or written over is found;
    a single flipped bit in a large file is not, since most of the file lies between the pieces.
    """
    size = path.stat().st_size
    if size <= PIECES * PIECE_BYTES:
        return sha256(path)
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for piece in range(PIECES):
            file.seek(piece * (size - PIECE_BYTES) // (PIECES - 1))
            digest.update(file.read(PIECE_BYTES))
    return digest.hexdigest()
