"""Make a dataset folder whole or not at all: what it replaces, what killed runs leave, and its metadata."""

import glob
import hashlib
import itertools
import json
import logging
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import polars as pl
import pyarrow as pa

from bert4rec.config.addresses import is_url, without_secrets
from bert4rec.config.stored import workshop
from bert4rec.dataset.format import (
    DATASET_FORMAT,
    METADATA,
    fingerprint_of,
)
from bert4rec.prepare.shared_work import RESULT, SharedWork
from bert4rec.runtime.errors import DataError, pluralize
from bert4rec.runtime.files import (
    put_back,
    replace_directory,
    sample_sha256,
    sha256,
    try_lock,
    withdraw_directory,
)
from bert4rec.runtime.storage import StorageError
from bert4rec.sources.progress import Progress

DATASET_LOCK = ".lock"
KEPT_AFTER = 60  # seconds; what takes less is not kept if it is stopped
logger = logging.getLogger(__name__)


@contextmanager
def new_dataset(folder: Path, *, target: Callable[[Path], Path | None] | None = None) -> Iterator[Path]:
    """Yield a temporary folder that replaces `folder` if the block succeeds, and is removed if it fails.

    A dataset at `folder` is replaced, in one step where the system can (`replace_directory`), unless `target`, called
    with the finished temporary folder, returns another place for it; a dataset at that place is left as it is. If it
    returns None, it has stored the dataset elsewhere. Raises `DataError` if `folder` holds anything else, or if writing
    fails.
    """
    clear_target(folder)
    place = folder.resolve()  # a symbolic link is kept, and its target replaced
    attempt = uuid.uuid4().hex
    new, old = (place.with_name(f"{prefix}{attempt}") for prefix in _prefixes(place))
    try:
        while not (lock := _locked(new)):  # another process removes it, as what a killed one has left
            pass
        with lock:  # `_clean` leaves a locked folder alone, and the dataset that it replaces
            yield new
            final = folder if target is None else target(new)
            final = place if final == folder else final
            if final and (final == place or not final.exists()):
                replace_directory(new, final, replaced=old)
                (final / DATASET_LOCK).unlink(missing_ok=True)
    except (BrokenPipeError, DataError):  # comes from the standard output, or has its line already
        raise
    except (OSError, pa.ArrowException, pl.exceptions.ComputeError) as error:
        raise DataError(f"{folder}: cannot write the dataset: {getattr(error, 'strerror', None) or error}") from None
    finally:
        shutil.rmtree(new, ignore_errors=True)
        _clean(place)


@contextmanager
def work_folder(folder: Path, about: Mapping[str, Any], progress: Progress) -> Iterator[Path]:
    """Yield a folder beside `folder` for the files of tasks, and remove it at the end.

    It stays if the process is killed, stopped after `KEPT_AFTER` seconds, or cannot store the dataset: a later one with
    the same input and settings, `about`, goes on with the tasks that are done. Those of others are removed.
    """
    began, place = time.monotonic(), folder.resolve()
    work = usual = place.with_name(f".{place.name}.work-{_key(about)}")
    for other in place.parent.glob(f".{glob.escape(place.name)}.work-*"):
        if other != usual:
            _withdraw_unless_locked(other)
    while not (lock := _locked(work)):  # another process makes the same dataset
        work = usual.with_name(f"{usual.name}-{uuid.uuid4().hex}")
    with lock:
        is_kept = False
        try:
            for unfinished in work.glob(f"*-{'[0-9]' * 6}.*"):
                withdraw_directory(unfinished)
            _log_done(sum(1 for _ in work.glob(f"*/{RESULT}")), progress)
            yield work
        except BaseException as error:
            is_kept = _is_worth_keeping(error, began)
            raise
        finally:
            if not is_kept:
                withdraw_directory(work)


@contextmanager
def work_in_storage(address: str, about: Mapping[str, Any], progress: Progress) -> Iterator[SharedWork]:
    """Yield what keeps the files of tasks beside the dataset at `address`; at the end they are removed.

    They stay in the cases of `work_folder`. Another machine that makes the same dataset at the same time uses the same
    files.
    """
    began, url = time.monotonic(), f"{address}.work-{_key(about)}"
    while not (lock := _locked(workshop(url))):  # another process of this machine makes the same dataset
        url = f"{address}.work-{_key(about)}-{uuid.uuid4().hex}"
    with lock:
        is_kept, work = True, SharedWork(url)
        try:
            _log_done(len(work.done()), progress)
            yield work
            is_kept = False
        except BaseException as error:
            is_kept = _is_worth_keeping(error, began)
            raise
        finally:
            work.close(is_kept=is_kept)


def _key(about: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _log_done(n_done: int, progress: Progress) -> None:
    if n_done:
        progress.log(f"{pluralize(n_done, 'task')} done by an earlier run, which was stopped")


def _is_worth_keeping(error: BaseException, began: float) -> bool:
    """Return whether the same command may go on after an `error` with what is done, and log that."""
    is_late = not isinstance(error, DataError | OSError) and time.monotonic() - began > KEPT_AFTER
    is_worth = is_late or isinstance(error, StorageError)
    if is_worth:
        logger.info("the same command goes on with what is done")
    return is_worth


def _locked(work: Path) -> IO[str] | None:
    """Return the open lock of the folder `work`, which is made if it is missing; None if another process has it."""
    work.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):  # another process has removed the folder just now
        work.mkdir(exist_ok=True)
    return _locked_as_it_is(work)


def _locked_as_it_is(folder: Path) -> IO[str] | None:
    """Return the open lock of `folder`; None if another process has it or has removed the folder."""
    path = folder / DATASET_LOCK
    with suppress(FileNotFoundError):
        lock = path.open("w")
        with suppress(FileNotFoundError):
            if try_lock(lock) and os.path.samestat(os.fstat(lock.fileno()), path.stat()):
                return lock
        lock.close()
    return None


def _withdraw_unless_locked(folder: Path) -> None:
    if lock := _locked_as_it_is(folder):  # one that is gone must not be made again
        with lock:
            withdraw_directory(folder)


def clear_target(folder: Path) -> None:
    """Remove what killed runs left next to `folder`; raise `DataError` if `folder` is anything but a dataset."""
    try:
        _clean(folder.resolve())
        if folder.is_file():
            raise DataError(f"{folder}: is a file; choose another data.dataset_dir")
        if folder.is_dir() and any(folder.iterdir()) and not (folder / METADATA).is_file():
            raise DataError(f"{folder}: is not empty and not a dataset folder; choose another data.dataset_dir")
    except OSError as error:
        raise DataError(f"{folder}: cannot be used as data.dataset_dir: {error.strerror}") from None


def created_from(source: str, path: str, rows: Mapping[str, str]) -> dict[str, str]:
    """Return the entry of `metadata.json` that identifies the input, without revealing its path on this machine.

    `rows`: the table or query that names them, in a database.
    """
    if not path:
        return {"source": source}
    place, name = os.path.realpath(path), os.path.basename(os.path.abspath(path))
    if is_url(path):
        place, name = path, without_secrets(path)
    named = {key: text for key, text in rows.items() if text}
    digest = hashlib.sha256("\n".join([place, *named.values()]).encode()).hexdigest()
    return {"source": source, "name": name, "path_sha256": digest[:16], **named}


def free_folder(folder: Path, fingerprint: str = "") -> Path:
    """Return the first of `folder`-2, -3, … that is free, or holds the dataset with this `fingerprint`."""
    place = folder.resolve() if folder.is_symlink() else folder
    others = (place.with_name(f"{place.name}-{number}") for number in itertools.count(2))
    return next(
        other for other in others if not other.exists() or (fingerprint and fingerprint_of(other) == fingerprint)
    )


def checksums(path: Path) -> dict[str, Any]:
    """Return the entry of a file in `metadata.json`."""
    return {"bytes": path.stat().st_size, "sha256": sha256(path), "sample_sha256": sample_sha256(path)}


def write_metadata(folder: Path, metadata: Mapping[str, Any], *, known: Mapping[str, Any] | None = None) -> int:
    """Write `metadata.json` with the checksums of every other file; return the size of the folder in bytes.

    `known` are checksums of files that need not be read again, and may be elsewhere.
    """
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name != DATASET_LOCK)
    names = sorted({*(path.relative_to(folder) for path in paths), *map(Path, known or {})})
    files = {name.as_posix(): (known or {}).get(name.as_posix()) or checksums(folder / name) for name in names}
    content = {
        "format_version": DATASET_FORMAT,
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        **metadata,
        "files": files,
        "fingerprint": hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest(),
    }
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    (folder / METADATA).write_text(text, encoding="utf-8")
    return sum(file["bytes"] for file in files.values()) + len(text.encode())


def _prefixes(folder: Path) -> tuple[str, str]:
    """Return the name prefixes of a folder that is being written, and of one that is being replaced."""
    return f".{folder.name}.new-", f".{folder.name}.old-"


def _clean(folder: Path) -> None:
    """Remove what killed runs left next to `folder`, and put back a dataset that was being replaced."""
    siblings = sorted(folder.parent.iterdir()) if folder.parent.is_dir() else []
    new_prefix, old_prefix = _prefixes(folder)
    new, old = ([path for path in siblings if path.name.startswith(prefix)] for prefix in (new_prefix, old_prefix))
    for path in old:
        if not _in_use(path.with_name(new_prefix + path.name.removeprefix(old_prefix))):
            put_back(path, folder)
    for path in new:
        with suppress(OSError):  # a folder of another user
            _withdraw_unless_locked(path)
    if not _in_use(folder):
        (folder / DATASET_LOCK).unlink(missing_ok=True)


def _in_use(new: Path) -> bool:
    """Return whether a living process writes or renames the folder `new`."""
    try:
        with (new / DATASET_LOCK).open("r+") as lock:
            return not try_lock(lock)
    except OSError:
        return False
