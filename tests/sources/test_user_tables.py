"""Lists and titles of items are read alike in every form in which a user may have them."""

import csv
import gzip
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert4rec.commands.recommend import as_table, split_items
from bert4rec.runtime.console import visible
from bert4rec.runtime.errors import SettingsError
from bert4rec.sources.first_look import first_look
from bert4rec.sources.interactions import read_titles
from bert4rec.sources.user_tables import read_item_list
from tests.checks import one_line
from tests.sources.log import opened

ITEMS = ["Rook, Knight", "Plain", "1,000 Mines", 'say "hi"', "a;b|c d"]


def is_known(items: Sequence[Any]) -> list[bool]:
    return [item in ITEMS for item in items]


def listed(path: Path) -> list[Any]:
    return read_item_list(path, is_known, item_column="sku", setting="--deny")[0]


def csv_text(rows: Sequence[Sequence[str]], **options: Any) -> str:
    text = io.StringIO()
    csv.writer(text, **{"lineterminator": "\n"} | options).writerows(rows)
    return text.getvalue()


LINES = "".join(f"{item}\n" for item in ITEMS)
LISTS = {
    "plain": LINES, "quoted": csv_text([[item] for item in ITEMS]), "blank lines": LINES.replace("\n", "\n\n"),
    "all quoted": csv_text([[item] for item in ITEMS], quoting=csv.QUOTE_ALL), "returns": LINES.replace("\n", "\r\n"),
    "header": "item\n" + LINES, "log's header": "sku\n" + LINES, "mark": "\ufeff" + LINES, "cut": LINES.rstrip(),
    "quoted header": csv_text([["item"], *([item] for item in ITEMS)], quoting=csv.QUOTE_ALL),
    "table": csv_text([["why", "item"], *(("old", item) for item in ITEMS)]),
    "semicolons": csv_text([["sku", "why"], *((item, "x;y") for item in ITEMS)], delimiter=";"),
    "no header": csv_text([[item, "recalled"] for item in ITEMS]),
    "no header, second": csv_text([["x;y", item] for item in ITEMS], delimiter=";"),
    "json": "".join(json.dumps({"why": "old", "item": item}) + "\n" for item in ITEMS),
}  # fmt: skip


@pytest.mark.parametrize("form", LISTS)
@pytest.mark.parametrize("packed", [False, True])
def test_a_list_of_items_is_the_same_in_every_form(tmp_path: Path, form: str, packed: bool) -> None:
    path = tmp_path / ("list.gz" if packed else "list")
    text = LISTS[form].encode()
    path.write_bytes(gzip.compress(text) if packed else text)
    assert listed(path) == ITEMS


def test_a_list_may_be_a_parquet_file(tmp_path: Path) -> None:
    pl.DataFrame({"n": [1] * len(ITEMS), "sku": ITEMS}).write_parquet(tmp_path / "list")
    assert listed(tmp_path / "list") == ITEMS


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"item,why\nPlain,x,y\n", ["line 2", "3 fields"]), (LINES.encode("utf-16"), ["UTF-16"]),
        (b"\x89PNG\r\n\0\0", ["is not text"]), ("Plain\nCafé\n".encode("latin-1"), ["line 2", "UTF-8"]),
        (b"a,b\nx,y\n", ["a, b", "rename"]),
    ],
)  # fmt: skip
def test_a_list_that_cannot_be_read_is_refused(tmp_path: Path, text: bytes, words: list[str]) -> None:
    (tmp_path / "list.csv").write_bytes(text)
    with one_line(str(tmp_path / "list.csv"), *words):
        listed(tmp_path / "list.csv")


TITLES = {"item": ["a", "b,c"], "title": ["One, two", 'Say "x"']}
TABLES = {
    "t.csv": csv_text([[*TITLES], *zip(*TITLES.values(), strict=True)]),
    "t.tsv": csv_text([[*TITLES], *zip(*TITLES.values(), strict=True)], delimiter="\t"),
    "name.csv": csv_text([["item", "name"], *zip(*TITLES.values(), strict=True)]),
    "sku.csv": csv_text([["title", "sku", "x"], *((two, one, "") for one, two in zip(*TITLES.values(), strict=True))]),
    "t.item": "item_id:token\ttitle:token_seq\na\tOne, two\nb,c\tSay \"x\"\n",
    "t.jsonl": pl.DataFrame(TITLES).write_ndjson(),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("packed", [False, True])
def test_titles_are_the_same_in_every_form(tmp_path: Path, name: str, packed: bool) -> None:
    if packed and name.endswith("item"):
        return
    path = tmp_path / (name + ".gz" * packed)
    path.write_bytes(gzip.compress(TABLES[name].encode()) if packed else TABLES[name].encode())
    titles = read_titles(str(path), beside=None, dtype=pl.String(), item_column="sku")
    assert titles is not None
    assert titles.to_dict(as_series=False) == TITLES


def test_titles_may_be_a_parquet_file_and_look_like_numbers(tmp_path: Path) -> None:
    pl.DataFrame({"item": [7, 300], "title": ["1984", "007"]}).write_parquet(tmp_path / "t")
    (tmp_path / "t.csv").write_text("item,title\n7,1984\n300,007\n")
    for name in ("t", "t.csv"):
        titles = read_titles(str(tmp_path / name), beside=None, dtype=pl.Int64())
        assert titles is not None
        assert titles.rows() == [(7, "1984"), (300, "007")]


@given(st.lists(st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1).map(str.strip).filter(bool)))
def test_items_of_the_command_line_are_those_that_csv_writes(items: list[str]) -> None:
    assert split_items(csv_text([items]).rstrip("\n")) == items


def test_items_of_the_command_line_may_have_blanks_between_them() -> None:
    assert split_items('a, "b, c",d,') == ["a", "b, c", "d"]
    with one_line('--items="a', error=SettingsError):
        split_items('"a')


@given(st.text())
def test_what_is_shown_has_no_control_character(text: str) -> None:
    shown = visible(text, keep="")
    assert not any(ord(letter) < 32 or 127 <= ord(letter) < 160 for letter in shown)
    shown.encode()
    assert visible(shown) == shown
    assert (shown == text) == (visible(text) == text and "\n" not in text)


def test_ids_titles_and_names_are_shown_without_control_characters(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from bert4rec.serving.recommender import Recommendation

    found = [Recommendation("a\x1b[2J", "two\r\nlines\u202e", 1.0), Recommendation("b", "", 0.5)]
    assert as_table(found) == "   1  a\\x1b[2J    1.0000  two\\r\\nlines\\u202e\n   2  b           0.5000"
    (tmp_path / "t.csv").write_text("user,item,who\nu\x07,i\x9b31m,x\n")
    lines, _ = first_look(opened("table", path=str(tmp_path / "t.csv"), user_column="user", item_column="item"))
    assert all(line.isprintable() for line in lines)
    assert "u\\x07" in lines[-1]


def test_a_decimal_comma_is_named_where_a_row_has_one_field_too_many(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("user,item,price\nu1,i1,3,50\nu1,i2,4.5\nu1,i3,x,y\n")
    found = opened("table", path=str(path), user_column="user", item_column="item")
    assert sum(len(rows) for rows, _ in found) == 1
    assert ['"3,50"' in line for line in found.bad.shown] == [True, False]


@pytest.mark.parametrize(("name", "text"), [
    ("several items on a line.csv", "Plain,a;b|c d,1\n"), ("values.jsonl", '"Plain"\n7\n'),
    ("lists.jsonl", '["Plain"]\n'), ("nothing.jsonl", "{}\n"),
])  # fmt: skip
def test_a_list_that_names_no_items_is_one_line(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with one_line(f"{path}: "):
        listed(path)
