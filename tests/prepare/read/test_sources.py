import gzip
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from bert4rec.prepare.read.first_look import first_of_other_columns, first_rows
from bert4rec.prepare.read.interactions import Interactions
from bert4rec.prepare.read.times import TimeUnit
from bert4rec.runtime.errors import DataError
from tests.prepare.files.log import opened

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


def test_goodreads_has_ratings_and_no_time(tmp_path: Path) -> None:
    write(
        tmp_path / "goodreads_interactions.csv",
        "user_id,book_id,is_read,rating,is_reviewed\r\n1,9,1,5,0\r\n1,3,0,0,0\r\n",
    )
    found = opened("goodreads", path=str(tmp_path))
    assert content(found) == {"user": [1, 1], "item": [9, 3], "rating": [5.0, 0.0]}


@pytest.mark.parametrize(
    "text",
    ["1 9\n1 3\n20 9\n", "1\t9\n1\t3\n20\t9", "\ufeff1 9 \r\n1  3\r\n20 \t9\r\n", "1 9 3\n20 9\n", "1\t9\t3\n20\t9\n"],
)
def test_sequences_as_pairs_and_as_users_with_their_items(tmp_path: Path, text: str) -> None:
    assert content(opened("sequences", path=write(tmp_path / "ml-1m.txt", text))) == USER_ITEM
    assert content(opened("sequences", path=str(tmp_path))) == USER_ITEM


def test_ids_are_text_where_one_of_the_column_is_not_a_canonical_number(tmp_path: Path) -> None:
    found = opened("sequences", path=write(tmp_path / "a.txt", "7 a\n8 12\n"))
    assert content(found) == {"user": [7, 8], "item": ["a", "12"]}
    found = opened("sequences", path=write(tmp_path / "b.txt", "07 1\n8 12\n"))
    assert content(found) == {"user": ["07", "8"], "item": [1, 12]}


COLUMNS = {"user_column": "who", "item_column": "what", "time_column": "when", "rating_column": "stars"}


@pytest.mark.parametrize("ids", [[9, 3, -4], ["9", "3", "-4"], ["b", "3", "é x"], ["007", "7", "70"]])
def test_the_same_table_as_csv_and_as_parquet_is_the_same(tmp_path: Path, ids: list[object]) -> None:
    table = pl.DataFrame(
        {"junk": ["x,y", 'a"b', None], "what": ids, "who": [1, 1, 2], "when": [3, 5, 4], "stars": [1.5, 2, 3]},
        strict=False,
    )
    table.write_csv(tmp_path / "t.csv")
    table.write_parquet(tmp_path / "t.parquet")
    csv, parquet = (opened("table", path=str(tmp_path / name), **COLUMNS) for name in ("t.csv", "t.parquet"))
    assert frame(csv).equals(frame(parquet))
    assert frame(csv).schema == frame(parquet).schema
    whole = all(str(value).lstrip("-").isdigit() and str(int(str(value))) == str(value) for value in ids)
    assert content(csv)["item"] == ([int(str(value)) for value in ids] if whole else ids)


@pytest.mark.parametrize(
    ("times", "seconds"),
    [
        ([1.9, 0.5], [1, 0]),
        ([date(1970, 1, 2), date(2001, 9, 9)], [86400, 999_993_600]),
        ([datetime(1970, 1, 1, 0, 0, 7, 999_999), datetime(2001, 9, 9, 1, 46, 40)], [7, 1_000_000_000]),
        ([datetime(1970, 1, 1, 0, 0, 7, tzinfo=UTC), datetime(2001, 9, 9, 1, 46, 40, tzinfo=UTC)], [7, 1_000_000_000]),
        (["12", "13.5"], [12, 13]),
        (["2001-09-09T01:46:40Z", "2001-09-09 01:46:40.9"], [1_000_000_000, 1_000_000_000]),
        (["2001-09-09T03:46:40+02:00", "2001-09-09"], [1_000_000_000, 999_993_600]),
    ],
)
def test_times_become_whole_seconds(tmp_path: Path, times: list[object], seconds: list[int]) -> None:
    pl.DataFrame({"user": [1, 2], "item": [3, 4], "t": times}).write_parquet(tmp_path / "t.pq")
    assert content(opened("table", path=str(tmp_path), time_column="t"))["time"] == seconds


def test_categories_are_text_whatever_their_codes(tmp_path: Path) -> None:
    table = pl.DataFrame({"user": ["b", "a"], "item": ["5", "4"]}, schema=dict.fromkeys(USER_ITEM, pl.Categorical))
    table.write_parquet(tmp_path / "t.parquet")
    found = opened("table", path=str(tmp_path))
    assert content(found) == {"user": ["b", "a"], "item": [5, 4]}


@pytest.mark.parametrize("names", [("line", "text"), ("line number", "bad field"), ("item", "user"), ("title", "time")])
def test_a_column_may_bear_any_name(tmp_path: Path, names: tuple[str, str]) -> None:
    user, item = names
    file = write(tmp_path / "t.csv", f"{user},{item},line number 2\n1,2,3\n,5,6\n")
    found = opened("table", path=file, user_column=user, item_column=item)
    assert content(found) == {"user": [1], "item": [2]}
    assert found.bad.shown == [f"{file}, line 3: {user} is missing"]
    assert first_of_other_columns(found).to_dict(as_series=False) == {"line number 2": ["3", "6"]}


DECIMAL = "user,item\n7.0,a\n,b\n-12.0,c\n"


@pytest.mark.parametrize("block_bytes", [7, 1 << 20])
@pytest.mark.parametrize(
    ("last", "users"),
    [
        ("", [7, -12]),
        ("0.0,d\n", [7, -12, 0]),
        *[(f"{last},d\n", ["7.0", "-12.0", last]) for last in ("7", "7.5", "x", "07.0", "-0.0", f"{2**63}.0")],
    ],
)  # fmt: skip
def test_ids_that_pandas_wrote_as_decimals_are_whole_numbers_where_all_of_the_column_are_so(
    tmp_path: Path, block_bytes: int, last: str, users: list[object]
) -> None:
    path = write(tmp_path / "t.csv", DECIMAL + last)
    found = opened("table", path=path, block_bytes=block_bytes)
    assert content(found)["user"] == users
    assert frame(found)["user"].dtype == (pl.String if isinstance(users[0], str) else pl.Int64)
    assert set(found.bad.counts) == {"user is missing"}


@pytest.mark.parametrize(("last", "first"), [("8.0", 7), ("8", "7.0")])
def test_the_first_rows_are_shown_as_all_are_read(tmp_path: Path, last: str, first: object) -> None:
    path = write(tmp_path / "t.csv", "user,item\n" + "7.0,a\n" * 200_000 + f"{last},b\n")
    found = opened("table", path=path)
    assert first_rows(found).rows() == [(first, "a")] * 1000
    assert frame(found)["user"][0] == first


def test_ids_are_decimals_in_all_files_or_text(tmp_path: Path) -> None:
    write(tmp_path / "log-1.csv", DECIMAL)
    write(tmp_path / "log-2.csv", "user,item\n8.0,d\n")
    found = opened("table", path=str(tmp_path / "log-*.csv"))
    assert content(found)["user"] == [7, -12, 8]
    write(tmp_path / "log-3.csv", "user,item\n9,d\n")
    found = opened("table", path=str(tmp_path / "log-*.csv"))
    assert content(found)["user"] == ["7.0", "-12.0", "8.0", "9"]


def test_ids_that_stay_as_they_are_written(tmp_path: Path) -> None:
    found = opened("table", path=write(tmp_path / "t.csv", "user,item\n7.0,1.0\n"), text_ids={"item"})
    assert content(found) == {"user": [7], "item": ["1.0"]}


def test_bad_lines_do_not_count_twice_where_the_ids_are_looked_at_beforehand(tmp_path: Path) -> None:
    found = opened("table", path=write(tmp_path / "t.csv", DECIMAL + "1\n7.0,\n\n"))
    assert content(found)["user"] == [7, -12]
    assert found.bad.counts == {
        "user is missing": 1, "item is missing": 1, "wrong number of fields": 1, "empty line": 1,
    }  # fmt: skip


def test_floating_point_ids_of_a_parquet_file_are_those_of_the_same_table_as_csv(tmp_path: Path) -> None:
    table = pd.DataFrame({"user": [7.0, None, -12.0], "item": ["a", "b", "c"]})
    table.to_parquet(tmp_path / "t.parquet")
    table.to_csv(tmp_path / "t.csv", index=False)
    csv, parquet = (opened("table", path=str(tmp_path / name)) for name in ("t.csv", "t.parquet"))
    assert content(csv) == content(parquet) == {"user": [7, -12], "item": ["a", "c"]}
    assert parquet.bad.shown == [f"{tmp_path}/t.parquet, row 2: user is missing"]


@pytest.mark.parametrize("block_bytes", [7, 1 << 20])
def test_titles_from_a_column_of_the_log(tmp_path: Path, block_bytes: int) -> None:
    rows = ["1,9,", "1,3, Three ", "2,9,Nine", "2,9,Neun", ",3,none: a bad row", "1,4,", "2,x,Ix", "3,3,Drei"]
    path = write(tmp_path / "t.csv", "user,item,name\n" + "\n".join(rows))
    found = opened("table", path=path, title_column="name", block_bytes=block_bytes)
    assert found.item_titles("", dtype=pl.String()).rows() == []  # type: ignore[union-attr]
    assert content(found) == {
        "user": [1, 1, 2, 2, 1, 2, 3], "item": ["9", "3", "9", "9", "4", "x", "3"],
    }  # fmt: skip
    titles = found.item_titles("", dtype=pl.String())
    assert titles is not None
    assert sorted(titles.rows()) == [("3", "Three"), ("9", "Nine"), ("x", "Ix")]
    assert found.bad.counts == {"user is missing": 1}


@pytest.mark.parametrize("column", ["user", "item", "at"])
def test_a_title_column_that_is_another_field_is_refused(tmp_path: Path, column: str) -> None:
    path = write(tmp_path / "t.csv", "user,item,at\n1,2,3\n")
    with pytest.raises(DataError, match=f'data.title_column = "{column}": this column is another field already'):
        opened("table", path=path, time_column="at", title_column=column)


@pytest.mark.parametrize("text_first", [True, False])
def test_ids_that_are_text_in_one_file_are_so_in_all(tmp_path: Path, text_first: bool) -> None:
    names = ("a", "b") if text_first else ("b", "a")
    write(tmp_path / f"{names[0]}.csv", "user,item\nx,1\n")
    pl.DataFrame({"user": [7], "item": [2]}).write_parquet(tmp_path / f"{names[1]}.parquet")
    found = content(opened("table", path=str(tmp_path / "[ab].*")))
    assert found == {"user": ["x", "7"] if text_first else ["7", "x"], "item": [1, 2] if text_first else [2, 1]}


def test_one_column_for_two_fields_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "user,item\n1,2\n")
    with pytest.raises(DataError, match="one column is named twice"):
        opened("table", path=path, item_column="user")


ROWS = [("a", "9", 70), ("a", "3", 60), ("b", "x,y", 50), ("c", "3", 40)]
FOUND = {"user": ["a", "a", "b", "c"], "item": ["9", "3", "x,y", "3"], "time": [70, 60, 50, 40]}


def lines(separator: str, *, quoted: bool = False, header: bool = True) -> str:
    shown = [(user, f'"{item}"' if quoted else item, str(time)) for user, item, time in ROWS]
    return "".join(separator.join(row) + "\n" for row in [("user", "item", "at")] * header + shown)


@pytest.mark.parametrize(
    ("name", "content_of_file"),
    [
        ("t.csv", lines(",", quoted=True).encode()),
        ("t.tsv", lines("\t").encode()),
        ("t.csv", lines("::").encode()),
        ("t.csv", lines(";").encode()),
        ("t.csv.gz", gzip.compress(lines(",", quoted=True).encode(), mtime=0)),
        ("t.csv", b"".join(gzip.compress(part.encode(), mtime=0) for part in (lines("\t")[:20], lines("\t")[20:]))),
        ("t.tsv.zst", pa.compress(lines("\t").encode(), codec="zstd", asbytes=True)),
    ],
)
@pytest.mark.parametrize("block_bytes", [7, 1 << 20])
def test_every_kind_of_text_file_gives_the_same_rows(
    tmp_path: Path, name: str, content_of_file: bytes, block_bytes: int
) -> None:
    (tmp_path / name).write_bytes(content_of_file)
    assert content(open_table(tmp_path / name, block_bytes=block_bytes)) == FOUND
    assert content(open_table(tmp_path)) == FOUND


@pytest.mark.parametrize("separator", ["\t", "::", ";", "|"])
def test_a_table_without_a_header_has_numbered_columns(tmp_path: Path, separator: str) -> None:
    file = write(tmp_path / "t.csv", lines(separator, header=False))
    found = opened(
        "table", path=file, separator=separator.replace("\t", "\\t"), has_header=False, user_column="1",
        item_column="2", time_column="3",
    )  # fmt: skip
    assert content(found) == FOUND


def test_a_pattern_names_several_files_of_any_kind_in_the_order_of_their_names(tmp_path: Path) -> None:
    table = pl.DataFrame(ROWS, schema=["user", "item", "at"], orient="row")
    table[:1].write_csv(tmp_path / "log-1.csv")
    table[1:2].write_csv(tmp_path / "log-2.tsv", separator="\t")
    table[2:3].write_parquet(tmp_path / "log-3")
    (tmp_path / "log-4.gz").write_bytes(gzip.compress(table[3:].write_csv().encode()))
    found = open_table(tmp_path / "log-*")
    assert content(found) == FOUND
    assert [done for _, done in found][-1] == found.n_bytes == sum(file.stat().st_size for file in tmp_path.iterdir())


@pytest.mark.parametrize(
    ("unit", "times", "seconds"),
    [
        ("auto", [1_700_000_000, 0], [1_700_000_000, 0]),
        ("auto", [1_700_000_000_999, 1_600_000_000_000], [1_700_000_000, 1_600_000_000]),
        ("auto", [1_700_000_000_999_999, 1_600_000_000_000_000], [1_700_000_000, 1_600_000_000]),
        ("ms", [1999, 86_400_000], [1, 86_400]),
        ("s", [1_700_000_000, 9_999_999_999], [1_700_000_000, 9_999_999_999]),
    ],
)
def test_numbers_are_times_in_their_unit(tmp_path: Path, unit: TimeUnit, times: list[int], seconds: list[int]) -> None:
    pl.DataFrame({"user": [1, 2], "item": [3, 4], "t": times}).write_csv(tmp_path / "t.csv")
    found = opened("table", path=str(tmp_path), time_column="t", time_unit=unit)
    assert content(found)["time"] == seconds


@pytest.mark.parametrize("large", [2**63 - 1, 2**63, 10**30])
def test_ids_of_any_size(tmp_path: Path, large: int) -> None:
    found = opened("table", path=write(tmp_path / "t.csv", f"user,item\n{large},1\n7,2\n"))
    assert content(found)["user"] == ([large, 7] if large < 2**63 else [str(large), "7"])


@pytest.mark.parametrize(
    ("names", "path", "message"),
    [
        (["a.csv"], "b*.csv", "no file fits this pattern"),
        (["a.csv", "b.csv"], "", r"found: a.csv, b.csv; name it in data.path"),
        ([], "", "found: none"),
        ([], "t.csv", "No such file or directory; correct data.path"),
    ],
)
def test_what_is_not_there_is_refused(tmp_path: Path, names: list[str], path: str, message: str) -> None:
    for name in names:
        write(tmp_path / name, "user,item\n1,2\n")
    with pytest.raises(DataError, match=message):
        opened("table", path=str(tmp_path / path))


def test_only_goodreads_knows_what_was_read(tmp_path: Path) -> None:
    write(tmp_path / "goodreads_interactions.csv", "user_id,book_id,is_read,rating\n1,9,1,5\n1,3,0,0\n")
    found = opened("goodreads", path=str(tmp_path), only_read=True)
    assert content(found) == {"user": [1, 1], "item": [9, 3], "rating": [5.0, 0.0], "is_read": [True, False]}
    with pytest.raises(DataError, match="only the source goodreads has is_read"):
        opened("ml-1m", path=str(tmp_path), only_read=True)
