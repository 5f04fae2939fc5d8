from datetime import UTC, date, datetime
from pathlib import Path

import polars as pl
import pytest

from bert4rec.errors import DataError
from bert4rec.prepare.sources import Interactions, read_interactions

USER_ITEM = {"user": [1, 1, 20], "item": [9, 3, 9]}


def content(interactions: Interactions) -> dict[str, list[object]]:
    return interactions.frame.collect().to_dict(as_series=False)


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
    found = read_interactions(source, path=str(tmp_path) if whole_folder else file)
    assert content(found) == {**USER_ITEM, "time": [70, 60, 50], "rating": [5.0, 4.0, 1.0]}
    assert dict(found.frame.collect_schema()) == {
        "user": pl.Int64, "item": pl.Int64, "time": pl.Int64, "rating": pl.Float32,
    }  # fmt: skip
    assert (found.n_rows, found.n_users, found.n_items, found.titles) == (3, 2, 2, None)


def test_goodreads_has_ratings_and_no_time(tmp_path: Path) -> None:
    write(
        tmp_path / "goodreads_interactions.csv",
        "user_id,book_id,is_read,rating,is_reviewed\r\n1,9,1,5,0\r\n1,3,0,0,0\r\n",
    )
    found = read_interactions("goodreads", path=str(tmp_path))
    assert content(found) == {"user": [1, 1], "item": [9, 3], "rating": [5.0, 0.0]}


@pytest.mark.parametrize(
    "text",
    ["1 9\n1 3\n20 9\n", "1\t9\n1\t3\n20\t9", "\ufeff1 9 \r\n1  3\r\n20 \t9\r\n", "1 9 3\n20 9\n", "1\t9\t3\n20\t9\n"],
)
def test_sequences_as_pairs_and_as_users_with_their_items(tmp_path: Path, text: str) -> None:
    assert content(read_interactions("sequences", path=write(tmp_path / "ml-1m.txt", text))) == USER_ITEM
    assert content(read_interactions("sequences", path=str(tmp_path))) == USER_ITEM


def test_ids_are_text_where_one_of_the_column_is_not_a_canonical_number(tmp_path: Path) -> None:
    found = read_interactions("sequences", path=write(tmp_path / "a.txt", "7 a\n8 12\n"))
    assert content(found) == {"user": [7, 8], "item": ["a", "12"]}
    found = read_interactions("sequences", path=write(tmp_path / "b.txt", "07 1\n8 12\n"))
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
    csv, parquet = (read_interactions("table", path=str(tmp_path / name), **COLUMNS) for name in ("t.csv", "t.parquet"))
    assert csv.frame.collect().equals(parquet.frame.collect())
    assert csv.frame.collect_schema() == parquet.frame.collect_schema()
    whole = all(str(value).lstrip("-").isdigit() and str(int(str(value))) == str(value) for value in ids)
    assert content(csv)["item"] == ([int(str(value)) for value in ids] if whole else ids)


@pytest.mark.parametrize(
    ("times", "seconds"),
    [
        ([1.9, -0.5], [1, -1]),
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
    assert content(read_interactions("table", path=str(tmp_path), time_column="t"))["time"] == seconds


def test_categories_are_text_whatever_their_codes(tmp_path: Path) -> None:
    table = pl.DataFrame({"user": ["b", "a"], "item": ["5", "4"]}, schema=dict.fromkeys(USER_ITEM, pl.Categorical))
    table.write_parquet(tmp_path / "t.parquet")
    found = read_interactions("table", path=str(tmp_path))
    assert content(found) == {"user": ["b", "a"], "item": [5, 4]}


def test_a_column_may_bear_any_name(tmp_path: Path) -> None:
    file = write(tmp_path / "t.csv", "line,text\n1,2\n")
    assert content(read_interactions("table", path=file, user_column="line", item_column="text")) == {
        "user": [1], "item": [2],
    }  # fmt: skip


TITLES = {"item": [3, 9], "title": ["Amélie (2001)", "Heat, The: a::b"]}


@pytest.mark.parametrize(
    ("source", "data", "rows", "name", "text", "encoding"),
    [
        ("ml-100k", "u.data", "1\t9\t5\t7\n", "u.item", "3|Amélie (2001)|x|y\n9|Heat, The: a::b|||\n", "latin-1"),
        ("ml-1m", "ratings.dat", "1::9::5::7\n", "movies.dat", "3::Amélie (2001)::Comedy\n9::Heat::x\n", "latin-1"),
        ("ml-1m", "ratings.dat", "1::9::5::7\n", "movies.dat", "3::Amélie (2001)::Comedy\n9::Heat::x\n", "utf-8"),
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
    found = read_interactions(source, path=str(tmp_path)).titles
    expected = {**TITLES, "title": [TITLES["title"][0], "Heat"]} if name == "movies.dat" else TITLES
    assert found is not None
    assert found.to_dict(as_series=False) == expected


def test_titles_of_other_sources_are_named_and_get_the_type_of_the_items(tmp_path: Path) -> None:
    data = write(tmp_path / "a.txt", "1 x7\n1 8\n")
    titles = write(tmp_path / "titles.csv", 'title,item\n"One, two",8\nThree,x7\n')
    assert read_interactions("sequences", path=data).titles is None
    found = read_interactions("sequences", path=data, titles_path=titles).titles
    assert found is not None
    assert found.rows() == [("8", "One, two"), ("x7", "Three")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,item\na,1\n", 'need the columns "item" and "title"'),
        ("item,title\nx,One\n", 'item "x", title "One": every title needs an item id like those of the data'),
        ("item,title\n1,One\n1,Two\n", 'item "1" stands there twice'),
    ],
)
def test_bad_titles_are_refused(tmp_path: Path, text: str, message: str) -> None:
    data, titles = write(tmp_path / "a.txt", "1 7\n"), write(tmp_path / "t.csv", text)
    with pytest.raises(DataError, match=message):
        read_interactions("sequences", path=data, titles_path=titles)


def test_one_column_for_two_fields_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "user,item\n1,2\n")
    with pytest.raises(DataError, match="one column is named twice"):
        read_interactions("table", path=path, item_column="user")
