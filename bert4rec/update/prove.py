"""Search every file of a models folder for ids of users or items, and count what was looked at.

Text is searched everywhere: as values in tables and arrays, and in all other files as bytes with boundaries, also as
JSON and HTML write it. Whole numbers mean many things. They are searched where such ids are: in their columns and keys,
and after the word "user" or "item".
"""

import csv
import html
import io
import json
import mmap
import os
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from markupsafe import escape

from bert4rec.checkpoint.models_folder import DATASET
from bert4rec.checkpoint.run_folder import RUN_LOCK
from bert4rec.dataset.format import ITEMS, USERS
from bert4rec.dataset.id_tables import IdTable, to_numpy
from bert4rec.dataset.reader import read_metadata
from bert4rec.runtime.arrays import Array, Int64s
from bert4rec.runtime.errors import DataError, format_bytes, in_one_line, pluralize
from bert4rec.serving.events import Events
from bert4rec.update.finish import TAILS

WORD = re.compile(rb"[\w\-\x80-\xff]")  # a byte of this kind beside a text makes it a part of another id
PARTS_OF_TEXT = 8  # bytes before an id that are looked at: the longest number that tells its length
SHORTEST_ALONE = 4  # bytes: a shorter id is among numbers by chance, and counts there with its length or quotes alone
NUMBER_OF = {USERS: "user", ITEMS: "item"}  # the column of their numbers
JSON_KEYS = {USERS: ("user", "original_user"), ITEMS: ("item", "original_item", "id")}  # of JSON
ROWS = {USERS: ("user",), ITEMS: ("item", "items")}  # columns with a number for each row of the log
BYTES_ALONE = "other files"  # kind of a file that is searched as bytes, such as checkpoints

Content: TypeAlias = bytes | mmap.mmap
Found: TypeAlias = tuple[bool, int]  # whether a file has an id, and how many values were looked at; 0 for bytes


class Looked(NamedTuple):
    """Count what a search has looked at: by kind, the number of `files`, of their `values` and `sizes` in bytes.

    `found`: the files that have an id, or rows of one of the `n_forgotten` users or items without an id.
    """

    files: Counter[str]
    values: Counter[str]
    sizes: Counter[str]
    found: list[Path]
    n_forgotten: int


def search(models: Path, table: str, ids: Sequence[int | str]) -> Looked:
    """Search a models folder for users or items, as `table` says, by their `ids`, and for rows of those without an id.

    Rows are known by their numbers. Raises `DataError` for a file that cannot be read.
    """
    wanted = _Wanted(table, ids, _forgotten(models / DATASET, table))
    looked = Looked(Counter(), Counter(), Counter(), [], len(wanted.forgotten))
    read: dict[tuple[int, int], bool] = {}  # a file with several names is read once
    for path in _files(models):
        stat, name = path.stat(), path.relative_to(models)
        inode = stat.st_dev, stat.st_ino
        if inode not in read:
            kind, look = KINDS_OF_FILES.get(path.suffix, (BYTES_ALONE, _in_bytes))
            wanted.knows_numbers = name.parts[0] in (DATASET, TAILS)  # whose users are numbered so
            try:
                read[inode], n_values = look(path, wanted)
            except (OSError, ValueError, pa.ArrowException) as error:
                raise DataError(f"{path}: cannot be read: {in_one_line(error)}") from None
            looked.files[kind] += 1
            looked.values[kind] += n_values
            looked.sizes[kind] += stat.st_size
        if read[inode] or wanted.is_in_text(os.fsencode(name)):
            looked.found.append(path)
    return looked


def table_of(looked: Looked) -> str:
    """Return what was looked at, a line for each kind of files."""
    rows = [
        (kind, pluralize(n, "file"), format_bytes(looked.sizes[kind]), f"{looked.values[kind]:,} values")
        for kind, n in sorted(looked.files.items())
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        f"  {kind:<{widths[0]}}  {files:>{widths[1]}}  {size:>{widths[2]}}{f'  {values}' * bool(looked.values[kind])}"
        for kind, files, size, values in rows
    )


def _forgotten(dataset: Path, table: str) -> Int64s:
    """Return the numbers of the users or items without an id."""
    number = NUMBER_OF[table]
    parts = IdTable(dataset, read_metadata(dataset), table).parts([number, "original"])
    return np.concatenate([to_numpy(part.filter(part["original"].is_null())[number]) for part in parts])


def _files(models: Path) -> Iterator[Path]:
    """Yield all files in order, but links, and the lock, which has the number of this process."""
    paths = (Path(folder, name) for folder, _, names in os.walk(models) for name in names)
    yield from (path for path in sorted(paths) if not path.is_symlink() and path != models / RUN_LOCK)


class _Wanted:
    """The `ids` to look for, and the numbers of `forgotten` users or items, whose rows must be gone.

    `knows_numbers`: whether the file that is looked at numbers users and items as the dataset does.
    """

    def __init__(self, table: str, ids: Sequence[int | str], forgotten: Int64s) -> None:
        self.table, self._name = table, NUMBER_OF[table]
        self.texts, self.are_numbers, self.forgotten = [*map(str, ids)], isinstance(ids[0], int), forgotten
        self.knows_numbers = False
        forms = [form.encode() for text in self.texts for form in _forms(text)]
        self._forms = [*dict.fromkeys(forms)]
        number = f"(?:{'|'.join(self.texts)})" if self.are_numbers else ""
        name, keys = self._name, "|".join(JSON_KEYS[table])
        self._numbers = re.compile(rf'(?i)(?:\b{name} |"(?:{keys})": *"?){number}(?![\w.])'.encode())

    def is_in_text(self, content: Content, *, is_among_numbers: bool = False) -> bool:
        """Return whether the bytes have an id, as text; `is_among_numbers`: most of them are no text."""
        if self.are_numbers:
            return not is_among_numbers and self._numbers.search(content) is not None
        return any(_has(content, form, is_among_numbers=is_among_numbers) for form in self._forms)

    def is_in_column(self, path: Path, name: str, column: pa.Array) -> bool:
        """Return whether a column of a file has an id, or the number of a forgotten user or item."""
        if pa.types.is_integer(column.type):
            has_numbers = self.knows_numbers and name in ROWS[self.table] and path.parent.name not in (USERS, ITEMS)
            is_id = name == f"original_{self._name}" or (path.parent.name, name) == (self.table, "original")
            is_id |= name == self._name and path.name.startswith("lists-")
            return (has_numbers and self.is_forgotten(to_numpy(column))) or (is_id and self._is_any(column))
        if not pa.types.is_string(column.type) and not pa.types.is_large_string(column.type):
            return False
        distinct = column.unique()
        return self._is_any(distinct) or (
            not self.are_numbers and any(self._is_within(distinct, one) for one in self.texts)
        )

    def is_in_array(self, name: str, values: Array) -> bool:
        """Return whether an array has an id, or, named as the table, the number of a forgotten user or item."""
        if values.dtype.kind in "US":
            return bool(np.isin(values.astype(str), self.texts).any())
        return name == self.table and self.knows_numbers and self.is_forgotten(values)

    def is_forgotten(self, numbers: Array) -> bool:
        """Return whether any of the `numbers` is one of a forgotten user or item."""
        return bool(np.isin(numbers, self.forgotten).any())

    def _is_any(self, column: pa.Array) -> bool:
        texts = pa.array(self.texts, pa.large_string())
        return bool(pc.any(pc.is_in(column.cast(pa.large_string()), value_set=texts)).as_py())

    def _is_within(self, column: pa.Array, text: str) -> bool:
        """Return whether a text of the column has an id among other words."""
        some = column.filter(pc.match_substring(column, text)).to_pylist()
        return any(_has(value.encode(), text.encode(), is_among_numbers=False) for value in some)


def _forms(text: str) -> Iterable[str]:
    """Return how an id may be written: as it is, in JSON, in CSV, in HTML."""
    return (
        text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1], text.replace('"', '""'),
        html.escape(text), html.escape(text, quote=False), str(escape(text)),
    )  # fmt: skip


def _has(content: Content, form: bytes, *, is_among_numbers: bool) -> bool:
    """Return whether the bytes have the text `form`, and not as a part of a longer word."""
    place, n = content.find(form), len(form)
    while place >= 0:
        before, after = content[max(0, place - PARTS_OF_TEXT) : place], content[place + n : place + n + 1]
        is_whole = not WORD.match(before[-1:]) and not WORD.match(after)
        if is_among_numbers:  # a pickle writes the length of a text in 4 bytes or one before it, and no end
            is_counted = before.endswith(struct.pack("<I", n)) or (
                n >= SHORTEST_ALONE and before.endswith(bytes([n % 256]))
            )
            is_quoted = before[-1:] == after and after in (b'"', b"'")
            is_whole = is_counted or is_quoted or (is_whole and n >= SHORTEST_ALONE)
        if is_whole:
            return True
        place = content.find(form, place + 1)
    return False


def _in_parquet(path: Path, wanted: _Wanted) -> Found:
    with pq.ParquetFile(path) as file:
        return _in_tables(path, (file.read_row_group(group) for group in range(file.num_row_groups)), wanted)


def _in_arrow(path: Path, wanted: _Wanted) -> Found:
    with pa.memory_map(str(path)) as mapped, pa.ipc.open_stream(mapped) as batches:
        return _in_tables(path, (pa.Table.from_batches([one]) for one in batches), wanted)


def _in_tables(path: Path, tables: Iterable[pa.Table], wanted: _Wanted) -> Found:
    has_id, n = False, 0
    for table in tables:
        columns = [(name, _elements(one)) for name in table.column_names for one in table[name].chunks]
        has_id |= any(wanted.is_in_column(path, name, one) for name, one in columns)
        n += sum(len(one) for _, one in columns)
    return has_id, n


def _elements(column: pa.Array) -> pa.Array:
    """Return a column, or the elements of all its lists."""
    while pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        column = column.flatten()
    return column


def _in_arrays(path: Path, wanted: _Wanted) -> Found:
    loaded = np.load(path, mmap_mode="r")
    arrays = {"": loaded} if isinstance(loaded, np.ndarray) else {name: loaded[name] for name in loaded.files}
    has_id = any(wanted.is_in_array(name, values) for name, values in arrays.items())
    return has_id, sum(values.size for values in arrays.values())


def _in_safetensors(path: Path, wanted: _Wanted) -> Found:
    """Look at the header, as all else are numbers."""
    with path.open("rb") as file:
        (n,) = struct.unpack("<Q", file.read(8))
        return wanted.is_in_text(file.read(n)), 0


def _in_text(path: Path, wanted: _Wanted) -> Found:
    content = path.read_bytes()
    has_id = wanted.is_in_text(content)
    if wanted.are_numbers and path.suffix == ".csv":
        rows = csv.DictReader(io.StringIO(content.decode()))
        has_id |= any(row.get(NUMBER_OF[wanted.table]) in wanted.texts for row in rows)
    elif wanted.are_numbers and path.name.startswith("lists-") and wanted.table == ITEMS:
        lists = (json.loads(line).get(ITEMS, ()) for line in content.splitlines())
        has_id |= any(str(item) in wanted.texts for items in lists for item in items)
    return has_id, 0


def _in_events(path: Path, wanted: _Wanted) -> Found:
    """Look at the users or items of a server's events; SQLite overwrites what it removes."""
    events = Events(path)
    ids = events.ids("user_id" if wanted.table == USERS else "item_id")
    events.close()
    return not {*ids}.isdisjoint(wanted.texts), len(ids)


def _in_bytes(path: Path, wanted: _Wanted) -> Found:
    if not path.stat().st_size:
        return False, 0
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return wanted.is_in_text(content, is_among_numbers=True), 0


KINDS_OF_FILES: Mapping[str, tuple[str, Callable[[Path, _Wanted], Found]]] = {
    ".parquet": ("Parquet", _in_parquet),
    ".arrow": ("Arrow", _in_arrow),
    ".npy": ("NumPy", _in_arrays),
    ".npz": ("NumPy", _in_arrays),
    ".safetensors": ("safetensors, headers", _in_safetensors),
    ".db": ("SQLite", _in_events),
    ".json": ("JSON", _in_text),
    ".jsonl": ("JSON", _in_text),
    ".html": ("HTML", _in_text),
    **dict.fromkeys((".md", ".txt", ".csv", ".toml"), ("text", _in_text)),
}
