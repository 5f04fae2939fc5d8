"""Histories from files of every form."""

import io
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert4rec.commands.recommend import _read_rows
from bert4rec.config.tables import Data, Preprocessing
from bert4rec.inference.files import histories as module
from bert4rec.inference.files.histories import Rows, read_file
from bert4rec.inference.history import TimedHistory
from bert4rec.runtime.errors import DataError

EXPECTED = [("u", ["a", "b"]), ("v", ["c"])]


def rows_of(path: str) -> Rows:
    return _read_rows(path, Data(), Preprocessing(), is_named=False)


def read(path: Path | str) -> list[tuple[object, object]]:
    return [(user, list(items)) for part in read_file(str(path), rows_of) for user, items in part]


def test_json_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = '{"user": "u", "items": ["a", "b"]}\n\n{"user": "v", "items": ["c"]}\n'
    (tmp_path / "x.jsonl").write_text(text)
    assert read(tmp_path / "x.jsonl") == EXPECTED
    monkeypatch.setattr("sys.stdin", io.StringIO('["a"]\n[]\n{"items": [7]}\n'))
    assert read("-") == [(1, ["a"]), (2, []), (3, [7])]


def test_csv_rows_may_stand_anywhere(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("user,at,item\nu,1,a\nv,1,c\nu,2,b\n")
    assert read(tmp_path / "x.csv") == EXPECTED


@pytest.mark.parametrize(
    "times",
    [
        ("9", "1", "2"),
        ("2024-03-19T10:27:00", "2024-03-18", "2024-03-19 10:26:59"),
        ("1600000009000", "1600000001000", "1600000002000"),
    ],
)
def test_rows_are_taken_in_the_order_of_their_times(tmp_path: Path, times: tuple[str, str, str]) -> None:
    """Whether or not the model knows times, as a preparation reads them."""
    late, first, middle = times
    (tmp_path / "x.csv").write_text(f"user,item,time\nu,late,{late}\nu,first,{first}\nu,middle,{middle}\n")
    assert read(tmp_path / "x.csv") == [("u", ["first", "middle", "late"])]
    ((_, history),) = timed(tmp_path / "x.csv")
    assert isinstance(history, TimedHistory)
    assert history.items == ["first", "middle", "late"]
    assert [*history.times] == sorted(history.times)
    assert history.times[0] < history.times[2]


def test_other_columns_of_a_csv_file_are_not_read(tmp_path: Path) -> None:
    """Whatever they hold behind the first megabyte."""
    rows = "".join(f"u,{number % 5},1\n" for number in range(200_000))
    (tmp_path / "x.csv").write_text(f"user,item,rating\n{rows}v,c,1.5\nv,d,none\n")
    assert dict(read(tmp_path / "x.csv"))["v"] == ["c", "d"]


@pytest.mark.parametrize("at_once", [1, 4096])
def test_parquet_with_rows_or_with_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(module, "AT_ONCE", at_once)
    pq.write_table(pa.table({"user": ["u", "v", "u"], "item": ["a", "c", "b"]}), tmp_path / "rows.parquet")
    pq.write_table(pa.table({"user": ["u", "v"], "items": [["a", "b"], ["c"]]}), tmp_path / "lists.parquet")
    pq.write_table(pa.table({"items": [["a"], []]}), tmp_path / "unnamed.parquet")
    assert read(tmp_path / "rows.parquet") == read(tmp_path / "lists.parquet") == EXPECTED
    assert read(tmp_path / "unnamed.parquet") == [(1, ["a"]), (2, [])]
    pq.write_table(pa.table({"user": [7, 8], "items": pa.array([None, [3]])}), tmp_path / "nulls.parquet")
    assert read(tmp_path / "nulls.parquet") == [(7, []), (8, [3])]
    pq.write_table(pa.table({"user": ["u"], "items": ["12 7"]}), tmp_path / "text.parquet")
    with pytest.raises(DataError, match="the column items holds no lists"):
        read(tmp_path / "text.parquet")


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("x.jsonl", '{"items": ["a"]}\n{"items": 7}\n', "x.jsonl: line 2 is no history"),
        ("x.jsonl", "a b c\n", "x.jsonl: line 1 is no history"),
        ("x.parquet", "no parquet", "x.parquet: cannot be read"),
        ("x.jsonl", None, "x.jsonl: cannot be read: No such file or directory"),
    ],
)
def test_what_is_no_history_gets_one_line(tmp_path: Path, name: str, text: str | None, problem: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=re.escape(problem)) as caught:
        read(tmp_path / name)
    assert "JSON lines such as" in str(caught.value)
    assert "\n" not in str(caught.value)


TIMED = [("u", TimedHistory(["a", "b"], [5, 7])), ("v", TimedHistory(["c"], [6]))]


def timed(path: Path, at: float | None = None) -> list[tuple[object, object]]:
    return [row for part in read_file(str(path), rows_of, with_times=True, at=at) for row in part]


def test_times_are_read_where_they_are_asked_for(tmp_path: Path) -> None:
    lines = '{"user": "u", "items": ["a", "b"], "times": [5, 7]}\n{"user": "v", "items": ["c"], "times": [6]}\n'
    (tmp_path / "x.jsonl").write_text(lines)
    (tmp_path / "x.csv").write_text("user,item,time\nu,a,5\nv,c,6\nu,b,7\n")
    rows = {"user": ["u", "v", "u"], "item": ["a", "c", "b"], "time": pa.array([5000, 6000, 7000], pa.timestamp("ms"))}
    pq.write_table(pa.table(rows), tmp_path / "rows.parquet")
    lists = {"user": ["u", "v"], "items": [["a", "b"], ["c"]], "times": [[5, 7], [6]]}
    pq.write_table(pa.table(lists), tmp_path / "lists.parquet")
    for name in ("x.jsonl", "x.csv", "rows.parquet", "lists.parquet"):
        assert timed(tmp_path / name) == TIMED
        assert timed(tmp_path / name, at=9) == [(user, history._replace(at=9)) for user, history in TIMED]
        assert read(tmp_path / name) == EXPECTED


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("x.jsonl", '{"items": ["a"]}\n', "x.jsonl: line 1 is no history; it must be JSON lines such as .*times"),
        ("x.csv", "user,item\nu,a\n", "x.csv: no column with times, which this model needs; it must be"),
        ("x.csv", "user,item,time\nu,a,noon\n", 'x.csv, line 2: time "noon": must be a time'),
    ],
)
def test_a_file_without_times_is_refused_where_they_are_asked_for(
    tmp_path: Path, name: str, text: str, problem: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=problem):
        timed(tmp_path / name)
