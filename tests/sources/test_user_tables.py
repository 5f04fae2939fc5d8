"""Logs, histories, items, titles and lists of items are read alike in every form in which a user may have them."""

import csv
import gzip
import io
import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert4rec.commands.recommend import as_table, split_items
from bert4rec.config.tables import Data, Preprocessing
from bert4rec.dataset.ids import canonical_value
from bert4rec.runtime.console import visible
from bert4rec.runtime.errors import SettingsError
from bert4rec.sources.first_look import first_look
from bert4rec.sources.interactions import open_histories
from bert4rec.sources.item_features import read_item_file
from bert4rec.sources.user_tables import read_item_list, read_titles
from tests.checks import one_line
from tests.sources.log import opened

ITEMS = ["Rook, Knight", "Plain", "1,000 Mines", 'say "hi"', "a;b|c d"]


def is_known(items: Sequence[Any]) -> list[bool]:
    return [item in ITEMS for item in items]


def listed(path: Path) -> list[Any]:
    return read_item_list(path, is_known, item_column="sku")[0]


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


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("list.csv", b"item,why\nPlain,x,y\n", ["line 2", "3 fields"]), ("list.csv", b"\x89PNG\r\n\0\0", ["not text"]),
        ("list.csv", b"a,b\nx,y\n", ["a, b", "rename"]), ("list.csv", b"Plain,a;b|c d,1\n", []),
        ("list.jsonl", b'"Plain"\n7\n', []), ("list.jsonl", b'["Plain"]\n', []), ("list.jsonl", b"{}\n", []),
    ],
)  # fmt: skip
def test_a_list_that_cannot_be_read_is_refused(tmp_path: Path, name: str, text: bytes, words: list[str]) -> None:
    (tmp_path / name).write_bytes(text)
    with one_line(str(tmp_path / name), *words):
        listed(tmp_path / name)


LOG: dict[str, list[Any]] = {"user": ["u", "u", "é 2", "v"], "item": [7, 8, 10, 7], "time": [3, 5, 4, 9]}
OF_ITEMS: dict[str, list[Any]] = {"item": [7, 8, 10], "title": ["One, two", 'Sé "x"', "a;b"]}
TABLES = {"log": LOG, "histories": LOG, "items": OF_ITEMS, "titles": OF_ITEMS, "list": OF_ITEMS}


def rows_of(table: str, path: Path) -> list[tuple[Any, ...]]:
    """Read a file as the input `table` of a command."""
    if table in ("log", "histories"):
        found = open_histories(str(path), Data(), Preprocessing(), is_named=False)
        found = opened("table", path=str(path), block_bytes=11) if table == "log" else found
        rows = pl.concat([rows for rows, _ in found], how="vertical_relaxed")
        return rows.select("user", "item", "time").rows()
    if table == "items":
        file = read_item_file(str(path), {"title": "words"}, item_column="item", item_type=pl.Int64())
        return file.rows.select("original", "title").rows()
    if table == "list":
        known = lambda items: [canonical_value(item, is_number=True) in OF_ITEMS["item"] for item in items]  # noqa: E731
        items = [canonical_value(item, is_number=True) for item in read_item_list(path, known, item_column="item")[0]]
        return [*zip(items, OF_ITEMS["title"], strict=True)]
    titles = read_titles(str(path), beside=None, dtype=pl.Int64())
    return [] if titles is None else titles.rows()


def in_memory(write: str, table: dict[str, list[Any]]) -> bytes:
    file = io.BytesIO()
    getattr(pl.DataFrame(table), f"write_{write}")(file)
    return file.getvalue()


def as_csv(table: dict[str, list[Any]], **options: Any) -> str:
    return csv_text([[*table], *zip(*table.values(), strict=True)], **options)


def with_ids(table: dict[str, list[Any]], form: str) -> dict[str, list[Any]]:
    return table | {name: [form.format(value) for value in table[name]] for name in ("user", "item") if name in table}


FORMS: dict[str, Callable[[dict[str, list[Any]]], str | bytes]] = {
    "csv": as_csv, "quoted": partial(as_csv, quoting=csv.QUOTE_ALL), "semicolons": partial(as_csv, delimiter=";"),
    "tabs": partial(as_csv, delimiter="\t"), "returns": partial(as_csv, lineterminator="\r\n"),
    "sep=": lambda table: "sep=;\n" + as_csv(table, delimiter=";"), "mark": lambda table: "\ufeff" + as_csv(table),
    "gzip": lambda table: gzip.compress(as_csv(table).encode()), "blank lines": lambda table: as_csv(table) + "\n\n",
    "blank line within": lambda table: as_csv(table).replace("\n", "\n\n", 1),
    **{write: partial(in_memory, write) for write in ("parquet", "ipc", "ipc_stream", "ndjson")},
    "packed json": lambda table: gzip.compress(in_memory("ndjson", table)),
    "zstd": lambda table: pa.compress(as_csv(table).encode(), codec="zstd", asbytes=True),
    "two gzips": lambda table: b"".join(gzip.compress(part.encode()) for part in as_csv(table).partition("8")),
    "double colons": lambda table: as_csv(table).replace(",", "::") if table is LOG else as_csv(table),
    "quotes after blanks": lambda table: as_csv(table, quoting=csv.QUOTE_ALL).replace('","', '",  "'),
    "untidy header": lambda table: "\ufeff" + as_csv(table).replace("item", " item\u00a0", 1),
    "no-break spaces": lambda table: as_csv(with_ids(table, "\u00a0{}\u200b")),
    "decimals in some rows": lambda table: re.sub(r"\b8\b", "8.00", as_csv(table)),
    "blanks": lambda table: as_csv(with_ids(table, " {} ")), "decimals": lambda table: as_csv(with_ids(table, "{}.0")),
    "blanks, quoted": lambda table: as_csv(with_ids(table, " {}\u2009"), quoting=csv.QUOTE_ALL),
    "texts, json": lambda table: in_memory("ndjson", with_ids(table, " {}")),
    "texts, parquet": lambda table: in_memory("parquet", with_ids(table, "{}")),
}  # fmt: skip


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("form", FORMS)
def test_every_table_of_a_user_is_the_same_in_every_form(tmp_path: Path, table: str, form: str) -> None:
    """What a command reads, without a suffix that would tell the format."""
    content = FORMS[form](TABLES[table])
    (tmp_path / "table").write_bytes(content if isinstance(content, bytes) else content.encode())
    ends = ".0" if form == "decimals" and "user" in TABLES[table] else ""
    rows = [*zip(*TABLES[table].values(), strict=True)]
    assert rows_of(table, tmp_path / "table") == [(f"{row[0]}{ends}", *row[1:]) if ends else row for row in rows]


@pytest.mark.parametrize("table", TABLES)
def test_no_table_of_a_user_is_read_in_another_encoding_or_without_a_header(tmp_path: Path, table: str) -> None:
    """A log leaves out the lines that are no text; a table of items has no line too many."""
    text = as_csv(TABLES[table])
    (tmp_path / "table").write_bytes(text.encode("utf-16"))
    with one_line(str(tmp_path / "table"), "UTF-16"):
        rows_of(table, tmp_path / "table")
    (tmp_path / "table").write_bytes(text.encode("latin-1"))
    if "user" in TABLES[table]:
        assert rows_of(table, tmp_path / "table") == [row for row in zip(*LOG.values(), strict=True) if row[1] != 10]
    else:
        with one_line(f"{tmp_path / 'table'}, line 3: ", "UTF-8"):
            rows_of(table, tmp_path / "table")
    (tmp_path / "table").write_text(text.partition("\n")[2])
    if table == "list":  # the model tells which column has its items
        assert rows_of(table, tmp_path / "table") == [*zip(*OF_ITEMS.values(), strict=True)]
    else:
        with one_line(str(tmp_path / "table"), "first line", "header"):
            rows_of(table, tmp_path / "table")


TITLES = {
    "t.csv": "item,title\n7,1984\n300,007\n", "name.csv": "item,name\n7,1984\n300,007\n",
    "sku.csv": "title,sku,x\n1984,7,\n007,300,\n", "t.item": "item_id:token\ttitle:token_seq\n7\t1984\n300\t007\n",
}  # fmt: skip


@pytest.mark.parametrize("name", TITLES)
def test_titles_may_be_in_another_column_and_look_like_numbers(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(TITLES[name])
    titles = read_titles(str(tmp_path / name), beside=None, dtype=pl.Int64(), item_column="sku")
    assert titles is not None
    assert titles.rows() == [(7, "1984"), (300, "007")]


@given(st.lists(st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1).map(str.strip).filter(bool)))
def test_items_of_the_command_line_are_those_that_csv_writes(items: list[str]) -> None:
    assert split_items(csv_text([items]).rstrip("\n")) == items
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
    found = [SimpleNamespace(item="a\x1b[2J", title="two\r\nlines\u202e", score=1.0),
             SimpleNamespace(item="b", title="", score=0.5)]  # fmt: skip
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
