"""Files and folders: atomic writes, locks, checksums and manifests."""

import ctypes
import fcntl
import hashlib
import json
import logging
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TypeAlias

MIB, GB = 2**20, 1e9  # bytes
N_SAMPLES, SAMPLE_BYTES = 64, 65_536  # of the sample; smaller files are read completely
MANIFEST = "manifest.json"
AT_CURRENT, EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of renameat2(2)
Files: TypeAlias = dict[str, dict[str, int | str]]
logger = logging.getLogger(__name__)


def atomic_write(path: Path, content: str | bytes) -> None:
    """Write `content` to the disk atomically: neither a kill nor a power failure leaves a part of it."""
    unfinished = path.with_name(path.name + ".tmp")
    with unfinished.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def replace_directory(new: Path, folder: Path, *, replaced: Path) -> None:
    """Rename the folder `new` to `folder`, and remove an older folder of that name.

    Linux exchanges the names in one step, so that there is a folder at any time. A file system that cannot, such as
    NFS, takes two: the older one is kept as `replaced` until the new one is there.
    """
    while not exchange(new, folder):
        if folder.exists():
            shutil.rmtree(replaced, ignore_errors=True)
            folder.rename(replaced)
        try:
            new.rename(folder)
            break
        except OSError:
            if not folder.exists():  # else another process has made one just now
                raise
    sync(folder.parent)
    for older in (new, replaced):
        shutil.rmtree(older, ignore_errors=True)


def withdraw_directory(folder: Path) -> None:
    """Remove a folder that other processes may still write to: from its first step on they no longer find it.

    So none of its files is missing while it has its name, and none is added while they are removed.
    """
    withdrawn = folder.with_name(f"{folder.name}.{uuid.uuid4().hex}")
    with suppress(OSError):
        folder.rename(withdrawn)
    for _ in range(3):  # a system call that found the folder before adds its file a moment later
        shutil.rmtree(withdrawn, ignore_errors=True)


def exchange(one: Path, other: Path) -> bool:
    """Let two folders change their names in one step, and return whether the system can do that."""
    rename = getattr(ctypes.CDLL(None), "renameat2", lambda *_: -1)
    return bool(rename(AT_CURRENT, os.fsencode(one), AT_CURRENT, os.fsencode(other), EXCHANGE) == 0)


def link_or_copy(file: Path, new: Path) -> None:
    """Make `new` a hard link to `file`, or a copy where links cannot be made."""
    new.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(file.resolve(), new)
    except OSError:
        shutil.copyfile(file, new)


def shortened(path: Path) -> Path:
    """Return `path` relative to the current folder if it is below it, else unchanged."""
    current = Path.cwd()
    return path.relative_to(current) if path.is_relative_to(current) else path


def put_back(replaced: Path, folder: Path) -> None:
    """Restore the older folder after a kill in `replace_directory`, unless the new one exists."""
    if folder.exists():
        shutil.rmtree(replaced, ignore_errors=True)
    else:
        replaced.rename(folder)


def sync(folder: Path) -> None:
    """Flush the directory entries of `folder` to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def try_lock(file: IO[str] | int, *, wait: bool = False) -> bool:
    """Lock an open file, and return whether that succeeded. Closing the file or ending the process releases the lock.

    On a file system without locks, every process gets the lock.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


@contextmanager
def only_process(folder: Path) -> Iterator[None]:
    """Wait until no other process downloads into `folder`, and lock it."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        if not try_lock(handle):
            logger.info(f"{folder}: waiting for another process that downloads into it")
            try_lock(handle, wait=True)
        yield
    finally:
        os.close(handle)


def cache_folder() -> Path:
    """Return the folder of this user for what can be made or downloaded again: that of XDG_CACHE_HOME, or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bert4rec"


def sha256(path: Path) -> str:
    """Return the SHA-256 of the file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sample_sha256(path: Path) -> str:
    """Return the SHA-256 of at most 4 MiB of the file: of all of it, or of 64 evenly spaced pieces.

    The first piece is at the start of the file, the last one at its end. The checksum detects a file that was
    truncated, swapped or overwritten, but not a single flipped bit between the pieces of a large file.
    """
    size = path.stat().st_size
    if size <= N_SAMPLES * SAMPLE_BYTES:
        return sha256(path)
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for piece in range(N_SAMPLES):
            file.seek(piece * (size - SAMPLE_BYTES) // (N_SAMPLES - 1))
            digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()


def describe(folder: Path, names: Iterable[str]) -> Files:
    """Return the size and checksum of the files `names` in `folder`."""
    return {name: {"bytes": (folder / name).stat().st_size, "sha256": sha256(folder / name)} for name in names}


def write_manifest(folder: Path, files: Files) -> None:
    """Write the manifest of `files`, which are all files of `folder`."""
    atomic_write(folder / MANIFEST, _text(files))


def problem_of(folder: Path, *, looks_at: Callable[[int], bool] = lambda _: True) -> str:
    """Return the first problem of `folder`, or ""; reads only the files whose number `looks_at` accepts."""
    try:
        text = (folder / MANIFEST).read_text()
        files = json.loads(text)
        if text != _text(files):
            return f"{MANIFEST} is damaged"
        for number, (name, entry) in enumerate(files.items()):
            if looks_at(number) and (problem := _problem_of_file(folder / name, entry)):
                return problem
    except FileNotFoundError:
        return f"{MANIFEST} is missing"
    except (OSError, ValueError, AttributeError, TypeError, KeyError):
        return f"{MANIFEST} is damaged"
    return ""


def _problem_of_file(path: Path, entry: dict[str, int | str]) -> str:
    try:
        size = path.stat().st_size
        if size != entry["bytes"]:
            return f"{path.name} has {size:,} bytes, not {entry['bytes']:,}"
        return "" if sha256(path) == entry["sha256"] else f"{path.name} has another checksum"
    except FileNotFoundError:
        return f"{path.name} is missing"
    except OSError as error:
        return f"{path.name} cannot be read: {error.strerror}"


def _text(files: Files) -> str:
    """Return the only valid text of a manifest: any changed byte makes it differ from this form or from the files."""
    return json.dumps(dict(sorted(files.items())), indent=1) + "\n"
