"""Every source and every format has the same typed rows; histories, titles beside the rows; damaged files."""

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import preprocessing
from bert4rec.config.recognition import format_of
from bert4rec.config.tables import Data, Preprocessing
from bert4rec.runtime.errors import DataError
from bert4rec.sources import tables, text_blocks
from bert4rec.sources.attributes import ItemValues
from bert4rec.sources.first_look import first_rows
from bert4rec.sources.interactions import Interactions, open_histories
from bert4rec.sources.progress import LINE, BadRows
from bert4rec.sources.tables import SequenceLines, TableFile
from bert4rec.sources.text_blocks import Block
from bert4rec.sources.user_tables import read_titles
from tests.checks import one_line
from tests.sources.log import COLUMNS, ROWS, content, in_batches, opened, stream

USER_ITEM = {"user": [1, 1, 20], "item": [9, 3, 9]}


def frame(interactions: Interactions) -> pl.DataFrame:
    return pl.concat([part for part, _ in interactions], how="vertical_relaxed")  # ids that turn out to be text


def write(path: Path, text: str, encoding: str = "utf-8") -> str:
    path.write_bytes(text.encode(encoding))
    return str(path)


HEADER = "userId,movieId,rating,timestamp"
MOVIELENS = [
    ("ml-100k", "u.data", "1\t9\t5\t70\n1\t3\t4\t60\n20\t9\t1\t50\n"),
    ("ml-1m", "ratings.dat", "1::9::5::70\n1::3::4::60\n20::9::1::50\n"),
    ("ml-1m", "ratings.dat", "1::9::5::70\r\n1::3::4::60\r\n20::9::1::50"),
    ("ml-20m", "ratings.csv", f"{HEADER}\n1,9,5.0,70\n1,3,4.0,60\n20,9,1.0,50\n"),
    ("ml-32m", "ratings.csv", f"\ufeff{HEADER}\r\n1,9,5,70\r\n1,3,4,60\r\n20,9,1,50\r\n"),
]


@pytest.mark.parametrize(("source", "name", "text"), MOVIELENS)
def test_movielens(tmp_path: Path, source: str, name: str, text: str) -> None:
    file = write(tmp_path / name, text)
    types = {"user": pl.Int64, "item": pl.Int64, "time": pl.Int64, "rating": pl.Float32}
    for path in (str(tmp_path), file):
        found = opened(source, path=path)
        assert content(found) == {**USER_ITEM, "time": [70, 60, 50], "rating": [5.0, 4.0, 1.0]}
        assert dict(frame(found).schema) == types
        assert (found.bad.total, found.item_titles("", dtype=pl.Int64())) == (0, None)
        assert [done for _, done in found][-1] == found.n_bytes == Path(file).stat().st_size


@pytest.mark.parametrize(
    "text",
    ["1 9\n1 3\n20 9\n", "1\t9\n1\t3\n20\t9", "\ufeff1 9 \r\n1  3\r\n20 \t9\r\n", "1 9 3\n20 9\n", "1\t9\t3\n20\t9\n"],
)
def test_sequences_as_pairs_and_as_users_with_their_items(tmp_path: Path, text: str) -> None:
    assert content(opened("sequences", path=write(tmp_path / "ml-1m.txt", text))) == USER_ITEM
    assert content(opened("sequences", path=str(tmp_path))) == USER_ITEM


@pytest.mark.parametrize("names", [("line", "text"), ("line number", "bad field"), ("item", "user"), ("title", "time")])
def test_a_column_may_bear_any_name(tmp_path: Path, names: tuple[str, str]) -> None:
    user, item = names
    file = write(tmp_path / "t.csv", f"{user},{item},line number 2\n1,2,3\n5,,6\n")
    found = opened("table", path=file, user_column=user, item_column=item)
    assert content(found) == {"user": [1], "item": [2]}
    assert found.bad.shown[0].startswith(f"{file}, line 3: {item} ")
    others = first_rows(found, ItemValues({"\nother": "line number 2"}))
    assert others.to_dict(as_series=False) == {"user": [1], "item": [2], "\nother": ["3"]}


@pytest.mark.parametrize("block_bytes", [7, 1 << 20])
def test_titles_from_a_column_of_the_log(tmp_path: Path, block_bytes: int) -> None:
    rows = ["1,9,", "1,3, Three ", "2,9,Nine", "2,9,Neun", ",3,none: a guest", "1,4,", "2,x,Ix", "3,3,Drei"]
    path = write(tmp_path / "t.csv", "user,item,name\n" + "\n".join(rows))
    found = opened("table", path=path, title_column="name", block_bytes=block_bytes)
    assert found.item_titles("", dtype=pl.String()).rows() == []  # type: ignore[union-attr]
    assert content(found) == {"user": [1, 1, 2, 2, 1, 2, 3], "item": ["9", "3", "9", "9", "4", "x", "3"]}
    titles = found.item_titles("", dtype=pl.String())
    assert sorted(titles.rows()) == [("3", "Three"), ("9", "Nine"), ("x", "Ix")]
    assert found.bad.guests == 1


def test_a_pattern_names_several_files_of_any_kind_in_the_order_of_their_names(tmp_path: Path) -> None:
    rows = {"user": ["a", "a", "b", "c"], "item": ["9", "3", "x,y", "3"], "time": [70, 60, 50, 40]}
    table = pl.DataFrame(rows)  # ids that are numbers in the first files are text in all
    table[:1].write_csv(tmp_path / "log-1.csv")
    table[1:2].cast({"item": pl.Int64}).write_parquet(tmp_path / "log-2")
    table[2:3].write_csv(tmp_path / "log-3.tsv", separator="\t")
    (tmp_path / "log-4.gz").write_bytes(gzip.compress(table[3:].write_csv().encode()))
    found = opened("table", path=str(tmp_path / "log-*"))
    assert content(found) == rows
    assert [done for _, done in found][-1] == found.n_bytes == sum(file.stat().st_size for file in tmp_path.iterdir())


@pytest.mark.parametrize(("names", "path"), [(["a.csv"], "b*.csv"), (["a.csv", "b.csv"], ""), ([], ""), ([], "t.csv")])
def test_what_is_not_there_is_refused(tmp_path: Path, names: list[str], path: str) -> None:
    for name in names:
        write(tmp_path / name, "user,item\n1,2\n")
    with pytest.raises(DataError, match=str(tmp_path)):
        opened("table", path=str(tmp_path / path))


def test_only_goodreads_knows_what_was_read(tmp_path: Path) -> None:
    write(tmp_path / "goodreads_interactions.csv", "user_id,book_id,is_read,rating\r\n1,9,1,5\r\n1,3,0,0\r\n")
    found = opened("goodreads", path=str(tmp_path))
    assert content(found) == {"user": [1, 1], "item": [9, 3], "rating": [5.0, 0.0]}
    found = opened("goodreads", path=str(tmp_path), only_read=True)
    assert content(found) == {"user": [1, 1], "item": [9, 3], "rating": [5.0, 0.0], "is_read": [True, False]}
    with pytest.raises(DataError, match="only_read"):
        opened("ml-1m", path=str(tmp_path), only_read=True)


OWN = {"source": "table", "user_column": "who", "item_column": "what", "time_column": "at"}
BY_PLACE = {"user_column": "1", "item_column": "2", "time_column": "3", "has_header": False}
MORE = "user,item,time,customer\nu,a,9,c\n"
BOTH = [("u", "a", 9), ("v", "b", 7)]
HISTORIES: list[tuple[str, str, dict[str, Any], bool, list[tuple[Any, ...]] | str]] = [
    # name, text, data, whether the columns are named; the rows, or a word of the message
    ("x.csv", "who,what,at,stars\nu,a,9,x\nv,b,7,\n", OWN, False, BOTH),
    ("x.csv", "user,item,time,stars\nu,a,9,x\nv,b,7,\n", OWN, False, BOTH),  # the usual names
    ("x.csv", "who,what,at\nu,a,02/01/1970\n", OWN | {"time_format": "%d/%m/%Y"}, False, [("u", "a", 86_400)]),
    ("x.csv", "u;a;9\nv;b;7\n", OWN | BY_PLACE, False, BOTH),
    *[("ratings.dat", "1::9::5::70\n", {"source": source}, False, [(1, 9, 70)]) for source in ("ml-1m", "synthetic")],
    *[("x.csv", "user,item\n1,9\n", {"source": source}, False, [(1, 9)]) for source in ("ml-1m", "synthetic")],
    ("x.csv", MORE, {"source": "table", "user_column": "customer"}, True, [("c", "a", 9)]),
    *[("x.csv", MORE, {"source": "table", f"{field}_column": "buyer"}, True, "buyer") for field in ("user", "time")],
    ("x.csv", "user_id,book_id,is_read,rating\n1,9,1,5\n", {"source": "goodreads"}, False, [(1, 9)]),
]


@pytest.mark.parametrize(("name", "text", "data", "is_named", "rows"), HISTORIES)
def test_histories_are_read_as_the_data_were(
    tmp_path: Path, name: str, text: str, data: dict[str, Any], is_named: bool, rows: list[tuple[Any, ...]] | str
) -> None:
    path = write(tmp_path / name, text)
    if isinstance(rows, str):
        with one_line("", rows):
            open_histories(path, Data(**data), Preprocessing(), is_named=is_named)
        return
    found = open_histories(path, Data(**data), Preprocessing(), is_named=is_named)
    columns = [column for column in ("user", "item", "time") if column in found.columns]
    assert frame(found).select(columns).rows() == rows
    assert found.newest_first == (data["source"] == "goodreads")


SEVERAL = "3|Amélie (2001)|x|y\n9|Heat, The: a::b||\n"
MOVIES = 'movieId,title,genres\n3,Amélie (2001),x\n9,"Heat, The: a::b",y\n'
DAT = "3::Amélie (2001)::Comedy\n9::Heat::x\n"
BESIDE = [  # source, file of the data, its text, file of the titles, its text, its encoding
    ("ml-100k", "u.data", "1\t9\t5\t7\n1\t3\t5\t7\n", "u.item", SEVERAL, "latin-1"),
    *[("ml-1m", "ratings.dat", "1::9::5::7\n", "movies.dat", DAT, encoding) for encoding in ("latin-1", "utf-8")],
    ("ml-25m", "ratings.csv", f"{HEADER}\n1,9,1,7\n", "movies.csv", MOVIES, "utf-8"),
]


@pytest.mark.parametrize(("source", "data", "rows", "name", "text", "encoding"), BESIDE)
def test_titles_beside_movielens(
    tmp_path: Path, source: str, data: str, rows: str, name: str, text: str, encoding: str
) -> None:
    write(tmp_path / data, rows)
    write(tmp_path / name, text, encoding)
    found = opened(source, path=str(tmp_path)).item_titles("", dtype=pl.Int64())
    assert found.rows() == [(3, "Amélie (2001)"), (9, "Heat" if name == "movies.dat" else "Heat, The: a::b")]


@pytest.mark.parametrize("text", ["name,item,x\na,1,2\n", "item,title\nx,One\n", "item,title\n1,One\n1,Two\n", ""])
def test_bad_titles_are_refused(tmp_path: Path, text: str) -> None:
    data = write(tmp_path / "a.txt", "1 7\n")
    titles = write(tmp_path / "t.csv", text) if text else str(tmp_path / "t.csv")
    with one_line(titles):
        opened("sequences", path=data).item_titles(titles, dtype=pl.Int64())


def test_a_file_that_is_named_goes_before_those_beside_the_data(tmp_path: Path) -> None:
    write(tmp_path / "movies.csv", "movieId,title\n1,One\n")
    write(tmp_path / "u.item", "1|Uno|x\n")
    named = write(tmp_path / "n.item", "7|Seven|x\n")
    found = [read_titles(path, beside=tmp_path, dtype=pl.Int64()) for path in ("", named)]
    assert [titles.rows() for titles in found] == [[(1, "One")], [(7, "Seven")]]
    assert read_titles("", beside=None, dtype=pl.Int64()) is None


def test_a_user_stands_on_several_lines_of_pairs_alone() -> None:
    mixed = ([b"1 7\n2 8\n", b"2 7\n3 7 8 9\n4 7 8\n"], 4)
    for texts, n_users in (([b"1 7\n1 8\n2 7\n"], 2), ([b"1 7 8\n", b"2 7 9 9\n3 1\n"], 3), mixed):
        words = SequenceLines()
        for number, text in enumerate(texts):
            words.parse(Block(Path("a.txt"), text, 1 + 10 * number, 0), BadRows())
        with one_line("a.txt, line 12: 4 fields") if n_users == 4 else nullcontext():
            words.check(n_users=n_users)


FOUND = {
    "user": [1, 1, 2, 2], "item": ["b", "3", "é x", "b"],
    "time": [1_700_000_003, 1_700_000_001, 1_700_000_002, 1_700_000_009], "rating": [1.5, 2.0, 3.0, 0.5],
}  # fmt: skip


def by_hand(path: Path) -> None:
    """Keys in any order, blanks, values of JSON's own types."""
    rows = [row if i % 2 else dict(reversed(row.items())) for i, row in enumerate(ROWS.to_dict("records"))]
    lines = [json.dumps(row, ensure_ascii=i == 1) for i, row in enumerate(rows)]
    path.write_text(" " + "\r\n".join(lines) + "\r\n", encoding="utf-8")


WRITERS: list[tuple[str, Callable[[Path], object], str]] = [
    ("log.csv", lambda path: ROWS.to_csv(path, index=False), "text"),
    ("log.parquet", ROWS.to_parquet, "parquet"), ("log.feather", ROWS.to_feather, "arrow file"),
    ("log.arrow", in_batches, "arrow file"), ("log.ipc", stream, "arrow stream"),
    ("log.ipc", pl.from_pandas(ROWS).write_ipc, "arrow file"),
    ("log.jsonl", lambda path: ROWS.to_json(path, orient="records", lines=True), "json lines"),
    ("log.json", by_hand, "json lines"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "write", "kind"), WRITERS, ids=[f"{name}, {kind}" for name, _, kind in WRITERS])
def test_the_same_table_in_every_format_gives_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, write: Callable[[Path], object], kind: str
) -> None:
    write(tmp_path / name)
    monkeypatch.setattr(tables, "ROWS_PER_FRAME", 2)  # parts of two rows, of a block of two lines
    (tmp_path / "nameless").write_bytes((tmp_path / name).read_bytes())
    for path in (tmp_path / name, tmp_path / "nameless"):
        assert format_of(path) == kind
        found = opened("table", path=str(path), block_bytes=2 * len(ROWS.to_csv()) // 4, **COLUMNS)
        assert content(found) == FOUND
        assert found.bad.total == 0
        done = [read for _, read in found]
        assert done == sorted(done)
        assert done[-1] <= found.n_bytes == path.stat().st_size
        assert kind == "arrow stream" or done[-1] == found.n_bytes
    table = TableFile(path, kind)  # type: ignore[arg-type]
    assert (sorted(table.columns), {*table.columns.values()}) == (sorted(ROWS.columns), {True})
    monkeypatch.setattr(text_blocks, "FIRST_BYTES", len(ROWS.to_csv(index=False)) - 1)
    monkeypatch.setattr(tables, "FIRST_ROWS", 2)
    parts = [rows for rows, _ in table.rows({"item": "what"}, BadRows(), block_bytes=1 << 20, only_first=True)]
    first = [item for part in parts for item in part["item"]]
    assert (first, parts[0].columns) == (ROWS["what"].to_list()[: len(first)], [LINE, "item"])
    assert 0 < len(first) < len(ROWS)


def test_a_folder_is_searched_for_every_format(tmp_path: Path) -> None:
    for name, write in {name: write for name, write, _ in WRITERS if name != "log.json"}.items():
        (tmp_path / name).mkdir()
        write(tmp_path / name / name)
        assert content(opened("table", path=str(tmp_path / name), **COLUMNS)) == FOUND


NEITHER = "is neither text nor number"
NO_OBJECTS = ['{"who": "a", "what": 1', '["a", 1]', "who,what", "[" * 100_000, '{"who": "\\ud800", "what": 1}',
              '{"who": ' + "9" * 5000 + ', "what": 1}']  # fmt: skip
JSON_LINES = [
    ('{"who": "a"}', "item is missing", "what"),
    *[(f'{{"who": {value}, "what": 1}}', "user is missing", "who") for value in ("null", '""', "NaN")],
    ('{"who": {"id": 7}, "what": 1}', f"user {NEITHER}", 'who is {"id": 7}'),
    ('{"who": "a", "what": [1]}', f"item {NEITHER}", "what is [1]"),
    ('{"who": true, "what": 1}', f"user {NEITHER}", "who is true"),
    ('{"who": "a", "what": 1, "stars": "x"}', "rating is not a number", 'stars "x"'),
    *[(line, "not a JSON object", "") for line in NO_OBJECTS], ("", "empty line", ""),
    (json.dumps({"who": [*range(100)], "what": 2}), f"user {NEITHER}", "10, 11, …"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "kind", "message"), JSON_LINES)
def test_a_line_of_which_no_row_can_be_made_is_counted(tmp_path: Path, line: str, kind: str, message: str) -> None:
    path = tmp_path / "log.jsonl"
    good = '{"what": 1, "who": "a", "stars": 2}'
    path.write_text("\n".join([good, good, line, good]))
    found = opened("table", path=str(path), user_column="who", item_column="what", rating_column="stars")
    assert content(found) == {"user": ["a"] * 3, "item": [1] * 3, "rating": [2.0] * 3}
    assert found.bad.counts == {kind: 1}
    (shown,) = found.bad.shown
    assert shown.startswith(f"{path}, line 3: ")
    assert message in shown


ROOT = Path(preprocessing.__file__).parent


def test_an_arrow_file_is_read_a_record_batch_at_a_time_and_only_the_columns_that_are_named(tmp_path: Path) -> None:
    table = pa.table({"a": pa.array(range(10)), "b": pa.array([[i] for i in range(10)]), "c": pa.array(range(10, 20))})
    with pa.ipc.new_file(tmp_path / "t.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=4)
    found = list(tables.typed_rows(tmp_path / "t.arrow", "arrow file", {"x": "c", "y": "a"}, size=3))
    assert [(rows["x"].to_list(), rows["y"].to_list(), rows.to_series(0).to_list()) for rows, _ in found] == [
        ([10, 11, 12], [0, 1, 2], [1, 2, 3]), ([13], [3], [4]), ([14, 15, 16], [4, 5, 6], [5, 6, 7]),
        ([17], [7], [8]), ([18, 19], [8, 9], [9, 10]),
    ]  # fmt: skip
    size = (tmp_path / "t.arrow").stat().st_size
    assert [done for _, done in found] == [int(size * share) for share in (1 / 3, 1 / 3, 2 / 3, 2 / 3, 1.0)]
    assert tables.typed_columns(tmp_path / "t.arrow", "arrow file") == {"a": True, "b": False, "c": True}


def test_of_two_columns_of_one_name_the_first_counts(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([value]) for value in (1, 2, 3)], ["user", "item", "item"])
    pq.write_table(table, tmp_path / "t.parquet")
    with pa.ipc.new_file(tmp_path / "t.arrow", table.schema) as writer:
        writer.write_table(table)
    for name in ("t.parquet", "t.arrow"):
        assert content(opened("table", path=str(tmp_path / name))) == {"user": [1], "item": [2]}


CHANGED = """
import sys
from pathlib import Path
from bert4rec.config.tables import Data
from bert4rec.prepare.about_items import look_at_other_columns
from bert4rec.runtime.errors import DataError
from tests.sources.log import opened

path = Path(sys.argv[1])
whole = path.read_bytes()
said = set()
changed = [whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :] for place in range(6, len(whole), 23)]
for content in [*changed, *(whole[: int(cut * len(whole))] for cut in (0.05, 0.3, 0.6, 0.95))]:
    path.write_bytes(content)
    try:
        source = opened("table", path=str(path), user_column="who", item_column="what")
        said.add(sum(len(rows) for rows, _ in source))
        look_at_other_columns(Data(), source, {})
    except DataError as error:
        assert "\\n" not in str(error)
        said.add("refused")
assert {4, "refused"} <= said, said
"""


@pytest.mark.parametrize("write", [in_batches, pytest.param(stream, marks=pytest.mark.long)])
def test_no_byte_of_an_arrow_file_ends_the_program(tmp_path: Path, write: Callable[[Path], None]) -> None:
    """Polars may kill the process that gives it unchecked bytes."""
    write(tmp_path / "t.arrow")
    command = [sys.executable, "-c", CHANGED, str(tmp_path / "t.arrow")]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1100)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_no_byte_of_the_footer_of_a_parquet_file_brings_a_control_character_into_the_error(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    pl.DataFrame({"user": [1], "item": [2]}).write_parquet(path)
    whole, errors = path.read_bytes(), []
    for place in range(len(whole) - 300, len(whole) - 8):
        path.write_bytes(whole[:place] + b"\x0e" + whole[place + 1 :])
        try:
            assert set(TableFile(path, "parquet").columns)
        except DataError as error:
            errors.append(str(error))
    assert errors
    assert all(error.isprintable() for error in errors)
