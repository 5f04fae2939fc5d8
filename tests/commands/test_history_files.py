"""Files of histories in every form, and files of recommendations, read back."""

import gzip
import io
import json
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import feather

from bert4rec.commands import history_files as module
from bert4rec.commands.history_files import read_histories, writer
from bert4rec.config.tables import Data, Preprocessing
from bert4rec.runtime.errors import DataError
from bert4rec.serving.histories import TimedHistory
from bert4rec.serving.recommender import Recommendation, Recommendations
from bert4rec.sources import interactions
from bert4rec.sources.interactions import open_histories
from tests.checks import one_line
from tests.fixture_types import Patch

EXPECTED = [("u", ["a", "b"]), ("v", ["c"])]
TIMED = [("u", TimedHistory(["a", "b"], [5, 7])), ("v", TimedHistory(["c"], [6]))]


def read(path: Path | str, *, newest_first: Any = False, **options: object) -> list[tuple[object, object]]:
    preprocessing = Preprocessing(reverse_file_order=newest_first)
    open_rows = partial(open_histories, data=Data(), preprocessing=preprocessing, is_named=False)
    return [row for part in read_histories(str(path), open_rows, **options) for row in part]  # type: ignore[arg-type]


timed = partial(read, with_times=True)


def test_json_lines_of_standard_input(monkeypatch: Patch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO('["a"]\n[]\n{"items": [7]}\n'))
    assert read("-") == [(1, ["a"]), (2, []), (3, [7])]


@settings(deadline=None, max_examples=12)
@given(
    rows=st.lists(
        st.tuples(st.sampled_from("uvwx"), st.sampled_from("abcdef"), st.integers(0, 5)), min_size=1, max_size=40
    ),
    block_bytes=st.sampled_from([8, 1 << 20]),
)
def test_each_user_has_its_items_in_their_order(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str, int]], block_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    (folder / "untimed.csv").write_text("user,item\n" + "".join(f"{user},{item}\n" for user, item, _ in rows))
    (folder / "timed.csv").write_text("user,item,time\n" + "".join(f"{u},{i},{t}\n" for u, i, t in rows))
    users = dict.fromkeys(user for user, _, _ in rows)
    histories = [(user, [(item, time) for owner, item, time in rows if owner == user]) for user in users]
    by_time = [(user, sorted(items, key=lambda pair: pair[1])) for user, items in histories]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interactions, "HISTORY_BYTES", block_bytes)
        assert read(folder / "untimed.csv") == [(user, [item for item, _ in items]) for user, items in histories]
        newest_first = read(folder / "untimed.csv", newest_first=True)
        assert newest_first == [(user, [item for item, _ in reversed(items)]) for user, items in histories]
        assert read(folder / "timed.csv") == [(user, [item for item, _ in items]) for user, items in by_time]
        assert timed(folder / "timed.csv") == [
            (user, TimedHistory(*map(list, zip(*items, strict=True)))) for user, items in by_time
        ]


def test_ties_of_histories_that_stand_newest_first_are_taken_in_reverse(tmp_path: Path) -> None:
    rows = [f"u{k % 2},i{k},{1_700_000_000 + k // 6}\n" for k in range(24)]
    for name, lines in (("up", rows), ("down", rows[::-1])):
        (tmp_path / f"{name}.csv").write_text("user,item,time\n" + "".join(lines))
    up, down = (dict(read(tmp_path / f"{name}.csv", newest_first="auto")) for name in ("up", "down"))
    assert up == down
    assert dict(read(tmp_path / "down.csv")) != up


@pytest.mark.parametrize("at_once", [1, 4096])
def test_every_form_of_a_file_has_the_same_histories(tmp_path: Path, monkeypatch: Patch, at_once: int) -> None:
    monkeypatch.setattr(module, "AT_ONCE", at_once)
    lines = '{"user": "u", "items": ["a", "b"], "times": [5, 7]}\n\n{"user": "v", "items": ["c"], "times": [6]}\n'
    (tmp_path / "x.jsonl").write_text(lines)
    (tmp_path / "x.csv").write_text("user,item,time,rating\nu,a,5,\nv,c,6,1.5\nu,b,7,none\n")
    rows = {"user": ["u", "v", "u"], "item": ["a", "c", "b"], "time": pa.array([5000, 6000, 7000], pa.timestamp("ms"))}
    pq.write_table(pa.table(rows), tmp_path / "rows.parquet")
    lists = pa.table({"user": ["u", "v "], "items": [["a", "b"], ["c"]], "times": [[5, 7], [6]]})
    pq.write_table(lists, tmp_path / "lists.parquet")
    feather.write_feather(lists, tmp_path / "lists.feather")
    (tmp_path / "packed").write_bytes(gzip.compress(lines.replace('"v"', '"\u2009v"').encode()))
    for name in ("x.jsonl", "x.csv", "rows.parquet", "lists.parquet", "lists.feather", "packed"):
        assert timed(tmp_path / name) == TIMED
        assert timed(tmp_path / name, at=9) == [(user, history._replace(at=9)) for user, history in TIMED]
        assert read(tmp_path / name) == EXPECTED


def test_parquet_lists_without_users_or_items(tmp_path: Path) -> None:
    pq.write_table(pa.table({"items": [["a"], []]}), tmp_path / "unnamed.parquet")
    assert read(tmp_path / "unnamed.parquet") == [(1, ["a"]), (2, [])]
    pq.write_table(pa.table({"user": [7, 8], "items": pa.array([None, [3]])}), tmp_path / "nulls.parquet")
    assert read(tmp_path / "nulls.parquet") == [(7, []), (8, [3])]
    pq.write_table(pa.table({"user": ["u"], "items": ["12 7"]}), tmp_path / "text.parquet")
    with pytest.raises(DataError, match="column items"):
        read(tmp_path / "text.parquet")


@pytest.mark.parametrize(
    ("name", "text", "with_times", "problem"),
    [
        ("x.jsonl", '{"items": ["a"]}\n{"items": 7}\n', False, "line 2"),
        ("x.jsonl", '["a"]\n["\udce9"]\n', False, "line 2"),
        ("x.jsonl", "a b c\n", False, "line 1"),
        ("x.jsonl", '{"items": ["a"]}\n', True, "line 1"), ("x.parquet", "no parquet", False, "x.parquet: "),
        ("x.jsonl", None, False, "x.jsonl: "), ("x.jsonl", '["a"]\n', True, "line 1"),
        ("x.csv", "user,item\nu,a\n", True, "time"), ("x.csv", "user,item,time\nu,a,noon\n", True, 'time "noon"'),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read_is_named_in_one_line(
    tmp_path: Path, name: str, text: str | None, with_times: bool, problem: str
) -> None:
    if text is not None:
        (tmp_path / name).write_bytes(text.encode(errors="surrogateescape"))
    with one_line(str(tmp_path / name), problem):
        read(tmp_path / name, with_times=with_times)


def test_a_model_that_only_hides_events_takes_histories_without_times_too(tmp_path: Path) -> None:
    optional = partial(timed, may_lack_times=True)
    lines = '{"user": "u", "items": ["a", "b"], "times": [5, 7]}\n{"user": "v", "items": ["c"]}\n'
    (tmp_path / "x.jsonl").write_text(lines)
    assert optional(tmp_path / "x.jsonl") == [TIMED[0], ("v", TimedHistory(["c"], []))]
    (tmp_path / "x.csv").write_text("user,item\nu,a\nv,c\nu,b\n")
    assert optional(tmp_path / "x.csv") == EXPECTED
    (tmp_path / "timed.csv").write_text("user,item,time\nu,a,5\nv,c,6\nu,b,7\n")
    assert optional(tmp_path / "timed.csv") == TIMED
    pq.write_table(pa.table({"user": ["u", "v"], "items": [["a", "b"], ["c"]]}), tmp_path / "x.parquet")
    assert optional(tmp_path / "x.parquet") == EXPECTED


PARTS = [
    [("u", Recommendations([Recommendation("a", "Alien, the", 2.5), Recommendation("b", "", 1.25)]))],
    [("v", Recommendations())],
    [("w", Recommendations([Recommendation("a", "Alien, the", -0.5)], fallback="popularity"))],
]
LINES = [
    {"user": "u", "items": ["a", "b"], "titles": ["Alien, the", ""], "scores": [2.5, 1.25]},
    {"user": "v", "items": [], "scores": []},
    {"user": "w", "items": ["a"], "titles": ["Alien, the"], "scores": [-0.5], "fallback": "popularity"},
]
CSV = """user,rank,item,title,score,fallback
u,1,a,"Alien, the",2.500000,
u,2,b,,1.250000,
w,1,a,"Alien, the",-0.500000,popularity
"""


def test_recommendations_are_written_in_every_form(tmp_path: Path) -> None:
    for ending in ("jsonl", "csv", "parquet"):
        with writer(tmp_path / f"x.{ending}") as write:
            for part in PARTS:
                write(part)
    assert [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()] == LINES
    assert (tmp_path / "x.csv").read_text() == CSV
    rows = [
        ("u", 1, "a", "Alien, the", 2.5, ""), ("u", 2, "b", "", 1.25, ""),
        ("w", 1, "a", "Alien, the", -0.5, "popularity"),
    ]  # fmt: skip
    names = ("user", "rank", "item", "title", "score", "fallback")
    assert pq.read_table(tmp_path / "x.parquet").to_pylist() == [dict(zip(names, row, strict=True)) for row in rows]


@pytest.mark.parametrize("parts", [[], [[("v", Recommendations())]], [[("v", Recommendations())]] * 2])
def test_without_a_recommendation_a_table_has_its_columns_and_no_rows(tmp_path: Path, parts: list[Any]) -> None:
    for ending in ("csv", "parquet"):
        with writer(tmp_path / f"x.{ending}") as write:
            for part in parts:
                write(part)
    assert (tmp_path / "x.csv").read_text() == CSV.splitlines(keepends=True)[0]
    table = pq.read_table(tmp_path / "x.parquet")
    assert (table.num_rows, ",".join(table.column_names)) == (0, CSV.splitlines()[0])


@pytest.mark.parametrize("name", ["x.jsonl", "x.csv", "x.parquet"])
def test_a_file_is_whole_or_as_it_was(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("before")
    with pytest.raises(ZeroDivisionError), writer(tmp_path / name) as write:  # noqa: PT012
        write(PARTS[0])
        raise ZeroDivisionError
    assert (tmp_path / name).read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["x.xlsx", "no/x.csv"])
def test_a_file_that_cannot_be_written_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=name), writer(tmp_path / name):
        pass
    assert list(tmp_path.iterdir()) == []
