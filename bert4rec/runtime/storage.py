"""Read and write files in a bucket of S3 or of Google Cloud Storage, by their addresses.

Each process takes its login from its own environment, so that no address, log or file has one. A file in a bucket is
whole or not there. Arrow is imported by the first address.
"""

import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert4rec.runtime.console import ProgressBar
from bert4rec.runtime.errors import DataError, format_bytes, in_one_line

if TYPE_CHECKING:
    from pyarrow import NativeFile
    from pyarrow.fs import FileSystem

STORAGES = ("s3", "gs")
BUCKET_LOGINS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY to keys that may read it; public: AWS_SKIP_SIGNATURE=true",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS to the key file of an account; public: GOOGLE_SKIP_SIGNATURE=true",
}
USUAL_REGION = "us-east-1"  # that servers other than Amazon's expect, unless another one is set
FILES_AT_ONCE = 8  # that are sent or fetched
CHUNK = 8 << 20  # bytes that are read at once
SECONDS_OF_TRIES = 30  # after which Google's client gives up
NO_BUCKET = ("NO_SUCH_BUCKET", "NoSuchBucket", "bucket does not exist", "Bucket does not exist")
DENIED = (
    "ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "INVALID_SIGNATURE", "EXPIRED_TOKEN",
    "INVALID_CLIENT_TOKEN_ID", "UNRECOGNIZED_CLIENT", "PERMISSION_DENIED", "UNAUTHENTICATED", "HTTP status 401",
    "HTTP status 403", "OAuth2", "credentials",
)  # fmt: skip
UNREACHABLE = ("NETWORK_CONNECTION", "Could not resolve", "UNAVAILABLE", "Couldn't connect")


class StorageError(DataError, OSError):
    """A failure of storage that may pass: a task tries again, as after one of a disk."""


def is_stored(place: str) -> bool:
    """Return whether `place` is an address in a bucket.

    >>> is_stored("s3://bucket/shop"), is_stored("data/shop")
    (True, False)
    """
    scheme, separator, _ = place.partition("://")
    return bool(separator) and scheme in STORAGES


def read(url: str) -> bytes | None:
    """Return the content of a file; None if there is none. Raises `DataError`."""
    with _errors(url) as (files, path):
        try:
            with files.open_input_stream(path) as file:
                content: bytes = file.read()
                return content
        except FileNotFoundError:
            from pyarrow.fs import FileType

            has_bucket = True
            with suppress(OSError):  # a login for files alone may not ask
                has_bucket = files.get_file_info(path.partition("/")[0]).type != FileType.NotFound
            if not has_bucket:
                raise OSError(NO_BUCKET[0]) from None
            return None


def write(url: str, content: bytes) -> None:
    """Write a file, a small one in a single request. Raises `DataError`."""
    with _errors(url) as (files, path), files.open_output_stream(path) as file:
        file.write(content)


def upload(file: Path, url: str) -> None:
    """Copy a local file to a bucket. Raises `DataError`."""
    with file.open("rb") as local, _errors(url) as (files, path), files.open_output_stream(path) as stored:
        shutil.copyfileobj(local, stored, CHUNK)


def download(url: str, file: Path) -> None:
    """Copy a file of a bucket to a local one. Raises `DataError`, and `OSError` of the disk."""
    with file.open("wb") as local, _errors(url) as (files, path), files.open_input_stream(path) as stored:
        shutil.copyfileobj(stored, local, CHUNK)


def copy(url: str, new: str) -> None:
    """Copy a file within a bucket; its bytes do not pass this process. Raises `DataError`."""
    with _errors(url) as (files, path):
        files.copy_file(path, new.partition("://")[2])


def open_ranges(url: str) -> "NativeFile":
    """Return an open file whose bytes are read only where they are asked for. Raises `DataError`."""
    with _errors(url) as (files, path):
        return files.open_input_file(path)


def names(url: str) -> dict[str, int]:
    """Return the files below an address, by their names from there on, with their bytes. Raises `DataError`."""
    with _errors(url) as (files, path):
        from pyarrow.fs import FileSelector

        found = files.get_file_info(FileSelector(path, recursive=True, allow_not_found=True))
        return {info.path[len(path) + 1 :]: info.size for info in found if info.is_file}


def remove(*urls: str) -> None:
    """Remove files; those that are not there are no error. Raises `DataError`."""
    for url in urls:
        with _errors(url) as (files, path), suppress(FileNotFoundError):
            files.delete_file(path)


def remove_all(url: str) -> None:
    """Remove all files below an address. Raises `DataError`."""
    if names(url):
        with _errors(url) as (files, path), suppress(FileNotFoundError):
            files.delete_dir(path)


def in_parallel(work: Callable[[str], int], names: Iterable[str], n_bytes: int) -> None:
    """Call `work` for each name, several at once, and show how many of the `n_bytes`, which it returns, are done.

    The first error ends it.
    """
    done, lock = 0, threading.Lock()
    with ProgressBar(n_bytes) as bar:

        def one(name: str) -> None:
            nonlocal done
            n = work(name)
            with lock:
                done += n
                if bar.is_due():
                    bar.show(done, f"{format_bytes(done)} of {format_bytes(n_bytes)}")

        for_each(one, names)


def for_each(work: Callable[[str], object], names: Iterable[str]) -> None:
    """Call `work` for each name, several at once; the first error ends it."""
    with ThreadPoolExecutor(FILES_AT_ONCE, "storage") as pool:
        try:
            for _ in pool.map(work, names):
                pass
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


@contextmanager
def _errors(url: str) -> Iterator[tuple["FileSystem", str]]:
    """Yield the file system of an address, and the path there; turn its errors into `DataError` of one line.

    An error of a local disk, which has a file name, passes.
    """
    import pyarrow as pa

    scheme, _, path = url.partition("://")
    try:
        yield _open(scheme, path.partition("/")[0]), path
    except FileNotFoundError as error:
        if error.filename is not None:
            raise
        if any(words in str(error) for words in NO_BUCKET):
            raise _problem(url, scheme, str(error)) from None
        raise DataError(f"{url}: no such file; correct the address") from None
    except (OSError, pa.ArrowException) as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise
        raise _problem(url, scheme, in_one_line(error)) from None


def _problem(url: str, scheme: str, text: str) -> DataError:
    if any(words in text for words in NO_BUCKET):
        return DataError(f"{url}: no such bucket; correct the address")
    if any(words in text for words in DENIED):
        return DataError(f"{url}: access denied; {BUCKET_LOGINS[scheme]}")
    reason = text.rpartition("Details: ")[2].rpartition("AWS Error ")[2][:200]
    if any(words in text for words in UNREACHABLE):
        return StorageError(
            f"{url}: cannot be reached ({reason}); correct the address or AWS_ENDPOINT_URL, or repeat the command later"
        )
    return StorageError(f"{url}: interrupted ({reason}); repeat the command")


def _open(scheme: str, bucket: str) -> "FileSystem":
    """Return the file system of a bucket, as the variables of the environment describe it."""
    variables = os.environ
    if scheme == "gs":
        return _google(variables.get("STORAGE_EMULATOR_HOST", ""), _is_true("GOOGLE_SKIP_SIGNATURE"))
    endpoint = variables.get("AWS_ENDPOINT_URL_S3") or variables.get("AWS_ENDPOINT_URL", "")
    region = variables.get("AWS_REGION") or variables.get("AWS_DEFAULT_REGION", "")
    is_virtual = _is_true("AWS_VIRTUAL_HOSTED_STYLE_REQUEST")
    return _amazon("" if endpoint or region else bucket, endpoint, region, _is_true("AWS_SKIP_SIGNATURE"), is_virtual)


def _is_true(variable: str) -> bool:
    return os.environ.get(variable, "").lower() in ("1", "true", "yes")


@cache
def _amazon(bucket: str, endpoint: str, region: str, is_anonymous: bool, is_virtual: bool) -> "FileSystem":
    """Return the file system of S3; the region is that of the `bucket`, unless that is ""."""
    from pyarrow import fs

    scheme, _, host = endpoint.rpartition("://")
    where: dict[str, Any] = {"region": region or (fs.resolve_s3_region(bucket) if bucket else USUAL_REGION)}
    if endpoint:
        where |= {"scheme": scheme or "https", "endpoint_override": host.rstrip("/")}
    # A small file takes a single request if its upload begins when it is complete.
    return fs.S3FileSystem(
        anonymous=is_anonymous, allow_delayed_open=True, force_virtual_addressing=is_virtual, **where
    )


@cache
def _google(endpoint: str, is_anonymous: bool) -> "FileSystem":
    from datetime import timedelta

    from pyarrow import fs

    scheme, _, host = endpoint.rpartition("://")
    where: dict[str, Any] = {"scheme": scheme or "http", "endpoint_override": host.rstrip("/")} if endpoint else {}
    limit = timedelta(seconds=SECONDS_OF_TRIES)
    return fs.GcsFileSystem(anonymous=is_anonymous or bool(endpoint), retry_time_limit=limit, **where)
