"""Files that lie elsewhere, copied by Polars' cloud readers: of a typed table no more than the columns that are needed.

Memory holds a few parts of a file at a time (of a Parquet file row groups), and rows stay in the order of the file.
"""

import glob
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Literal, TypeAlias

import polars as pl
import pyarrow as pa

from bert4rec.config.recognition import SUFFIXES, refuse_unread
from bert4rec.config.urls import LISTED, without_secrets
from bert4rec.prepare.files.tables import FIRST_ROWS
from bert4rec.prepare.read.remote_errors import readable
from bert4rec.runtime.errors import DataError

FILE = "file\n"  # column with the address of each row's file; a header has no name with a line end
LONGEST = 60  # letters of a name: keys of a bucket may be longer than names of files, which have at most 255 bytes

Typed: TypeAlias = Literal["parquet", "arrow file"]
Copied: TypeAlias = tuple[Path, str, int]  # a file on the disk, its address, how many rows more have been copied


def copy_remote(url: str, folder: Path, columns: Collection[str] | None) -> Iterator[Copied]:
    """Copy the file at `url`, or all that fit a pattern, into `folder`, in the order of their names, part by part.

    A typed table (Parquet, Arrow) is copied with its `columns` alone, but for its first rows, which have all; text
    (also of a typed table where `columns` is None) as whole lines, unpacked. Raises `DataError` for what is not there,
    not allowed, not reachable or broken off.
    """
    refuse_unread(without_secrets(url))
    kind = SUFFIXES.get(Path(without_secrets(url)).suffix.lower(), ("text", ""))[0]
    if columns is None or kind not in ("parquet", "arrow file"):
        yield from _copy_lines(url, folder)
        return
    for number, file in enumerate(_files(url, kind)):
        path = _place(folder, number, file)
        for n_rows in _copy_columns(file, kind, path, columns):
            yield path, without_secrets(file), n_rows


def _copy_lines(url: str, folder: Path) -> Iterator[Copied]:
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


def _copy_columns(url: str, kind: Typed, path: Path, columns: Collection[str]) -> Iterator[int]:
    """Write the table at `url` as an Arrow stream, which has a place for every type; yields numbers of rows."""
    with readable(url, kind):
        table = pl.scan_parquet(url, glob=False) if kind == "parquet" else pl.scan_ipc(url, glob=False)
        first = table.head(FIRST_ROWS).collect()
    needed = [name for name in first.columns if name in columns]
    schema, packed = first.to_arrow().schema, pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema, options=packed) as stream:
        stream.write_table(first.to_arrow())
        yield len(first)
        if len(needed) < len({*columns}):
            return  # the first rows show what is missing
        for frame in _frames(table.slice(FIRST_ROWS).select(needed), url, kind):
            stream.write_table(pl.concat([first.clear(), frame], how="diagonal").to_arrow())
            yield len(frame)


def _files(url: str, kind: Typed) -> list[str]:
    """Return the addresses of all files that fit the pattern `url`; itself where it is none."""
    if not _is_pattern(url):
        return [url]
    with readable(url, kind):
        if kind == "parquet":  # whose files may differ in their columns
            rows = pl.scan_parquet(url, include_file_paths=FILE, missing_columns="insert", extra_columns="ignore")
        else:
            rows = pl.scan_ipc(url, include_file_paths=FILE)
        return rows.select(pl.col(FILE).unique().sort()).collect()[FILE].to_list()


def _frames(table: pl.LazyFrame, url: str, kind: Typed | None = None) -> Iterator[pl.DataFrame]:
    """Yield the rows in their order, read no faster than they are taken."""
    with readable(url, kind):
        yield from table.collect_batches(lazy=True)


def _place(folder: Path, number: int, url: str) -> Path:
    """Return the path of a copy. Its name begins with a number, for the order of the files, and ends as the address."""
    return folder / f"{number:06d}-{Path(without_secrets(url)).name[-LONGEST:]}"


def _is_pattern(url: str) -> bool:
    return url.partition("://")[0] in LISTED and glob.has_magic(url)
