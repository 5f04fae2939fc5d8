"""Reads the Parquet tables of a dataset folder a part at a time, and checks the original ids in them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from bert4rec.dataset.check.metadata import REMAKE
from bert4rec.dataset.check.rows_in_parts import Ints
from bert4rec.runtime.errors import DataError, in_one_line

ROWS_AT_ONCE = 1 << 16
KEYS_AT_ONCE = 1 << 24  # original ids compared in one pass, 8 bytes each; a larger table takes more passes
BASE = 0x9E3779B97F4A7C15  # of the polynomial of the letters: any large odd number

Keys: TypeAlias = NDArray[np.uint64]


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """What Arrow finds wrong with the file at `path` becomes a `DataError` of one line."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: cannot be read ({in_one_line(error)}); {REMAKE}") from None


class TableReader:
    """Integer columns of a table, in the order of its rows.

    Raises `DataError` at once for a file without these columns or with another number of rows, and while reading for
    nulls.
    """

    def __init__(self, path: Path, names: Sequence[str], n_rows: int) -> None:
        self._path, self._names = path, names
        with readable(path), pq.ParquetFile(path) as file:
            schema, found = file.schema_arrow, file.metadata.num_rows
        if found != n_rows:
            raise DataError(f"{path}: has {found} rows, metadata.json says {n_rows}; {REMAKE}")
        for name in names:
            if schema.names.count(name) != 1 or not pa.types.is_integer(schema.field(name).type):
                raise DataError(f"{path}: must have a column {name} of integers; {REMAKE}")
        self._batches = _batches(path, names)
        self._held = {name: np.zeros(0, np.int64) for name in names}

    def take(self, n: int) -> dict[str, Ints]:
        """The next `n` rows, name → [n] int64."""
        parts, n_held = [self._held], len(self._held[self._names[0]])
        while n_held < n and (batch := next(self._batches, None)) is not None:
            parts.append({name: batch[name].to_numpy().astype(np.int64) for name in self._names})
            n_held += len(batch)
        joined = {name: np.concatenate([part[name] for part in parts]) for name in self._names}
        self._held = {name: values[n:] for name, values in joined.items()}
        return {name: values[:n] for name, values in joined.items()}


def check_originals(path: Path, n_rows: int) -> None:
    """Raises `DataError` where two rows of the table at `path` have the same `original` id, or one has none."""
    with readable(path), pq.ParquetFile(path) as file:
        if file.schema_arrow.names.count("original") != 1:
            raise DataError(f"{path}: must have a column original; {REMAKE}")
    passes = 1 + n_rows // KEYS_AT_ONCE
    for number in range(passes):
        parts = [
            keys[keys % passes == number] for keys in (_keys(part["original"]) for part in _batches(path, ["original"]))
        ]
        keys = np.sort(np.concatenate([np.zeros(0, np.uint64), *parts]))
        twice = np.unique(keys[1:][keys[1:] == keys[:-1]])
        if len(twice):
            _compare(path, twice)


def _compare(path: Path, twice: Keys) -> None:
    """Compare the originals whose keys are `twice` there: different ones may have the same key."""
    seen: dict[Any, int] = {}
    first = 0
    for batch in _batches(path, ["original"]):
        for row in np.flatnonzero(np.isin(_keys(batch["original"]), twice)).tolist():
            original = batch["original"][row].as_py()
            if original in seen:
                raise DataError(
                    f"{path}: row {first + row}: original {original!r} is that of row {seen[original]} too; {REMAKE}"
                )
            seen[original] = first + row
        first += len(batch)


def _batches(path: Path, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    first = 0
    with readable(path), pq.ParquetFile(path) as file:
        for batch in file.iter_batches(ROWS_AT_ONCE, columns=list(names)):
            for name in names:
                if batch[name].null_count:
                    row = first + batch[name].is_null().index(True).as_py()
                    raise DataError(f"{path}: row {row}: {name} is null; {REMAKE}")
            yield batch
            first += len(batch)


def _keys(originals: pa.Array) -> Keys:
    """A number for each original, the same for the same ones [N]: itself, or a polynomial of the letters of a text."""
    if pa.types.is_integer(originals.type):
        return originals.to_numpy().astype(np.uint64)
    texts = originals.cast(pa.large_string())
    _, ends, letters = texts.buffers()
    bounds = np.frombuffer(ends, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    lengths = np.diff(bounds)
    values = np.frombuffer(letters or b"", np.uint8)[bounds[0] : bounds[-1]].astype(np.uint64) + np.uint64(1)
    powers = np.cumprod(np.full(lengths.max(initial=0), BASE, np.uint64))  # modulo 2^64
    values *= powers[np.arange(len(values)) - np.repeat(bounds[:-1] - bounds[0], lengths)]
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(values)])
    return sums[bounds[1:] - bounds[0]] - sums[bounds[:-1] - bounds[0]]
