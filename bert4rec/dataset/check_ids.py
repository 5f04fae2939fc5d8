"""Check that the ids of users and items are sorted and unique, and that their files say where each id is.

The ids of forgotten users and items are null, and they have no interactions.
"""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bert4rec.dataset.format import ROWS_PER_GROUP, one_array
from bert4rec.dataset.segments import Segments
from bert4rec.runtime.arrays import Array
from bert4rec.runtime.errors import DataError, in_one_line

REMAKE = "make the dataset again with `bert4rec prepare`"
KEYS_AT_ONCE = 1 << 24  # hashes of original ids compared in one pass, 8 bytes each; a larger table takes more passes
LONGEST_BOUND = 4096  # bytes of an id that Parquet notes as the first or last one of a row group


def parquet_files(place: Path) -> list[Path]:
    """Return the files of a table, in the order of the rows: itself, or all in its folder."""
    return [place] if place.is_file() else sorted(place.glob("*.parquet"))


class _Group(NamedTuple):
    """The original `ids` of a row group but for null ones, and the `rows` that have them.

    Also its file, its `first` row, its `n_rows`, and the first and last id as the file says them.
    """

    path: Path
    first: int
    n_rows: int
    ids: pa.Array
    rows: Array
    bounds: tuple[Any, Any] | None


def check_ids(folder: Path, segments: Segments, *, n_forgotten: int) -> None:
    """Raise `DataError` unless the ids of each segment ascend, all ids differ, and the files tell where they are.

    `n_forgotten` ids are null.
    """
    types: list[pa.DataType] = []  # of the ids of each segment
    last, n_null = None, 0
    for path, first, n_rows, ids, rows, bounds in _groups(folder):
        if first in segments.starts and (first or not types):
            last, types = None, [*types, ids.type]
        if ids.type != types[-1] or any(first < start < first + n_rows for start in segments.starts):
            raise DataError(f"{path}: row {first}: its row group has ids of two segments; {REMAKE}")
        n_null += n_rows - len(ids)
        if not len(ids):
            continue
        _check_order(folder, rows, ids, last)
        last = ids[-1].as_py()
        ends = ids[0].as_py(), last
        if bounds != ends and not (bounds is None and max(len(str(end).encode()) for end in ends) > LONGEST_BOUND):
            raise DataError(f"{path}: row {first}: its row group is noted with the ids {bounds}, not {ends}; {REMAKE}")
    if n_null != n_forgotten:
        raise DataError(
            f"{folder}: {n_null:,} ids are null, must be {n_forgotten:,}, those of forgotten ones; {REMAKE}"
        )
    if pa.large_string() in types and types[-1] != pa.large_string():
        raise DataError(f"{folder}: has text ids before whole numbers; {REMAKE}")
    if len(types) > 1:
        _check_unique(folder, len(segments))


def _groups(folder: Path) -> Iterator[_Group]:
    """Yield the row groups of all files. Raises `DataError` for a wrong file or type, and a null id that is counted."""
    first = 0
    for path in parquet_files(folder):
        if path.name != f"part-{first:010d}.parquet":
            raise DataError(f"{path}: must be named by its first row, part-{first:010d}.parquet; {REMAKE}")
        try:
            with pq.ParquetFile(path) as file:
                names = [file.metadata.schema.column(i).path for i in range(len(file.metadata.schema))]
                if not {"original", "count"} <= {*names}:
                    raise DataError(f"{path}: has no column original or count; {REMAKE}")
                for number in range(file.num_row_groups):
                    about = file.metadata.row_group(number)
                    if not 0 < about.num_rows <= ROWS_PER_GROUP:
                        raise DataError(f"{path}: has row groups of more than {ROWS_PER_GROUP:,} rows; {REMAKE}")
                    ids, rows = _ids(folder, first, file.read_row_group(number, columns=["original", "count"]))
                    noted = about.column(names.index("original")).statistics
                    bounds = (noted.min, noted.max) if noted is not None and noted.has_min_max else None
                    yield _Group(path, first, about.num_rows, ids, rows, bounds)
                    first += about.num_rows
        except (pa.ArrowException, OSError, ValueError) as error:
            raise DataError(f"{path}: cannot be read ({in_one_line(error)}); {REMAKE}") from None


def _ids(folder: Path, first: int, table: pa.Table) -> tuple[pa.Array, Array]:
    """Return the ids of a row group, from row `first` on, as whole numbers or text of 64 bits, and their rows."""
    column, is_valid = table["original"], pc.is_valid(table["original"])
    if (place := pc.index(pc.and_(pc.invert(is_valid), pc.not_equal(table["count"], 0)), True).as_py()) >= 0:
        problem = f"original is null, and count is {table['count'][place].as_py()}"
        raise DataError(f"{folder}: row {first + place}: {problem}, must be 0, as of a forgotten one; {REMAKE}")
    is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    if not is_text and not pa.types.is_integer(column.type):
        raise DataError(f"{folder}: original has the type {column.type}, must be text or whole numbers; {REMAKE}")
    column.validate(full=True)  # else offsets outside the values would be followed
    rows = first + np.flatnonzero(np.asarray(is_valid))
    return one_array(column.drop_null().cast(pa.large_string() if is_text else pa.int64())), rows


def _check_order(folder: Path, rows: Array, ids: pa.Array, last: Any) -> None:
    """Raise `DataError` unless the ids of these `rows` ascend, and come after the `last` one; None for none."""
    place = pc.index(pc.less(ids[:-1], ids[1:]), False).as_py() + 1
    if last is not None and ids[0].as_py() <= last:
        place = 0
    elif not place:
        return
    before = last if place == 0 else ids[place - 1].as_py()
    raise DataError(
        f"{folder}: row {rows[place]}: original {ids[place].as_py()!r} must come after {before!r}; {REMAKE}"
    )


def _check_unique(folder: Path, n_rows: int) -> None:
    """Raise `DataError` if two rows have the same id, as text."""

    def originals() -> Iterator[tuple[Array, list[str]]]:
        return ((group.rows, group.ids.cast(pa.large_string()).to_pylist()) for group in _groups(folder))

    n_passes = 1 + n_rows // KEYS_AT_ONCE
    for number in range(n_passes):
        keys = (np.fromiter(map(hash, ids), np.int64) for _, ids in originals())
        ordered = np.sort(np.concatenate([some[some % n_passes == number] for some in keys]))
        repeated = {*ordered[1:][ordered[1:] == ordered[:-1]].tolist()}
        firsts: dict[str, int] = {}  # different ids may have the same hash
        pairs = chain.from_iterable(zip(rows.tolist(), ids, strict=True) for rows, ids in originals())
        for row, original in pairs if repeated else ():
            if hash(original) in repeated and (other := firsts.setdefault(original, row)) != row:
                raise DataError(f"{folder}: row {row}: original {original!r} is also that of row {other}; {REMAKE}")
