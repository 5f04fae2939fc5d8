"""Parquet and Arrow files: which rows and columns are read at a time; damaged ones are one line."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import preprocessing
from bert4rec.prepare.files import arrow_files
from bert4rec.runtime.errors import DataError
from tests.prepare.files.log import COLUMNS, content, in_batches, opened, stream

ROOT = Path(preprocessing.__file__).parent


def test_an_arrow_file_is_read_a_record_batch_at_a_time_and_only_the_columns_that_are_named(tmp_path: Path) -> None:
    table = pa.table({"a": pa.array(range(10)), "b": pa.array([[i] for i in range(10)]), "c": pa.array(range(10, 20))})
    with pa.ipc.new_file(tmp_path / "t.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=4)
    found = list(arrow_files.typed_rows(tmp_path / "t.arrow", "arrow file", {"x": "c", "y": "a"}, size=3))
    assert [(rows["x"].to_list(), rows["y"].to_list(), rows.to_series(0).to_list()) for rows, _ in found] == [
        ([10, 11, 12], [0, 1, 2], [1, 2, 3]), ([13], [3], [4]), ([14, 15, 16], [4, 5, 6], [5, 6, 7]),
        ([17], [7], [8]), ([18, 19], [8, 9], [9, 10]),
    ]  # fmt: skip
    size = (tmp_path / "t.arrow").stat().st_size
    assert [done for _, done in found] == [int(size * share) for share in (0.25, 1 / 3, 7 / 12, 2 / 3, 1.0)]
    assert arrow_files.typed_columns(tmp_path / "t.arrow", "arrow file") == {"a": True, "b": False, "c": True}


def test_categories_of_an_arrow_file_are_what_they_stand_for(tmp_path: Path) -> None:
    frame = pd.DataFrame({"user": pd.Categorical(["b", "a"]), "item": pd.Categorical([5, 4])})
    frame.to_feather(tmp_path / "t.feather")
    assert content(opened("table", path=str(tmp_path))) == {"user": ["b", "a"], "item": [5, 4]}


def test_of_two_columns_of_one_name_the_first_counts(tmp_path: Path) -> None:
    columns = [pa.array(values) for values in ([1], [2], [3])]
    table = pa.Table.from_arrays(columns, ["user", "item", "item"])
    pq.write_table(table, tmp_path / "t.parquet")
    with pa.ipc.new_file(tmp_path / "t.arrow", table.schema) as writer:
        writer.write_table(table)
    for name in ("t.parquet", "t.arrow"):
        found = opened("table", path=str(tmp_path / name))
        assert content(found) == {"user": [1], "item": [2]}


CHANGED = """
import sys
from pathlib import Path
from bert4rec.prepare.read.first_look import first_of_other_columns
from bert4rec.runtime.errors import DataError
from tests.prepare.files.log import opened

path = Path(sys.argv[1])
whole = path.read_bytes()
said = set()
for place in range(6, len(whole), 5):
    path.write_bytes(whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :])
    try:
        source = opened("table", path=str(path), user_column="who", item_column="what")
        said.add(sum(len(rows) for rows, _ in source))
        first_of_other_columns(source)
    except DataError as error:
        assert "\\n" not in str(error)
        said.add("refused")
assert {4, "refused"} <= said, said
"""


@pytest.mark.parametrize("write", [in_batches, pytest.param(stream, marks=pytest.mark.long)])
def test_no_byte_of_an_arrow_file_ends_the_program_otherwise_than_by_one_line(
    tmp_path: Path, write: Callable[[Path], None]
) -> None:
    """Many bytes changed in turn, in a process of its own: what Polars is given unchecked may kill it."""
    write(tmp_path / "t.arrow")
    command = [sys.executable, "-c", CHANGED, str(tmp_path / "t.arrow")]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("write", [in_batches, stream])
@pytest.mark.parametrize("cut", [0.3, 0.6, 0.95])
def test_an_arrow_file_that_is_cut_off(tmp_path: Path, write: Callable[[Path], None], cut: float) -> None:
    path = tmp_path / "t.arrow"
    write(path)
    path.write_bytes(path.read_bytes()[: int(cut * path.stat().st_size)])
    with pytest.raises(DataError, match=r"t\.arrow: not an Arrow IPC .*, or damaged: "):
        list(opened("table", path=str(path), **COLUMNS))
