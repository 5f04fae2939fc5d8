"""Copy remote files, download MovieLens sets, and turn failures into errors of one line."""

import glob
import logging
import re
import shutil
import sys
import warnings
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import polars as pl
import pooch
import pyarrow as pa
import requests

from bert4rec.config.addresses import LISTED, is_url, without_secrets
from bert4rec.config.recognition import (
    FETCHED,
    NAMED_IN,
    SUFFIXES,
    TYPED_NAMES,
    Format,
    fetched_kind,
    refuse_unsupported_format,
)  # fmt: skip
from bert4rec.config.sources import MOVIELENS, SOURCES
from bert4rec.config.tables import Data, name_of_path
from bert4rec.runtime import storage
from bert4rec.runtime.errors import DataError
from bert4rec.runtime.files import only_process
from bert4rec.sources.database import fetch_database
from bert4rec.sources.interactions import choose_columns, named_columns
from bert4rec.sources.lake import fetch_lake, fetch_workbook
from bert4rec.sources.progress import Progress
from bert4rec.sources.tables import FIRST_ROWS

EXTRA_OF = {"database": "sql", "lake": "lake", "workbook": "excel"}  # kind, as in `FETCHED` → extra with its packages
LOGIN_ADVICE = {
    **storage.BUCKET_LOGINS,
    "hf": "set HF_TOKEN to a token that may read it",
    **dict.fromkeys(("https", "http"), "it needs a login, or a signature in the address that is still valid"),
}
CONTENT = {  # words of an error → what is wrong with the remote file
    "expanded paths were empty": "no file fits this pattern; correct the address",
    "Range request not supported": "the server does not send parts of a file (HTTP ranges); name a copy of it here",
    "invalid utf8": "not UTF-8 text (the name of a Parquet file must end with .parquet); convert it, or copy it here "
    "and name the copy: of a local file only the lines with other bytes are left out",
}
STATUS = re.compile(r"(?:status code: |status client error \(|status server error \()(\d{3})")
NO_LOGIN = ("169.254.169.254", "metadata.google.internal", "169.254.170.2")  # hosts with logins of cloud machines
UNREACHED = ("client error (Connect)", "error sending request", "dns error")
FILE = "file\n"  # column with the address of each row's file; no header has a name with a line end
LONGEST_NAME = 60  # characters of a copy's name: keys of a bucket may be longer than the 255 bytes of a file name
Choose: TypeAlias = Callable[[pl.DataFrame, str], Collection[str]]
BASE_URL = "https://files.grouplens.org/datasets/movielens"
TERMS = "https://grouplens.org/datasets/movielens/"
TIMEOUT = 30.0  # seconds without a byte
DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError)  # raised by zipfile for a damaged file
logger = logging.getLogger(__name__)


@contextmanager
def readable(url: str, kind: Format | None = None) -> Iterator[None]:
    """Turn errors of Polars in reading `url` into `DataError`; `kind` is the format of a typed table, if it is one."""
    try:
        yield
    except (OSError, pl.exceptions.PolarsError) as error:
        raise DataError(f"{without_secrets(url)}: {_problem(error, url, kind)}") from None


def _problem(error: Exception, url: str, kind: Format | None) -> str:
    text, scheme = str(error), url.partition("://")[0]
    found = STATUS.search(text)
    status = int(found[1]) if found else 0
    if any(place in text for place in NO_LOGIN):
        return f"no login is set; {LOGIN_ADVICE[scheme]}"
    if "error decoding response" in text:  # Hugging Face answers both cases so, and Polars ignores the status
        return f"no such file, or one that you may not read; correct the address, or {LOGIN_ADVICE[scheme]}"
    if isinstance(error, FileNotFoundError) or status == 404:
        return f"no such {'bucket' if 'NoSuchBucket' in text else 'file'} (404); correct the address"
    if isinstance(error, PermissionError) or status in (401, 403):
        return f"access denied ({status or 403}); {LOGIN_ADVICE[scheme]}"
    if status:
        return f"the server answers with status {status}; correct the address, or repeat the command later"
    for words, problem in CONTENT.items():
        if words in text:
            return problem
    if kind is not None and not isinstance(error, OSError) and "error sending request" not in text:
        return f"not {TYPED_NAMES[kind]}, or damaged: {_reason(text)}"
    if any(words in text for words in UNREACHED):
        return f"cannot be reached ({_reason(text)}); correct the address, or repeat the command later"
    return f"interrupted ({_reason(text)}); nothing was written: repeat the command"


def _reason(text: str) -> str:
    """Return the innermost cause, without any address."""
    line = text.strip().splitlines()[-1].strip()
    return re.sub(r"\S+://\S+", "…", re.sub(r"^\d+: ", "", line))[:200]


def copy_remote(url: str, folder: Path, choose: Choose | None) -> Iterator[tuple[Path, str, int]]:
    """Copy the file at `url`, or all files that fit a pattern, into `folder` in the order of their names, part by part.

    Yields for each part the local file, its address, and the number of rows in the part. Of a typed table (Parquet,
    Arrow), the first rows are copied with all columns, and the rest with only those that `choose` returns for the first
    rows and the address. Text, and any file if `choose` is None, is copied as whole lines, unpacked. Raises `DataError`
    for a file that is missing, forbidden or unreachable, and for an interrupted copy.
    """
    refuse_unsupported_format(without_secrets(url))
    kind = SUFFIXES.get(Path(without_secrets(url)).suffix.lower(), ("text", ""))[0]
    if choose is None or kind not in ("parquet", "arrow file"):
        yield from _copy_lines(url, folder)
        return
    for number, file in enumerate(_files(url, kind)):
        path = _place(folder, number, file)
        for n_rows in _copy_columns(file, kind, path, choose):
            yield path, without_secrets(file), n_rows


def _copy_lines(url: str, folder: Path) -> Iterator[tuple[Path, str, int]]:
    places: dict[str, Path] = {}
    for frame in _frames(pl.scan_lines(url, glob=_is_pattern(url), include_file_paths=FILE), url):
        for part in frame.partition_by(FILE, maintain_order=True):
            file = part[FILE][0]
            path = places.setdefault(file, _place(folder, len(places), file))
            with path.open("ab") as copy:
                copy.write(part["line"].str.join("\n").item().encode() + b"\n")
            yield path, without_secrets(file), len(part)
    if not places:
        if _is_pattern(url):
            raise DataError(f"{without_secrets(url)}: no file fits this pattern, or all are empty; correct it")
        path = _place(folder, 0, url)
        path.touch()
        yield path, without_secrets(url), 0


def _copy_columns(url: str, kind: Format, path: Path, choose: Choose) -> Iterator[int]:
    """Write the table at `url` as an Arrow stream, which can hold every type, and yield the numbers of rows written."""
    with readable(url, kind):
        table = pl.scan_parquet(url, glob=False) if kind == "parquet" else pl.scan_ipc(url, glob=False)
        first = table.head(FIRST_ROWS).collect()
    columns = choose(first, without_secrets(url))
    needed = [name for name in first.columns if name in columns]
    schema, packed = first.to_arrow().schema, pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema, options=packed) as stream:
        stream.write_table(first.to_arrow())
        yield len(first)
        if len(needed) < len({*columns}):
            return  # the caller reports the missing column from the first rows
        for frame in _frames(table.slice(FIRST_ROWS).select(needed), url, kind):
            stream.write_table(pl.concat([first.clear(), frame], how="diagonal").to_arrow())
            yield len(frame)


def _files(url: str, kind: Format) -> list[str]:
    """Return the addresses of all files that fit the pattern `url`; only `url` if it is no pattern."""
    if not _is_pattern(url):
        return [url]
    with readable(url, kind):
        if kind == "parquet":  # whose files may differ in their columns
            rows = pl.scan_parquet(url, include_file_paths=FILE, missing_columns="insert", extra_columns="ignore")
        else:
            rows = pl.scan_ipc(url, include_file_paths=FILE)
        return rows.select(pl.col(FILE).unique().sort()).collect()[FILE].to_list()


def _frames(table: pl.LazyFrame, url: str, kind: Format | None = None) -> Iterator[pl.DataFrame]:
    """Yield the rows in order, in batches that are read on demand."""
    with readable(url, kind):
        yield from table.collect_batches(lazy=True)


def _place(folder: Path, number: int, url: str) -> Path:
    """Return the path of a copy; its name starts with `number`, to keep the order, and ends like the address."""
    return folder / f"{number:06d}-{Path(without_secrets(url)).name[-LONGEST_NAME:]}"


def _is_pattern(url: str) -> bool:
    return url.partition("://")[0] in LISTED and glob.has_magic(url)


@dataclass(frozen=True)
class LocalFiles:
    """The settings `data` with paths of files only; `names` maps the path of each copy to what was copied.

    `version`: what `metadata.json` says of the state of the table in `data.path`.
    """

    data: Data
    names: Mapping[str, str]
    version: Mapping[str, Any]

    def named(self, text: str) -> str:
        """Return `text` with the paths of copies replaced by what was copied."""
        for path, url in self.names.items():
            text = text.replace(path, url)
        return text


@contextmanager
def local_files(data: Data, folder: Path, progress: Progress, *, since: int | None = None) -> Iterator[LocalFiles]:
    """Copy what `data` names and is not read in place into `folder`, and yield the files; errors in the block name it.

    `since`: the time in seconds that the query may name; rows of a lake before it are left out. Raises `DataError` for
    what cannot be copied, and for `data.table` or `data.query` where they have no meaning.
    """
    names, changes, version = dict[str, str](), dict[str, str](), dict[str, Any]()

    def choose(first: pl.DataFrame, url: str) -> Collection[str]:
        return choose_columns(data, first, url).values()

    if data.source == "table":
        named_columns(data)  # refuses a column with two fields before anything is copied
    kinds = {key: fetched_kind(getattr(data, key)) for key in ("path", "titles_path", "items_path")}
    _refuse_useless_settings(data, kinds["path"])
    for key, kind in kinds.items():
        place, is_path = getattr(data, key), key == "path"
        if kind and not (is_path and data.source != "table"):
            target = folder / key / f"{name_of_path(place)}.parquet"
            found = _fetched(kind, place, data if is_path else Data(), target, progress, since if is_path else None)
            version |= found if is_path else {}
            changes[key] = str(target)
            names[str(target)] = without_secrets(place)
        elif is_url(place):
            columns = choose if is_path and data.source == "table" else None
            changes[key] = _copied(place, folder / key, columns, names, progress)
    local = LocalFiles(data.model_copy(update=changes), names, version)
    try:
        yield local
    except DataError as error:
        if not names:
            raise
        raise DataError(local.named(str(error))) from None


def _refuse_useless_settings(data: Data, kind: str) -> None:
    for name in ("table", "query"):
        if (value := getattr(data, name)) and (name not in NAMED_IN.get(kind, ()) or data.source != "table"):
            wanted = " or ".join(FETCHED[kind] for kind, names in NAMED_IN.items() if name in names)
            raise DataError(f"--{name}={value}: is only for {wanted} in data.path; remove it")


def _fetched(kind: str, place: str, data: Data, target: Path, progress: Progress, since: int | None) -> dict[str, Any]:
    """Copy what is at `place` into the Parquet file `target`, and return what `metadata.json` says of its state.

    `data` names its table, its query and its column of times.
    """
    target.parent.mkdir(parents=True)
    try:
        with progress.stage("fetch", 0) as stage:
            if kind == "database":
                return fetch_database(place, data.table, data.query, target, stage.advance, progress.warn, since)
            if kind == "workbook":
                return fetch_workbook(place, data.table, target, stage.advance, progress.warn)
            return fetch_lake(place, target, stage.advance, times=data.time_column, since=since)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0].replace("_", "-")
        is_other = re.match(r"adbc-driver-(?!postgresql|sqlite|manager)", package)
        wanted = package if is_other else f'"bert4rec-torchrec[{EXTRA_OF[kind]}]"'
        raise DataError(
            f"{without_secrets(place)}: is {FETCHED[kind]}, and the package {package} is not installed; type pip "
            f"install {wanted}"
        ) from None


def _copied(url: str, folder: Path, choose: Choose | None, names: dict[str, str], progress: Progress) -> str:
    """Copy the files at `url` into `folder`, add them to `names`, and return the path or the pattern of the copies."""
    folder.mkdir(parents=True)
    files: dict[str, str] = {}
    with progress.stage("fetch", 0) as stage, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Polars warns when it looks up the region of a bucket
        for path, name, n_rows in copy_remote(url, folder, choose):
            files[str(path)] = name
            stage.advance(n_rows)
    names |= files
    if len(files) == 1:
        return next(iter(files))
    pattern = f"{glob.escape(str(folder))}/*"
    names[pattern] = without_secrets(url)
    return pattern


def fetch_movielens(source: str, folder: Path) -> Path:
    """Return the folder of the MovieLens set `source`, and download it into `folder` if necessary.

    Uses `<folder>/<source>` if it exists, else `<folder>/<source>.zip` if it has the published MD5, else downloads the
    zip. Raises `DataError` for an unknown set and for failures of the network or the disk.
    """
    if source not in MOVIELENS:
        raise DataError(f'"{source}" cannot be downloaded; choose one of {", ".join(MOVIELENS)}')
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with only_process(folder):
            return _fetch(source, folder)
    except requests.RequestException as error:
        raise DataError(
            f"{BASE_URL}/{source}.zip: cannot be downloaded ({_request_reason(error)}); try again later, or get the "
            f"zip some other way, put it at {folder.absolute() / source}.zip and repeat the command"
        ) from None
    except OSError as error:
        raise DataError(f"{error.filename or folder}: {error.strerror or error}; correct that, and repeat it") from None


def _fetch(source: str, folder: Path) -> Path:
    unpacked, archive, url = folder / source, folder / f"{source}.zip", f"{BASE_URL}/{source}.zip"
    ratings = SOURCES[source].names[0]
    if unpacked.exists():
        if not (unpacked / ratings).is_file():
            raise DataError(f"{unpacked}: exists, but without {ratings}; remove it and repeat the command")
        logger.info(f"{unpacked}: exists, used as it is")
        return unpacked
    logger.info(f"{archive}: exists, is checked" if archive.exists() else f"{url}: downloading")
    md5 = SOURCES[source].md5  # if there is none, only the CRCs in the archive count
    pooch.get_logger().setLevel("WARNING")
    try:
        pooch.retrieve(
            url,
            md5 and f"md5:{md5}",
            fname=archive.name,
            path=folder,
            downloader=pooch.HTTPDownloader(progressbar=sys.stderr.isatty(), timeout=TIMEOUT),
        )
    except ValueError:  # raised by pooch, which has deleted the file
        raise DataError(f"{url}: the downloaded file has another MD5 than {md5}; repeat the command") from None
    _unpack(archive, unpacked, ratings)
    readme = next(iter(sorted(unpacked.glob("README*"))), TERMS)
    logger.info(f"{unpacked}: unpacked. GroupLens' terms of use: {readme}")
    return unpacked


def _unpack(archive: Path, target: Path, ratings: str) -> None:
    """Unpack `<set>/` of the zip to the folder `target`. Raises `DataError` for a damaged zip or another set."""
    new = target.with_name(f".{target.name}.new")
    shutil.rmtree(new, ignore_errors=True)  # left by a killed run
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


def _request_reason(error: requests.RequestException) -> str:
    """Return the HTTP status, or the message of the innermost cause, which requests wraps several times."""
    if error.response is not None:
        return f"HTTP {error.response.status_code} {error.response.reason}"
    cause: BaseException = error
    while cause.__context__:
        cause = cause.__context__
    return getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
