"""Find users and items by number and by id in several segments and files, and read little of them."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.dataset.format import ITEMS, USERS
from bert4rec.dataset.id_tables import UNKNOWN, IdTable
from bert4rec.dataset.segments import Segments
from bert4rec.prepare import id_files
from tests.checks import one_line

NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.integers(-20, 20)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=3) | st.integers(0, 30).map(str)


@contextmanager
def small_files() -> Iterator[None]:
    """Files of at most 5 rows, in row groups of at most 2, so that there are several."""
    with patch.object(id_files, "ROWS_PER_FILE", 5), patch.object(id_files, "ROWS_PER_GROUP", 2):
        yield


def written(folder: Path, name: str, segments: list[list[Any]], seed: int = 7) -> IdTable:
    """The table of users or items with the ids of each of the `segments`, and with their lengths as text."""
    listed: list[Any] = [len(ids) for ids in segments]
    if name == ITEMS:
        listed = [[n, seed] for n in listed]
    numbers = Segments.of({"segments": {name: listed}}, name).numbers(np.arange(sum(map(len, segments))))
    frames, first = [], 0
    for ids in segments:
        columns = {"number": numbers[first : first + len(ids)], "original": sorted(ids)}
        frames.append([pl.DataFrame(columns).with_columns(title=pl.col("original").cast(pl.String))])
        first += len(ids)
    with small_files():
        id_files.write_ids(folder / name, frames)
    files = {path.relative_to(folder).as_posix(): {} for path in (folder / name).iterdir()}
    return IdTable(folder, {"fingerprint": "", "files": files, "segments": {name: listed}}, name)


@st.composite
def several_segments(draw: st.DrawFn) -> list[list[Any]]:
    """Draw ids of one to four segments; the first ones may be whole numbers where later ones are text."""
    n_of_numbers, n_of_text = draw(st.integers(0, 3)), draw(st.integers(0, 2))
    kinds = [NUMBERS] * n_of_numbers + [TEXTS] * n_of_text or [NUMBERS]
    segments = [draw(st.lists(kind, min_size=1, max_size=25, unique_by=str)) for kind in kinds]
    taken: set[str] = set()
    for ids in segments:
        ids[:] = [one for one in ids if str(one) not in taken]
        taken |= {*map(str, ids)}
    return [ids for ids in segments if ids]


@given(several_segments(), st.sampled_from([USERS, ITEMS]), st.data())
@settings(max_examples=60, deadline=None)
def test_rows_and_numbers_are_those_of_all_rows(segments: list[list[Any]], name: str, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as place:
        table = written(Path(place), name, segments)
        is_text = isinstance(segments[-1][0], str)
        every = pl.concat(pl.DataFrame(pl.from_arrow(part)) for part in table.parts(["number", "original", "title"]))
        assert every["original"].dtype == (pl.String if is_text else pl.Int64)
        assert every["title"].to_list() == [str(one) for ids in segments for one in sorted(ids)]
        assert sorted(every["number"]) == list(range(len(table)))
        by_number = every.sort("number")
        assert pl.DataFrame(pl.from_arrow(table.in_order(["title", "original"]))).equals(by_number["title", "original"])
        numbers = np.array(data.draw(st.lists(st.integers(0, len(table) - 1))), np.int64)
        some = pl.DataFrame(pl.from_arrow(table.rows(numbers, ["original", "unknown", "number"])))
        assert some.equals(by_number[numbers].select("original", "number"))
        known = dict(zip(by_number["original"], by_number["number"], strict=True))
        others = data.draw(st.lists(TEXTS if is_text else NUMBERS, max_size=9))
        ids = data.draw(st.permutations([*by_number["original"][numbers], *others, None]))
        expected = [known.get(one, UNKNOWN) for one in ids]
        assert table.find(ids).tolist() == expected
        assert table.find(pa.array([None if one is None else str(one) for one in ids])).tolist() == expected


def test_only_the_row_groups_are_read_that_may_have_what_is_asked_for(tmp_path: Path) -> None:
    table = written(tmp_path, USERS, [[*range(0, 120, 10)], [*range(1000, 1005)]])
    original = pq.ParquetFile.read_row_group
    for act, expected in (
        (lambda: table.rows(np.array([9, 3, 2]), ["original"]), [2, 9]),
        (lambda: table.rows(np.array([9, 2]), ["original"]), []),  # they are still there
        (lambda: table.find([30, 1001, 70]), [7, 12]),
        (lambda: table.find([-1, 35, 125, 1005, 999]), []),  # which are between the bounds of row groups
        (lambda: table.find([]), []), (lambda: table.rows(np.zeros(0, np.int64), ["title"]), []),
    ):  # fmt: skip
        with patch.object(pq.ParquetFile, "read_row_group", autospec=True, side_effect=original) as read:
            act()
            calls = [call.args for call in read.call_args_list]
        assert [original(file, group)["number"][0].as_py() for file, group, *_ in calls] == expected


@pytest.mark.parametrize("name", [USERS, ITEMS])
def test_ids_that_are_longer_than_what_a_file_notes_of_its_row_groups_are_found(tmp_path: Path, name: str) -> None:
    ids = [letter * 5000 for letter in "fedcba"]
    table = written(tmp_path, name, [ids, ["short"]])
    numbers = table.find(["e" * 5000, "short", "b" * 4999])
    assert table.rows(numbers[:2], ["original"])["original"].to_pylist() == ["e" * 5000, "short"]
    assert numbers[2] == UNKNOWN


def test_opening_reads_nothing_and_damage_is_one_line(tmp_path: Path) -> None:
    table = written(tmp_path, USERS, [["a", "b"]])
    file = tmp_path / "users" / "part-0000000000.parquet"
    content = file.read_bytes()
    file.write_bytes(content[:-9])
    with one_line(f"{file}: "):
        table.find(["a"])
    shutil.rmtree(tmp_path / "users")
    with one_line(f"{file}: "):
        table.rows(np.array([0]), ["original"])
