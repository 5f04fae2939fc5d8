"""Files of histories: which columns are read, and which source."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from bert4rec.config.tables import Data, Preprocessing
from bert4rec.prepare.read.sources import open_histories
from bert4rec.runtime.errors import DataError

OWN = {"source": "table", "user_column": "who", "item_column": "what", "time_column": "at"}


def rows_of(path: Path, *, is_named: bool = False, **data: Any) -> list[tuple[Any, ...]]:
    found = open_histories(str(path), Data(**data), Preprocessing(), is_named=is_named)
    rows = pl.concat([rows for rows, _ in found])
    return rows.select([name for name in ("user", "item", "time") if name in rows.columns]).rows()


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize("columns", ["who,what,at,stars", "user,item,time,stars"])
def test_columns_are_those_of_the_data_or_the_usual_ones(tmp_path: Path, columns: str) -> None:
    path = write(tmp_path / "x.csv", f"{columns}\nu,a,9,x\nv,b,7,\n")
    assert rows_of(path, **OWN) == [("u", "a", 9), ("v", "b", 7)]


def test_the_time_format_is_that_of_the_data(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", "who,what,at\nu,a,02/01/1970\n")
    assert rows_of(path, **OWN, time_format="%d/%m/%Y") == [("u", "a", 86_400)]


def test_a_file_without_header_is_read_as_the_data_were(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", "u;a;9\nv;b;7\n")
    columns = {"user_column": "1", "item_column": "2", "time_column": "3", "has_header": False}
    assert rows_of(path, source="table", **columns) == [("u", "a", 9), ("v", "b", 7)]


@pytest.mark.parametrize("source", ["ml-1m", "synthetic"])
def test_a_file_that_a_preparation_recognizes(tmp_path: Path, source: str) -> None:
    path = write(tmp_path / "ratings.dat", "1::9::5::70\n1::3::4::60\n")
    assert rows_of(path, source=source) == [(1, 9, 70), (1, 3, 60)]
    path = write(tmp_path / "x.csv", "user,item\n1,9\n")
    assert rows_of(path, source=source) == [(1, 9)]


def test_data_that_stand_newest_first(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", "user_id,book_id,is_read,rating\n1,9,1,5\n")
    goodreads, other = Data(source="goodreads"), Data(source="ml-1m")
    settings = Preprocessing()
    assert open_histories(str(path), goodreads, settings, is_named=False).newest_first
    usual = write(tmp_path / "y.csv", "user,item\n1,9\n")
    assert not open_histories(str(usual), other, settings, is_named=False).newest_first


def test_columns_that_are_named_are_the_only_ones(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", "user,item,time,customer\nu,a,9,c\n")
    assert rows_of(path, is_named=True, source="table", user_column="customer") == [("c", "a", 9)]
    for column in ("user_column", "time_column"):
        with pytest.raises(DataError, match=r"no column buyer \((user|time)\); it has: user, item, time, customer"):
            rows_of(path, is_named=True, source="table", **{column: "buyer"})


def test_another_file_gets_the_options_that_name_its_columns(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", "customer,sku,at\nu,a,9\n")
    with pytest.raises(DataError, match=r"--data.user_column=customer --data.item_column=sku") as caught:
        rows_of(path)
    assert "\n" not in str(caught.value)
