"""MovieLens sets from GroupLens: downloaded, compared with the published size and MD5, unpacked whole or not at all."""

import hashlib
import logging
import os
import re
import shutil
import ssl
import struct
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError, URLError

from bert4rec.prepare.read.sources import SOURCES
from bert4rec.runtime.console import ProgressBar
from bert4rec.runtime.errors import DataError
from bert4rec.runtime.files import locked

BASE_URL = "https://files.grouplens.org/datasets/movielens"
TIMEOUT = 30.0  # seconds without a byte
SECONDS_PER_LINE = 3.0  # of the progress
CHUNK = 1 << 16  # bytes, at most: what an interrupted download loses
UNSOUND = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, ValueError)  # what zipfile raises
CLASHES = (FileExistsError, IsADirectoryError, NotADirectoryError)  # a file and a folder of one name in a zip
LARGEST = 10**9  # bytes, of a set whose size nobody says
MOST_UNPACKED = 20  # times the size of the zip; those of GroupLens unpack to 3 to 5 times theirs

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Archive:
    """What GroupLens publishes of a zip: its size in bytes and its MD5; None where it may change."""

    size: int | None
    md5: str | None


ARCHIVES = {
    "ml-100k": Archive(4_924_029, "0e33842e24a9c977be4e0107933c0723"),
    "ml-1m": Archive(5_917_549, "c4d9eecfca2ab87c1945afe126590906"),
    "ml-20m": Archive(198_702_078, "cd245b17a1ae2cc31bb14903e1204af3"),
    "ml-25m": Archive(261_978_986, "6b51fb2759a8657d3bfcbfc42b592ada"),
    "ml-32m": Archive(238_950_008, "d472be332d4daa821edc399621853b57"),
    # GroupLens replaces it now and then: the MD5 that stands beside it counts.
    "ml-latest-small": Archive(None, None),
}


@dataclass(frozen=True)
class _Job:
    """One set: where it comes from and where it goes."""

    source: str
    folder: Path

    @property
    def archive(self) -> Archive:
        return ARCHIVES[self.source]

    @property
    def url(self) -> str:
        return f"{BASE_URL}/{self.source}.zip"

    @property
    def zip(self) -> Path:
        return self.folder / f"{self.source}.zip"

    @property
    def part(self) -> Path:
        return self.folder / f"{self.source}.zip.part"

    @property
    def unpacked(self) -> Path:
        return self.folder / self.source

    @property
    def ratings(self) -> str:
        return SOURCES[self.source].names[0]

    @property
    def advice(self) -> str:
        """What to do without a network, or without this server."""
        place = self.zip.absolute()
        return f"try again later, or get the zip some other way, put it at {place} and repeat the command"


def fetch_movielens(source: str, folder: Path) -> Path:
    """The folder with the unpacked files of the MovieLens set `source`, downloaded into `folder` unless there already.

    `source`: a key of `ARCHIVES`. `<folder>/<source>` is used as it stands if it is there; else `<folder>/<source>.zip`
    is, once checked; else that is downloaded. An interrupted download is resumed at the next call. Raises
    `DataError` for everything that keeps the set away: network, disk, a wrong file.
    """
    if source not in ARCHIVES:
        raise DataError(f'"{source}" cannot be downloaded; these can: {", ".join(ARCHIVES)}')
    job = _Job(source, folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(job):
            return _fetched(job)
    except OSError as error:  # of the disk: those of the network are DataErrors by now
        place, reason = error.filename or folder, error.strerror or error
        raise DataError(f"{place}: {reason}; mend that and repeat the command") from None


@contextmanager
def _alone(job: _Job) -> Iterator[None]:
    """Wait until no other process fetches into the folder, and keep others out."""
    handle = os.open(job.folder, os.O_RDONLY)
    try:
        if not locked(handle):
            logger.info(f"{job.folder}: another process is fetching a set into it: waiting for it")
            locked(handle, wait=True)
        yield
    finally:
        os.close(handle)


def _fetched(job: _Job) -> Path:
    if job.unpacked.exists():
        if not (job.unpacked / job.ratings).is_file():
            raise DataError(f"{job.unpacked}: is there, but without {job.ratings}; remove it and repeat the command")
        logger.info(f"{job.unpacked}: there already, used as it is")
        return job.unpacked
    if job.zip.exists():
        _check_present(job)
    else:
        _download(job)
    _unpack(job)
    logger.info(f"{job.unpacked}: unpacked")
    terms = next(iter(sorted(job.unpacked.glob("README*"))), "https://grouplens.org/datasets/movielens/")
    logger.info(f"{terms}: GroupLens' terms of use; read them before you pass the data on or use it beyond research")
    return job.unpacked


def _check_present(job: _Job) -> None:
    """Refuse a zip in the folder, put there by hand perhaps, that is not GroupLens'."""
    try:
        md5 = job.archive.md5 or _published_md5(job)
    except DataError:
        md5 = None
    if difference := _difference(job.zip, job.archive.size, md5):
        raise DataError(f"{job.zip}: {difference}; delete it and repeat the command")
    if md5 is None:
        logger.info(f"{job.zip}: there already; no MD5 could be had from {job.url}.md5, so only its CRCs are checked")
    else:
        logger.info(f"{job.zip}: there already, MD5 as published")


def _published_md5(job: _Job) -> str:
    """The MD5 that stands beside the zip."""
    url = f"{job.url}.md5"
    with _network(url, job), urllib.request.urlopen(url, timeout=TIMEOUT) as response:
        text = response.read(1000).decode("ascii", "replace")
    found = re.search(r"\b[0-9a-f]{32}\b", text.lower())
    if not found:
        raise DataError(f"{url}: holds no MD5; {job.advice}")
    return found[0]


def _difference(path: Path, size: int | None, md5: str | None) -> str:
    """What is wrong with the file at `path`; "" where nothing is. None: not known, so not compared."""
    found_size = path.stat().st_size
    if size is not None and found_size != size:
        return f"{found_size:,} bytes, {size:,} expected"
    if md5 is None:
        return ""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    return "" if found == md5 else f"MD5 {found}, {md5} expected"


def _download(job: _Job) -> None:
    """The zip, by way of `.part`, which stays where the download is interrupted."""
    size = job.archive.size
    first = job.part.stat().st_size if job.part.exists() else 0
    if size is not None and first > size:
        first = 0  # no part of this zip
    if not first or first != size:
        with _open(job, first) as response:
            _receive(job, response, first)
    if difference := _difference(job.part, size, job.archive.md5 or _published_md5(job)):
        job.part.unlink()
        raise DataError(f"{job.url}: what came has {difference}; it was deleted: repeat the command")
    job.part.replace(job.zip)
    beside = "" if job.archive.md5 else f" in {job.url}.md5, as this set changes now and then"
    logger.info(f"{job.zip}: downloaded, MD5 as published{beside}")


def _open(job: _Job, first: int) -> HTTPResponse:
    """The server's answer when asked for the bytes from `first` on; it may send all of them."""
    request = urllib.request.Request(job.url, headers={"Range": f"bytes={first}-"} if first else {})
    with _network(job.url, job):
        try:
            return urllib.request.urlopen(request, timeout=TIMEOUT)
        except HTTPError as error:
            if error.code != 416 or not first:
                raise
            error.close()
        return urllib.request.urlopen(job.url, timeout=TIMEOUT)  # the part is as long as the zip, or longer


@contextmanager
def _network(url: str, job: _Job) -> Iterator[None]:
    try:
        yield
    except HTTPError as error:
        error.close()
        raise DataError(f"{url}: HTTP {error.code} {error.reason}; {job.advice}") from None
    except (OSError, HTTPException) as error:
        raise DataError(f"{url}: cannot be reached ({_reason(error)}); {job.advice}") from None


def _reason(error: Exception) -> str:
    """The words that matter to a person."""
    if isinstance(error, URLError):
        return _reason(error.reason) if isinstance(error.reason, Exception) else str(error.reason)
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, TimeoutError):
        return f"no answer in {TIMEOUT:.0f} s"
    words = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    return " ".join(words.split())


def _receive(job: _Job, response: HTTPResponse, first: int) -> None:
    """Write what the server sends behind the `first` bytes of `.part`, or in their place where it sends all."""
    is_rest = response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {first}-")
    first = first if is_rest else 0
    length = response.headers.get("Content-Length", "")
    announced, size = first + int(length) if length.isdecimal() else None, job.archive.size
    if size is not None and announced not in (None, size):
        raise DataError(f"{job.url}: the server offers {announced:,} bytes, {size:,} expected; {job.advice}")
    logger.info(f"{job.url}: " + (f"downloading from {_mb(first)} on" if first else "downloading"))
    with _Progress(size or announced or 0, first) as progress, job.part.open("ab" if is_rest else "wb") as file:
        while progress.received <= (progress.total or LARGEST) and (chunk := _read(job, response, progress)):
            file.write(chunk)
            progress.add(len(chunk))
    if progress.received < progress.total:
        raise _interrupted(job, progress, "the server closed the connection")


def _read(job: _Job, response: HTTPResponse, progress: "_Progress") -> bytes:
    """What has come, b"" at the end; apart from the writing, so that its errors are not taken for those of the disk."""
    try:
        return response.read1(CHUNK)
    except (OSError, HTTPException) as error:
        raise _interrupted(job, progress, _reason(error)) from None


def _interrupted(job: _Job, progress: "_Progress", reason: str) -> DataError:
    return DataError(
        f"{job.url}: interrupted at {progress.so_far} ({reason}); repeat the command: it resumes from there"
    )


class _Progress(ProgressBar):
    """Says every few seconds how far a download is; `total` = 0: nobody knows how long it is."""

    def __init__(self, total: int, received: int) -> None:
        super().__init__(total, done=received, seconds=SECONDS_PER_LINE)
        self.total, self.received = total, received

    @property
    def so_far(self) -> str:
        return f"{_mb(self.received)}" + (f" of {_mb(self.total)}" if self.total else "")

    def add(self, n_bytes: int) -> None:
        """Count `n_bytes` more."""
        self.received += n_bytes
        if self.is_due():
            rate = (self.received - self._first) / max(self.seconds, 1e-3)
            left = f", {self.seconds_left(self.received):,.0f} s left" if self.total else ""
            self.show(self.received, f"  {self.so_far}, {_mb(rate)}/s{left}")


def _mb(n_bytes: float) -> str:
    return f"{n_bytes / 1e6:,.1f} MB"


def _unpack(job: _Job) -> None:
    """`<source>/` of the zip as `<folder>/<source>`, whole or not at all; nothing is written before all is checked."""
    new = job.folder / f".{job.source}.new"
    shutil.rmtree(new, ignore_errors=True)  # of a killed run: no other is under way here
    try:
        with zipfile.ZipFile(job.zip) as archive:
            _check_members(job, archive.infolist())
            archive.extractall(new)
        (new / job.source).rename(job.unpacked)
    except (*UNSOUND, *CLASHES) as error:
        reason = _reason(error)
        raise DataError(f"{job.zip}: not a sound zip file ({reason}); delete it and repeat the command") from None
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _check_members(job: _Job, members: list[zipfile.ZipInfo]) -> None:
    """Refuse a zip that grows without measure, or has no ratings; `zipfile` itself keeps all names in the folder."""
    advice = "nothing was unpacked; delete it, and get it from GroupLens"
    total, most = sum(member.file_size for member in members), MOST_UNPACKED * job.zip.stat().st_size
    if total > most:
        raise DataError(f"{job.zip}: would unpack to {_mb(total)}, more than {MOST_UNPACKED} times its size; {advice}")
    if f"{job.source}/{job.ratings}" not in {member.filename for member in members}:
        raise DataError(f"{job.zip}: no {job.source}/{job.ratings} in it; {advice}")
