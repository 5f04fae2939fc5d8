"""MovieLens sets from GroupLens: downloaded by pooch, compared with the published MD5, unpacked whole or not at all."""

import logging
import os
import re
import shutil
import sys
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pooch
import requests

from bert4rec.prepare.sources import SOURCES
from bert4rec.runtime.errors import DataError
from bert4rec.runtime.files import try_lock

BASE_URL = "https://files.grouplens.org/datasets/movielens"
TERMS = "https://grouplens.org/datasets/movielens/"
TIMEOUT = 30.0  # seconds without a byte
ARCHIVES = {  # set → published MD5; None: GroupLens replaces it now and then, the MD5 beside the file counts
    "ml-100k": "0e33842e24a9c977be4e0107933c0723",
    "ml-1m": "c4d9eecfca2ab87c1945afe126590906",
    "ml-20m": "cd245b17a1ae2cc31bb14903e1204af3",
    "ml-25m": "6b51fb2759a8657d3bfcbfc42b592ada",
    "ml-32m": "d472be332d4daa821edc399621853b57",
    "ml-latest-small": None,
}
DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    RuntimeError,
)  # what zipfile raises for a file that is no sound zip

logger = logging.getLogger(__name__)


def fetch_movielens(source: str, folder: Path) -> Path:
    """Return the folder of the MovieLens set `source`, which is downloaded into `folder` unless it is there.

    `<folder>/<source>` is used as it is if it exists, else `<folder>/<source>.zip` if it has the published MD5, else
    the zip is downloaded. Raises `DataError` for an unknown set and for failures of the network or the disk.
    """
    if source not in ARCHIVES:
        raise DataError(f'"{source}" cannot be downloaded; choose one of {", ".join(ARCHIVES)}')
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _only_process(folder):
            return _fetch(source, folder)
    except requests.RequestException as error:
        raise DataError(
            f"{BASE_URL}/{source}.zip: cannot be downloaded ({_reason(error)}); try again later, or get the zip some "
            f"other way, put it at {folder.absolute() / source}.zip and repeat the command"
        ) from None
    except OSError as error:
        raise DataError(
            f"{error.filename or folder}: {error.strerror or error}; correct that and repeat the command"
        ) from None


@contextmanager
def _only_process(folder: Path) -> Iterator[None]:
    """Wait until no other process downloads into `folder`, and keep others out."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        if not try_lock(handle):
            logger.info(f"{folder}: waiting for another process that downloads into it")
            try_lock(handle, wait=True)
        yield
    finally:
        os.close(handle)


def _fetch(source: str, folder: Path) -> Path:
    unpacked, archive, url = folder / source, folder / f"{source}.zip", f"{BASE_URL}/{source}.zip"
    ratings = SOURCES[source].names[0]
    if unpacked.exists():
        if not (unpacked / ratings).is_file():
            raise DataError(f"{unpacked}: exists, but without {ratings}; remove it and repeat the command")
        logger.info(f"{unpacked}: exists, used as it is")
        return unpacked
    logger.info(f"{archive}: exists, is compared with the published MD5" if archive.exists() else f"{url}: downloading")
    md5 = ARCHIVES[source] or _published_md5(url, is_needed=not archive.exists())
    pooch.get_logger().setLevel("WARNING")
    try:
        pooch.retrieve(
            url,
            md5 and f"md5:{md5}",
            fname=archive.name,
            path=folder,
            downloader=pooch.HTTPDownloader(progressbar=sys.stderr.isatty(), timeout=TIMEOUT),
        )
    except ValueError:  # of pooch, which has deleted the file
        raise DataError(f"{url}: the downloaded file has another MD5 than {md5}; repeat the command") from None
    _unpack(archive, unpacked, ratings)
    readme = next(iter(sorted(unpacked.glob("README*"))), TERMS)
    logger.info(f"{unpacked}: unpacked. GroupLens' terms of use: {readme}")
    return unpacked


def _published_md5(url: str, *, is_needed: bool) -> str | None:
    """Return the MD5 that is published beside the zip; None without a network, unless it `is_needed`."""
    try:
        response = requests.get(f"{url}.md5", timeout=TIMEOUT)
        response.raise_for_status()
    except requests.RequestException:
        if is_needed:
            raise
        logger.info(f"{url}.md5: cannot be read; only the CRCs of the zip are checked")
        return None
    if not (found := re.search(r"\b[0-9a-f]{32}\b", response.text.lower())):
        raise DataError(f"{url}.md5: has no MD5; try again later")
    return found[0]


def _unpack(archive: Path, target: Path, ratings: str) -> None:
    """Unpack `<set>/` of the zip as the folder `target`. Raises `DataError` for a damaged zip or another set."""
    new = target.with_name(f".{target.name}.new")
    shutil.rmtree(new, ignore_errors=True)  # of a killed run
    try:
        with zipfile.ZipFile(archive) as file:
            file.extractall(new)
        if not (new / target.name / ratings).is_file():
            raise DataError(f"{archive}: has no {target.name}/{ratings}; delete it and repeat the command")
        (new / target.name).rename(target)
    except DAMAGED as error:
        raise DataError(f"{archive}: is no sound zip file ({error}); delete it and repeat the command") from None
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _reason(error: requests.RequestException) -> str:
    """Return the HTTP status, or the innermost cause: requests wraps it several times."""
    if error.response is not None:
        return f"HTTP {error.response.status_code} {error.response.reason}"
    cause: BaseException = error
    while cause.__context__:
        cause = cause.__context__
    return getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
