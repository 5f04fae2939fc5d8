"""Rows read straight from Arrow's files, beside what Arrow itself reads; and files that hold no such rows."""

import pickle
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bert4rec.dataset import columns
from bert4rec.dataset.columns import Columns
from bert4rec.runtime.errors import DataError

SCHEMA = pa.schema([("user", pa.int32()), ("times", pa.list_(pa.int64())), ("items", pa.list_(pa.int32()))])


def write(path: Path, batches: Sequence[pa.RecordBatch], options: Any = None) -> Path:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return path


def batch(first: int, n: int) -> pa.RecordBatch:
    """Rows `first` … with 0 to 6 items."""
    lists = [list(range(row, row + row % 7)) for row in range(first, first + n)]
    return pa.record_batch([pa.array(range(first, first + n)).cast(pa.int32()), lists, lists], schema=SCHEMA)


def items(lists: Any) -> pa.RecordBatch:
    return pa.record_batch({"items": lists})


def read(table: Columns, rows: list[int], name: str = "items") -> list[list[int]]:
    values, lengths = table.lists(name, np.array(rows))
    return [part.tolist() for part in np.split(values, lengths.cumsum()[:-1])]


@pytest.fixture(params=["mapped", "large"])
def size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Files that are mapped, and the same ones taken for large."""
    if request.param == "large":
        monkeypatch.setattr(columns, "MAPPED_BYTES", 0)
    return str(request.param)


@pytest.mark.parametrize("rows_per_batch", [1, 1000, 16_384])
@pytest.mark.parametrize("n_files", [1, 3])
def test_rows_are_those_of_the_files(tmp_path: Path, size: str, rows_per_batch: int, n_files: int) -> None:
    n = 300 if rows_per_batch == 1 else 20_000
    starts = [range(n)[n * file // n_files : n * (file + 1) // n_files] for file in range(n_files)]
    paths = [
        write(
            tmp_path / f"{number}.arrow",
            [batch(first, min(rows_per_batch, rows.stop - first)) for first in rows[::rows_per_batch]],
        )
        for number, rows in enumerate(starts)
    ]
    table = Columns(paths)
    assert (len(table), table.names) == (n, ["items", "times", "user"])
    rows = np.random.default_rng(1).integers(0, n, 500)
    rows[:4] = [n - 1, 0, n - 1, starts[0].stop - 1]
    assert read(table, rows.tolist()) == [list(range(row, row + row % 7)) for row in rows]
    assert table.numbers("user", rows).tolist() == rows.tolist()
    assert table.lengths("items", rows).tolist() == (rows % 7).tolist()
    times, lengths = table.long_lists("times", rows)
    assert (times.dtype, times.tolist()) == (np.int64, table.lists("items", rows)[0].tolist())
    assert lengths.tolist() == (rows % 7).tolist()
    assert read(table, list(range(n - 3, n))) == [list(range(row, row + row % 7)) for row in range(n - 3, n)]
    with pytest.raises(IndexError):
        table.lists("items", np.array([n]))


@pytest.mark.parametrize("n_files", [1, 2])
def test_elements_of_lists_are_found_by_their_number(tmp_path: Path, size: str, n_files: int) -> None:
    """Also where lists are empty, and where a record batch does not begin with the first elements of its arrays."""
    batches = [batch(0, 50), batch(50, 30).slice(3, 20), batch(80, 1)]
    files = [batches] if n_files == 1 else [batches[:2], batches[2:]]
    table = Columns([write(tmp_path / f"{number}.arrow", some) for number, some in enumerate(files)])
    rows = [*range(50), *range(53, 73), 80]
    whole = [(row, row + place) for row in rows for place in range(row % 7)]
    assert table.n_elements("items") == len(whole)
    numbers = np.arange(len(whole))
    assert table.elements("items", numbers).tolist() == [item for _, item in whole]
    chosen = np.array([0, 0, 17, 18, len(whole) - 1])
    found = table.numbers("user", table.rows_of("items", chosen), maps=True)
    assert found.tolist() == [whole[number][0] for number in chosen]
    assert table.elements("items", chosen[::-1]).tolist() == [whole[number][1] for number in chosen[::-1]]


def test_no_rows_are_read_from_nothing_asked(tmp_path: Path, size: str) -> None:
    values, lengths = Columns([write(tmp_path / "a", [batch(0, 10)])]).lists("items", np.zeros(0, np.int64))
    assert (len(values), len(lengths)) == (0, 0)


def test_slices_and_lists_that_begin_later(tmp_path: Path, size: str) -> None:
    """Arrow writes a slice's offsets from 0; other writers need not."""
    sliced = batch(0, 50).slice(20, 10)
    path = write(tmp_path / "a", [batch(0, 20), sliced, batch(30, 1).slice(0, 0), batch(30, 5)])
    assert read(Columns([path]), [19, 20, 29, 30, 34]) == [
        list(range(row, row + row % 7)) for row in (19, 20, 29, 30, 34)
    ]
    offsets = pa.array([0, 4, 6], pa.int32())
    whole = write(tmp_path / "b", [items(pa.ListArray.from_arrays(offsets, pa.array([9, 8, 7, 6, 5, 4], pa.int32())))])
    content = whole.read_bytes()
    assert content.count(offsets.buffers()[1].to_pybytes()) == 1
    later = pa.array([3, 4, 6], pa.int32()).buffers()[1].to_pybytes()
    whole.write_bytes(content.replace(offsets.buffers()[1].to_pybytes(), later))
    assert read(Columns([whole]), [1, 0]) == [[5, 4], [6]]


def test_a_table_without_rows(tmp_path: Path, size: str) -> None:
    table = Columns([write(tmp_path / "a", [batch(0, 5).slice(0, 0)])])
    assert (len(table), table.names) == (0, [])


def test_a_pickled_table_takes_no_rows_along(tmp_path: Path, size: str) -> None:
    """That is how it comes to the loader processes."""
    sizes = []
    for n in (20_000, 200_000):
        offsets, values = np.arange(n + 1, dtype=np.int32) * 5, np.arange(5 * n, dtype=np.int32)
        lists = pa.ListArray.from_arrays(offsets, values)
        parts = [items(lists.slice(first, 16_384)) for first in range(0, n, 16_384)]
        table = Columns([write(tmp_path / str(n), parts)])
        table.lists("items", np.arange(n))
        pickled = pickle.dumps(table)
        assert read(pickle.loads(pickled), [n - 1]) == [list(range(5 * n - 5, 5 * n))]
        sizes.append(len(pickled))
    assert sizes[1] - sizes[0] < 100 * 12  # 13 parts in place of 2


def test_only_small_files_stay_mapped(tmp_path: Path, size: str) -> None:
    table = Columns([write(tmp_path / "file.arrow", [batch(0, 1000)])])
    read(table, [1, 2, 999])
    mapped = re.findall(rf"{tmp_path}/file.arrow$", Path("/proc/self/maps").read_text(), re.MULTILINE)
    assert len(mapped) == (1 if size == "mapped" else 0)


@pytest.mark.parametrize(
    ("lists", "options", "message"),
    [
        (pa.array([[1], None], pa.list_(pa.int32())), None, r"/a: "),
        (pa.array([[1, None]], pa.list_(pa.int32())), None, r"/a: "),
        (
            pa.array([[1] * 5000], pa.list_(pa.int32())), pa.ipc.IpcWriteOptions(compression="zstd"),
            r"/a: ",
        ),
        (pa.array([[1]], pa.large_list(pa.int32())), None, "items of int32"),
        (pa.array([[1]], pa.list_(pa.int64())), None, "items of int32"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_one_line(tmp_path: Path, lists: Any, options: Any, message: str) -> None:
    path = write(tmp_path / "a", [items(lists)], options)
    with pytest.raises(DataError, match=message):
        read(Columns([path]), [0])


def test_numbers_of_another_width_are_not_mistaken(tmp_path: Path) -> None:
    table = Columns([write(tmp_path / "a", [batch(0, 10)])])
    with pytest.raises(DataError, match="items of int64"):
        table.long_lists("items", np.array([1]))


@pytest.mark.parametrize("content", [b"", b"no arrow at all, but text"])
def test_another_file_is_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(DataError, match=r"/a: "):
        Columns([tmp_path / "a"])


@pytest.mark.parametrize("later", [[0, 4, 600], [-1, 4, 6], [0, 4, 3]])
def test_damaged_offsets_are_one_line(tmp_path: Path, size: str, later: list[int]) -> None:
    offsets = pa.array([0, 4, 6], pa.int32())
    path = write(tmp_path / "a", [items(pa.ListArray.from_arrays(offsets, pa.array([9, 8, 7, 6, 5, 4], pa.int32())))])
    damaged = path.read_bytes().replace(offsets.buffers()[1].to_pybytes(), np.array(later, "<i4").tobytes())
    path.write_bytes(damaged)
    with pytest.raises(DataError, match=r"row [01]: column items"):
        read(Columns([path]), [1, 0])


def test_a_large_file_that_was_cut_short_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "MAPPED_BYTES", 0)
    path = write(tmp_path / "a", [batch(0, 1000)])
    table = Columns([path])
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(DataError, match=re.escape(str(tmp_path))):
        read(table, [999])
