"""Tables that carry their types, Parquet and Arrow IPC (Feather), as frames of bounded size, in the order of the file.

Of a Parquet file some pages are held at a time, of an Arrow file one record batch, as large as its writer has made it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from bert4rec.config.recognition import TYPED_NAMES, Format
from bert4rec.prepare.files.bad_rows import line_numbers
from bert4rec.runtime.errors import DataError

ROWS_PER_FRAME = 1 << 20

Batch: TypeAlias = tuple[Any, float, float]  # a record batch, which share of the file was read before it, and with it


def typed_columns(path: Path, kind: Format) -> dict[str, bool]:
    """Return the columns of the file at `path`, and of each whether it can be a field: no list or record. `DataError`
    if damaged.
    """
    with _readable(path, kind):
        schema = pq.read_schema(path) if kind == "parquet" else _open(path, kind, None)[1].schema
        return {field.name: not pa.types.is_nested(field.type) for field in schema}


def typed_rows(
    path: Path, kind: Format, columns: Mapping[str, str], size: int = ROWS_PER_FRAME
) -> Iterator[tuple[pl.DataFrame, int]]:
    """Yield frames of at most `size` rows, and about how many bytes of the file have been read with each.

    They have `LINE`, the number of the row from 1, and the values of `columns`: new name → name in the file. Raises
    `DataError` for a damaged file.
    """
    seen, n_bytes = 0, path.stat().st_size
    names = [*{*columns.values()}]
    with _readable(path, kind):
        batches = _parquet_batches(path, names, size) if kind == "parquet" else _ipc_batches(path, kind, names)
        for whole, before, after in batches:
            for first in range(0, whole.num_rows, size):
                batch = whole.slice(first, size)
                batch.validate(full=True)  # these formats have no checksums, and Polars trusts what it is given
                frame = _frame(batch, columns).select(line_numbers(seen + 1), pl.all())
                seen += len(frame)
                share = before + (after - before) * (first + len(frame)) / whole.num_rows
                yield frame, int(n_bytes * share)


def _frame(batch: Any, columns: Mapping[str, str]) -> pl.DataFrame:
    """Return the `columns` by their new names; of two columns of the same name the first."""
    places = [batch.schema.names.index(name) for name in columns.values()]
    return pl.DataFrame(pl.from_arrow(pa.RecordBatch.from_arrays([batch.column(i) for i in places], [*columns])))


def _parquet_batches(path: Path, names: Sequence[str], size: int) -> Iterator[Batch]:
    file = pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20)
    seen, n_rows = 0, max(1, file.metadata.num_rows)
    for batch in file.iter_batches(batch_size=size, columns=names):
        yield batch, seen / n_rows, (seen + batch.num_rows) / n_rows
        seen += batch.num_rows


def _ipc_batches(path: Path, kind: Format, names: Sequence[str]) -> Iterator[Batch]:
    file, reader = _open(path, kind, names)
    if kind == "arrow stream":
        before = 0.0
        for batch in reader:
            after = file.tell() / file.size()
            yield batch, before, after
            before = after
        return
    n = reader.num_record_batches
    for index in range(n):
        yield reader.get_batch(index), index / n, (index + 1) / n


def _open(path: Path, kind: Format, names: Sequence[str] | None) -> tuple[Any, Any]:
    """Return the mapped file and its reader, of the columns `names` alone; None = all."""
    file = pa.memory_map(str(path))
    reader = pa.ipc.open_stream if kind == "arrow stream" else pa.ipc.open_file
    if names is None:
        return file, reader(file)
    present = reader(file).schema.names
    file.seek(0)
    return file, reader(file, options=pa.ipc.IpcReadOptions(included_fields=[present.index(name) for name in names]))


@contextmanager
def _readable(path: Path, kind: Format) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not {TYPED_NAMES[kind]}, or damaged: {str(error).splitlines()[0]}") from None
