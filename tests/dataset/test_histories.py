"""Windows and pairs cut from histories, beside slices of lists; and the columns of Arrow files that hold them."""

import pickle
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bert4rec.dataset.columns import Columns
from bert4rec.dataset.histories import TrainingPairs, TrainingWindows
from tests.checks import one_line
from tests.folders import histories_of, write_state


def windows_of(windows: TrainingWindows) -> list[list[int]]:
    rows = windows.read(np.arange(len(windows)))
    assert windows.lengths(np.arange(len(windows))).tolist() == rows.lengths.tolist()
    assert windows.n_items == rows.lengths.sum()
    return [part.tolist() for part in np.split(rows.items, rows.lengths.cumsum()[:-1])]


def test_windows_end_at_the_end_of_the_training_part_and_step_back(tmp_path: Path) -> None:
    items = [[0, 1, 2, 3, 4, 5, 6], [7, 8], [9], [0, 1, 2, 3]]
    histories = histories_of(tmp_path, items, times=items, n_train=[7, 2, 0, 3])
    windows = TrainingWindows(histories, max_len=4, step=2)
    assert windows_of(windows) == [[0, 1, 2], [1, 2, 3, 4], [3, 4, 5, 6], [7, 8], [0, 1, 2]]
    assert windows_of(TrainingWindows(histories, max_len=3, step=3))[:3] == [[0], [1, 2, 3], [4, 5, 6]]
    rows = windows.read(np.array([4, 1]))
    assert rows.times.tolist() == rows.items.tolist() == [0, 1, 2, 1, 2, 3, 4]
    for step in (0, 4):
        with pytest.raises(ValueError, match=f"step = {step} "):
            TrainingWindows(histories, max_len=3, step=step)


@pytest.mark.parametrize(("max_len", "step"), [(4, 3), (5, 1), (3, 3)])
@pytest.mark.parametrize("target_kinds", [[], [2]])
@pytest.mark.parametrize("per_batch", [1, 7, 1000])
def test_windows_and_pairs_of_many_histories_of_which_many_have_none(
    tmp_path: Path, per_batch: int, target_kinds: list[int], max_len: int, step: int
) -> None:
    draw = np.random.default_rng(per_batch)
    lengths = draw.integers(0, 12, 300) * (np.arange(300) // 40 % 2)
    items = [draw.integers(0, 99, n + 1).tolist() for n in lengths]
    events = [draw.choice([1, 2], n + 1, p=[0.8, 0.2]).tolist() for n in lengths]
    histories = histories_of(
        tmp_path, items, n_train=lengths.tolist(), per_batch=per_batch, events=events, target_kinds=target_kinds
    )
    parts = [(user, user_items[:n]) for user, (user_items, n) in enumerate(zip(items, lengths, strict=True))]
    cut = [
        part[max(0, end - max_len) : end]
        for user, part in parts
        if part and (not target_kinds or 2 in events[user][: len(part)])
        for end in range(len(part) - step * max(0, -(-(len(part) - max_len) // step)), len(part) + 1, step)
    ]
    windows, pairs = TrainingWindows(histories, max_len=max_len, step=step), TrainingPairs(histories)
    assert windows_of(windows) == cut
    numbers = draw.permutation(len(cut))[:50]
    assert windows.read(numbers).items.tolist() == [item for number in numbers for item in cut[number]]
    whole = [(user, item) for user, part in parts for item in part]
    for numbers in (np.arange(len(whole)), np.array([9, 0, 5, 5])):
        users, found, ratings = pairs.read(numbers)
        assert list(zip(users.tolist(), found.tolist(), strict=True)) == [whole[number] for number in numbers]
        assert ratings is None


@pytest.mark.parametrize("target_kinds", [[], [2]])
def test_windows_and_pairs_take_less_than_a_byte_a_user_and_nothing_of_a_pickle(
    tmp_path: Path, target_kinds: list[int]
) -> None:
    n_users, pickles = 50_000, set()
    for n in (10, n_users):
        place = tmp_path / f"{n:06}"
        lists = [[1, 2]] * n
        histories = histories_of(place, lists, per_batch=n, events=lists, target_kinds=target_kinds)
        entries = [TrainingWindows(histories, max_len=3, step=2), TrainingPairs(histories)]
        histories.read(np.array([0]), np.array([0]), np.array([1]))  # opens the files
        tracemalloc.start()
        for read in entries:
            read.read(np.array([0, len(read) - 1]))
        resident = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        pickles.add(len(pickle.dumps(entries)))
    assert resident < 1.5 * n_users
    assert len(pickles) == 1


SCHEMA = pa.schema([("user", pa.int32()), ("times", pa.list_(pa.int64())), ("items", pa.list_(pa.int32()))])


def save(folder: Path, *files: Sequence[pa.RecordBatch]) -> Columns:
    folder.mkdir(exist_ok=True)
    for number, batches in enumerate(files):
        with pa.OSFile(str(folder / f"{number}.arrow"), "wb") as file, pa.ipc.new_stream(file, SCHEMA) as writer:
            for part in batches:
                writer.write_batch(part)
    write_state(folder)
    return Columns(folder)


def batch(first: int, n: int) -> pa.RecordBatch:
    """Rows `first` … with 0 to 6 items."""
    lists = [list(range(row, row + row % 7)) for row in range(first, first + n)]
    return pa.record_batch([pa.array(range(first, first + n)).cast(pa.int32()), lists, lists], schema=SCHEMA)


@pytest.mark.parametrize(("n_files", "rows_per_batch"), [(1, 16_384), (1, 1), (3, 1000)])
def test_rows_are_those_of_the_files(tmp_path: Path, n_files: int, rows_per_batch: int) -> None:
    n, size = 300 if rows_per_batch == 1 else 20_000, rows_per_batch
    parts = [range(n)[n * file // n_files : n * (file + 1) // n_files] for file in range(n_files)]
    files = [[batch(first, min(size, rows.stop - first)) for first in rows[::size]] for rows in parts]
    columns = save(tmp_path, *files)
    assert (len(columns), columns.names) == (n, ["user", "times", "items"])
    assert columns.numbers("user").tolist() == [*range(n)]
    assert columns.lengths("items").tolist() == [row % 7 for row in range(n)]
    rows = np.random.default_rng(1).integers(0, n, 500)
    rows[:4] = [n - 1, 0, n - 1, parts[0].stop - 1]
    for some in (rows, rows[:0]):
        assert columns.lengths_at("items", some).tolist() == (some % 7).tolist()
        expected = [item for row in some for item in range(row + min(1, row % 7), row + row % 7)]
        for name, kind in (("items", np.int32), ("times", np.int64)):
            found = columns.slices(name, some, np.minimum(1, some % 7), some % 7)
            assert (found.dtype, found.tolist()) == (kind, expected)
        long = some[some % 7 > 2]
        assert columns.elements("items", long, np.full_like(long, 2)).tolist() == (long + 2).tolist()


def test_batches_may_be_slices_or_empty(tmp_path: Path) -> None:
    """Arrow writes a slice's offsets from 0."""
    columns = save(tmp_path, [batch(0, 20), batch(0, 50).slice(20, 10), batch(30, 1).slice(0, 0), batch(30, 5)])
    rows = np.array([19, 20, 29, 30, 34])
    found = columns.slices("items", rows, np.zeros_like(rows), rows % 7)
    assert found.tolist() == [item for row in rows for item in range(row, row + row % 7)]
    nothing = save(tmp_path / "nothing", [batch(0, 5).slice(0, 0)])
    assert (len(nothing), nothing.numbers("user").dtype, nothing.lengths("items").tolist()) == (0, np.int32, [])


def test_a_pickle_takes_no_rows_along(tmp_path: Path) -> None:
    columns = save(tmp_path, [batch(0, 3000)])
    assert columns.numbers("user")[7] == 7
    pickled = pickle.dumps(columns)
    assert len(pickled) < 500
    assert pickle.loads(pickled).numbers("user")[7] == 7


@pytest.mark.parametrize("lists", [[[1], None], [[1], [None]]])
def test_missing_values_are_refused(tmp_path: Path, lists: Any) -> None:
    users = pa.array([0, 1], pa.int32())
    columns = save(tmp_path, [pa.record_batch([users, [[1], [1]], pa.array(lists, pa.list_(pa.int32()))], SCHEMA)])
    with one_line(f"{tmp_path}: "):
        columns.lengths("items")


NO_ARROW, NO_STATE = [b"", b"no Arrow file", b"\xff" * 200], [b"{", b"[]", b'{"_data_files": [1]}']


@pytest.mark.parametrize(
    ("name", "content"),
    [*(("0.arrow", content) for content in NO_ARROW), *(("state.json", content) for content in NO_STATE)],
)
def test_files_of_another_kind_are_refused(tmp_path: Path, name: str, content: bytes) -> None:
    columns = save(tmp_path, [batch(0, 5)])
    (tmp_path / name).write_bytes(content)
    with one_line("", name):
        columns.numbers("user")
