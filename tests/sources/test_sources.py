"""Every source: its rows as typed frames, files of histories, titles beside the rows."""

import gzip
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from bert4rec.config.tables import Data, Preprocessing
from bert4rec.runtime.errors import DataError
from bert4rec.sources.attributes import ItemValues
from bert4rec.sources.first_look import first_look, first_rows, order_options
from bert4rec.sources.interactions import Interactions, open_histories
from bert4rec.sources.user_tables import read_titles
from tests.checks import one_line
from tests.fixture_types import Patch
from tests.sources.log import opened

USER_ITEM = {"user": [1, 1, 20], "item": [9, 3, 9]}


def frame(interactions: Interactions) -> pl.DataFrame:
    return pl.concat([part for part, _ in interactions], how="vertical_relaxed")  # ids that turn out to be text


def content(interactions: Interactions) -> dict[str, list[object]]:
    return frame(interactions).to_dict(as_series=False)


def open_table(path: Path, **options: Any) -> Interactions:
    return opened("table", path=str(path), time_column="at", **options)


def write(path: Path, text: str, encoding: str = "utf-8") -> str:
    path.write_bytes(text.encode(encoding))
    return str(path)


@pytest.mark.parametrize(
    ("source", "name", "text"),
    [
        ("ml-100k", "u.data", "1\t9\t5\t70\n1\t3\t4\t60\n20\t9\t1\t50\n"),
        ("ml-1m", "ratings.dat", "1::9::5::70\n1::3::4::60\n20::9::1::50\n"),
        ("ml-1m", "ratings.dat", "1::9::5::70\r\n1::3::4::60\r\n20::9::1::50"),
        ("ml-20m", "ratings.csv", "userId,movieId,rating,timestamp\n1,9,5.0,70\n1,3,4.0,60\n20,9,1.0,50\n"),
        ("ml-32m", "ratings.csv", "\ufeffuserId,movieId,rating,timestamp\r\n1,9,5,70\r\n1,3,4,60\r\n20,9,1,50\r\n"),
    ],
)
@pytest.mark.parametrize("whole_folder", [True, False])
def test_movielens(tmp_path: Path, source: str, name: str, text: str, whole_folder: bool) -> None:
    file = write(tmp_path / name, text)
    found = opened(source, path=str(tmp_path) if whole_folder else file)
    assert content(found) == {**USER_ITEM, "time": [70, 60, 50], "rating": [5.0, 4.0, 1.0]}
    types = {"user": pl.Int64, "item": pl.Int64, "time": pl.Int64, "rating": pl.Float32}
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


COLUMNS = {"user_column": "who", "item_column": "what", "time_column": "when", "rating_column": "stars"}


def as_csv_and_parquet(place: Path, table: pl.DataFrame, **columns: str) -> list[Interactions]:
    table.write_csv(place / "t.csv")
    table.write_parquet(place / "t.parquet")
    return [opened("table", path=str(place / name), **columns) for name in ("t.csv", "t.parquet")]


@pytest.mark.parametrize("ids", [[9, 3, -4], ["9", "3", "-4"], ["b", "3", "é x"], ["007", "7", "70"]])
def test_the_same_table_as_csv_and_as_parquet_is_the_same(tmp_path: Path, ids: list[object]) -> None:
    cells = {"junk": ["x,y", 'a"b', None], "what": ids, "who": [1, 1, 2], "when": [3, 5, 4], "stars": [1.5, 2, 3]}
    table = pl.DataFrame(cells, strict=False)
    csv, parquet = as_csv_and_parquet(tmp_path, table, **COLUMNS)
    assert frame(csv).equals(frame(parquet))
    assert frame(csv).schema == frame(parquet).schema
    whole = all(str(value).lstrip("-").isdigit() and str(int(str(value))) == str(value) for value in ids)
    assert content(csv)["item"] == ([int(str(value)) for value in ids] if whole else ids)


@pytest.mark.parametrize("names", [("line", "text"), ("line number", "bad field"), ("item", "user"), ("title", "time")])
def test_a_column_may_bear_any_name(tmp_path: Path, names: tuple[str, str]) -> None:
    user, item = names
    file = write(tmp_path / "t.csv", f"{user},{item},line number 2\n1,2,3\n5,,6\n")
    found = opened("table", path=file, user_column=user, item_column=item)
    assert content(found) == {"user": [1], "item": [2]}
    assert found.bad.shown[0].startswith(f"{file}, line 3: {item} ")
    others = first_rows(found, ItemValues({"\nother": "line number 2"}))
    assert others.to_dict(as_series=False) == {"user": [1], "item": [2], "\nother": ["3"]}


def test_first_rows_are_read_once_by_the_look_and_the_options_after_it(tmp_path: Path, monkeypatch: Patch) -> None:
    rows = "".join(f"{user},{item},2026-01-0{item},{item}\n" for user in range(9) for item in range(1, 5))
    found = opened("table", path=write(tmp_path / "t.csv", f"user,item,day,line\n{rows}"))
    reads = []
    read = Interactions.raw
    monkeypatch.setattr(Interactions, "raw", lambda *arguments: reads.append(arguments) or read(*arguments))
    first_look(found)
    n_reads, options = len(reads), order_options(found)
    assert (len(reads), options) == (n_reads, order_options(found.again()))
    assert n_reads < len(reads)


DECIMAL = "user,item\n7.0,a\n,b\n-12.00,c\n"


@pytest.mark.parametrize("block_bytes", [7, 1 << 20])
@pytest.mark.parametrize("last", ["", "0.0", "7", " 7 ", "7.5", "x", "07.0", "-0.0", f"{2**63}.0"])
def test_a_whole_number_is_one_id_however_a_program_wrote_it(tmp_path: Path, block_bytes: int, last: str) -> None:
    path = write(tmp_path / "t.csv", DECIMAL + (f"{last},d\n" if last else ""))
    found = opened("table", path=path, block_bytes=block_bytes)
    users = {"": [7, -12], "0.0": [7, -12, 0], "7": [7, -12, 7], " 7 ": [7, -12, 7]}
    text = ["7", "-12", str(2**63) if last == f"{2**63}.0" else last]
    assert content(found)["user"] == users.get(last, text)
    assert (found.bad.guests, found.bad.total) == (1, 0)


def test_one_id_in_all_files(tmp_path: Path) -> None:
    for number, line in enumerate(("8.0,d", "9,d", "x,d", "7.0,d"), 2):
        write(tmp_path / f"log-{number}.csv", f"user,item\n{line}\n")
    write(tmp_path / "log-1.csv", DECIMAL)
    found = opened("table", path=str(tmp_path / "log-*.csv"))
    assert content(found)["user"] == ["7", "-12", "8", "9", "x", "7"]


def test_bad_lines_and_guests_are_counted_once(tmp_path: Path) -> None:
    found = opened("table", path=write(tmp_path / "t.csv", DECIMAL + "1\n7.0,\n\n"))
    assert (content(found)["user"], found.bad.guests) == ([7, -12], 1)
    kinds = ["item is missing", "wrong number of fields", "empty line"]
    assert found.bad.counts == dict.fromkeys(kinds, 1)


@pytest.mark.parametrize("block_bytes", [7, 1 << 20])
def test_titles_from_a_column_of_the_log(tmp_path: Path, block_bytes: int) -> None:
    rows = ["1,9,", "1,3, Three ", "2,9,Nine", "2,9,Neun", ",3,none: a guest", "1,4,", "2,x,Ix", "3,3,Drei"]
    path = write(tmp_path / "t.csv", "user,item,name\n" + "\n".join(rows))
    found = opened("table", path=path, title_column="name", block_bytes=block_bytes)
    assert found.item_titles("", dtype=pl.String()).rows() == []  # type: ignore[union-attr]
    assert content(found) == {"user": [1, 1, 2, 2, 1, 2, 3], "item": ["9", "3", "9", "9", "4", "x", "3"]}
    titles = found.item_titles("", dtype=pl.String())
    assert titles is not None
    assert sorted(titles.rows()) == [("3", "Three"), ("9", "Nine"), ("x", "Ix")]
    assert found.bad.guests == 1


@pytest.mark.parametrize("text_first", [True, False])
def test_ids_that_are_text_in_one_file_are_so_in_all(tmp_path: Path, text_first: bool) -> None:
    names = ("a", "b") if text_first else ("b", "a")
    write(tmp_path / f"{names[0]}.csv", "user,item\nx,1\n")
    pl.DataFrame({"user": [7], "item": [2]}).write_parquet(tmp_path / f"{names[1]}.parquet")
    found = content(opened("table", path=str(tmp_path / "[ab].*")))
    assert found == {"user": ["x", "7"] if text_first else ["7", "x"], "item": [1, 2] if text_first else [2, 1]}


ROWS = [("a", "9", 70), ("a", "3", 60), ("b", "x,y", 50), ("c", "3", 40)]
FOUND = {"user": ["a", "a", "b", "c"], "item": ["9", "3", "x,y", "3"], "time": [70, 60, 50, 40]}


def lines(separator: str, *, quoted: bool = False) -> str:
    shown = [(user, f'"{item}"' if quoted else item, str(time)) for user, item, time in ROWS]
    return "".join(separator.join(row) + "\n" for row in [("user", "item", "at"), *shown])


@pytest.mark.parametrize(
    ("name", "content_of_file"),
    [
        ("t.csv", lines(",", quoted=True).encode()), ("t.csv", lines("::").encode()),
        ("t.csv.gz", gzip.compress(lines(",", quoted=True).encode(), mtime=0)),
        ("t.csv", b"".join(gzip.compress(part.encode(), mtime=0) for part in (lines("\t")[:20], lines("\t")[20:]))),
        ("t.tsv.zst", pa.compress(lines("\t").encode(), codec="zstd", asbytes=True)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("block_bytes", [7, 1 << 20])
def test_every_kind_of_text_file_gives_the_same_rows(
    tmp_path: Path, name: str, content_of_file: bytes, block_bytes: int
) -> None:
    (tmp_path / name).write_bytes(content_of_file)
    assert content(open_table(tmp_path / name, block_bytes=block_bytes)) == FOUND
    assert content(open_table(tmp_path)) == FOUND


def test_a_pattern_names_several_files_of_any_kind_in_the_order_of_their_names(tmp_path: Path) -> None:
    table = pl.DataFrame(ROWS, schema=["user", "item", "at"], orient="row")
    table[:1].write_csv(tmp_path / "log-1.csv")
    table[1:2].write_csv(tmp_path / "log-2.tsv", separator="\t")
    table[2:3].write_parquet(tmp_path / "log-3")
    (tmp_path / "log-4.gz").write_bytes(gzip.compress(table[3:].write_csv().encode()))
    found = open_table(tmp_path / "log-*")
    assert content(found) == FOUND
    assert [done for _, done in found][-1] == found.n_bytes == sum(file.stat().st_size for file in tmp_path.iterdir())


@pytest.mark.parametrize(("names", "path"), [(["a.csv"], "b*.csv"), (["a.csv", "b.csv"], ""), ([], ""), ([], "t.csv")])
def test_what_is_not_there_is_refused(tmp_path: Path, names: list[str], path: str) -> None:
    for name in names:
        write(tmp_path / name, "user,item\n1,2\n")
    with pytest.raises(DataError, match=str(tmp_path)):
        opened("table", path=str(tmp_path / path))


@pytest.mark.parametrize(
    "columns", [{"title_column": "user"}, {"title_column": "item"}, {"title_column": "at"}, {"item_column": "user"}]
)
def test_one_column_for_two_fields_is_refused(tmp_path: Path, columns: dict[str, str]) -> None:
    named = {"user_column": "user", "item_column": "item", "time_column": "at"} | columns
    with one_line("--user, --item"):
        opened("table", path=write(tmp_path / "t.csv", "user,item,at\n1,2,3\n"), **named)


def test_only_goodreads_knows_what_was_read(tmp_path: Path) -> None:
    write(tmp_path / "goodreads_interactions.csv", "user_id,book_id,is_read,rating\r\n1,9,1,5\r\n1,3,0,0\r\n")
    found = opened("goodreads", path=str(tmp_path))
    assert content(found) == {"user": [1, 1], "item": [9, 3], "rating": [5.0, 0.0]}
    found = opened("goodreads", path=str(tmp_path), only_read=True)
    assert content(found) == {"user": [1, 1], "item": [9, 3], "rating": [5.0, 0.0], "is_read": [True, False]}
    with pytest.raises(DataError, match="only_read"):
        opened("ml-1m", path=str(tmp_path), only_read=True)


OWN = {"source": "table", "user_column": "who", "item_column": "what", "time_column": "at"}


def history_rows(path: str, *, is_named: bool = False, **data: Any) -> list[tuple[Any, ...]]:
    found = open_histories(path, Data(**data), Preprocessing(), is_named=is_named)
    rows = pl.concat([rows for rows, _ in found])
    return rows.select([name for name in ("user", "item", "time") if name in rows.columns]).rows()


@pytest.mark.parametrize(
    ("text", "data", "rows"),
    [
        ("who,what,at,stars\nu,a,9,x\nv,b,7,\n", {}, [("u", "a", 9), ("v", "b", 7)]),
        ("user,item,time,stars\nu,a,9,x\nv,b,7,\n", {}, [("u", "a", 9), ("v", "b", 7)]),  # the usual names
        ("who,what,at\nu,a,02/01/1970\n", {"time_format": "%d/%m/%Y"}, [("u", "a", 86_400)]),
        (
            "u;a;9\nv;b;7\n", {"user_column": "1", "item_column": "2", "time_column": "3", "has_header": False},
            [("u", "a", 9), ("v", "b", 7)],
        ),
    ],
)  # fmt: skip
def test_a_file_is_read_as_the_data_were(tmp_path: Path, text: str, data: dict[str, Any], rows: list[object]) -> None:
    assert history_rows(write(tmp_path / "x.csv", text), **OWN | data) == rows


@pytest.mark.parametrize("source", ["ml-1m", "synthetic"])
def test_a_file_that_a_preparation_recognizes(tmp_path: Path, source: str) -> None:
    path = write(tmp_path / "ratings.dat", "1::9::5::70\n1::3::4::60\n")
    assert history_rows(path, source=source) == [(1, 9, 70), (1, 3, 60)]
    path = write(tmp_path / "x.csv", "user,item\n1,9\n")
    assert history_rows(path, source=source) == [(1, 9)]


def test_data_that_stand_newest_first(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", "user_id,book_id,is_read,rating\n1,9,1,5\n")
    usual = write(tmp_path / "y.csv", "user,item\n1,9\n")
    for file, source in ((path, "goodreads"), (usual, "ml-1m")):
        found = open_histories(file, Data(source=source), Preprocessing(), is_named=False)
        assert found.newest_first == (source == "goodreads")


def test_columns_that_are_named_are_the_only_ones(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", "user,item,time,customer\nu,a,9,c\n")
    assert history_rows(path, is_named=True, source="table", user_column="customer") == [("c", "a", 9)]
    for field in ("user", "time"):
        with one_line("", "buyer"):
            history_rows(path, is_named=True, source="table", **{f"{field}_column": "buyer"})


TITLES = {"item": [3, 9], "title": ["Amélie (2001)", "Heat, The: a::b"]}


@pytest.mark.parametrize(
    ("source", "data", "rows", "name", "text", "encoding"),
    [
        (
            "ml-100k", "u.data", "1\t9\t5\t7\n1\t3\t5\t7\n",
            "u.item", "3|Amélie (2001)|x|y\n9|Heat, The: a::b||\n", "latin-1",
        ),
        *[
            ("ml-1m", "ratings.dat", "1::9::5::7\n", "movies.dat", "3::Amélie (2001)::Comedy\n9::Heat::x\n", encoding)
            for encoding in ("latin-1", "utf-8")
        ],
        (
            "ml-25m", "ratings.csv", "userId,movieId,rating,timestamp\n1,9,1,7\n",
            "movies.csv", 'movieId,title,genres\n3,Amélie (2001),x\n9,"Heat, The: a::b",y\n', "utf-8",
        ),
    ],
)  # fmt: skip
def test_titles_beside_movielens_data(
    tmp_path: Path, source: str, data: str, rows: str, name: str, text: str, encoding: str
) -> None:
    write(tmp_path / data, rows)
    write(tmp_path / name, text, encoding)
    found = opened(source, path=str(tmp_path)).item_titles("", dtype=pl.Int64())
    expected = {**TITLES, "title": [TITLES["title"][0], "Heat"]} if name == "movies.dat" else TITLES
    assert found is not None
    assert found.to_dict(as_series=False) == expected


def test_titles_of_other_sources_are_named_and_get_the_type_of_the_items(tmp_path: Path) -> None:
    data = write(tmp_path / "a.txt", "1 x7\n1 8\n")
    titles = write(tmp_path / "titles.csv", 'title,item\n"One, two",8\nThree,x7\n')
    interactions = opened("sequences", path=data)
    assert interactions.item_titles("", dtype=pl.String()) is None
    found = interactions.item_titles(titles, dtype=pl.String())
    assert found is not None
    assert found.rows() == [("8", "One, two"), ("x7", "Three")]


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
    assert [titles.rows() for titles in found if titles is not None] == [[(1, "One")], [(7, "Seven")]]
    assert read_titles("", beside=None, dtype=pl.Int64()) is None
