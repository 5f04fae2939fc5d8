"""Item titles: from the files beside MovieLens data, from a file that is named, from a column in parts."""

from pathlib import Path

import polars as pl
import pytest

from bert4rec.prepare.read.titles import read_titles
from bert4rec.runtime.errors import DataError
from tests.prepare.files.log import opened

TITLES = {"item": [3, 9], "title": ["Amélie (2001)", "Heat, The: a::b"]}


def write(path: Path, text: str, encoding: str = "utf-8") -> str:
    path.write_bytes(text.encode(encoding))
    return str(path)


@pytest.mark.parametrize(
    ("source", "data", "rows", "name", "text", "encoding"),
    [
        (
            "ml-100k", "u.data", "1\t9\t5\t7\n1\t3\t5\t7\n",
            "u.item", "3|Amélie (2001)|x|y\n9|Heat, The: a::b|||\n", "latin-1",
        ),
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
        opened("sequences", path=data).item_titles(titles, dtype=pl.Int64())


def test_a_file_that_is_named_goes_before_those_beside_the_data(tmp_path: Path) -> None:
    write(tmp_path / "movies.csv", "movieId,title\n1,One\n")
    write(tmp_path / "u.item", "1|Uno|x\n")
    named = write(tmp_path / "n.item", "7|Seven|x\n")
    found = [read_titles(path, beside=tmp_path, dtype=pl.Int64()) for path in ("", named)]
    assert [titles.rows() for titles in found if titles is not None] == [[(1, "One")], [(7, "Seven")]]
    assert read_titles("", beside=None, dtype=pl.Int64()) is None


def test_a_file_of_titles_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        read_titles(str(tmp_path / "t.csv"), beside=None, dtype=pl.Int64())
    assert str(caught.value) == f"{tmp_path / 't.csv'}: no such file; correct data.titles_path"
