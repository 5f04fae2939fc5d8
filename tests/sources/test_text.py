"""Text is cut into blocks of whole lines, and lines become rows of fields; where the text is cut plays no role."""

import gzip
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import example, given, reject, settings
from hypothesis import strategies as st
from pyarrow import csv

from bert4rec.runtime.errors import DataError
from bert4rec.sources import text_blocks, text_rows
from bert4rec.sources.progress import LINE, BadRows
from bert4rec.sources.text_blocks import Block, blocks, head
from bert4rec.sources.text_rows import Layout, parse, parse_json, read_layout, split_fields
from tests.checks import one_line

FILE = Path("t.csv")
CSV = Layout(("a", "b"), b",", quoted=True, header=("a", "b"))
Found = list[tuple[Any, ...]]


def parsed(content: str | bytes, layout: Layout = CSV, *, size: int = 1 << 20) -> tuple[Found, BadRows]:
    """The rows of a text that is read in blocks of `size` bytes, "" where nothing stands, and the bad rows."""
    bad, frames = BadRows(), []
    for block in blocks_of(content if isinstance(content, bytes) else content.encode(), size, layout.quoted):
        frames += parse(block, layout, bad)
    return [row for frame in frames for row in frame.with_columns(pl.col(pl.String).fill_null("")).rows()], bad


def blocks_of(text: bytes, size: int, quoted: bool) -> Iterator[Block]:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "t.csv"
        path.write_bytes(text)
        for block in blocks(path, size=size, quoted=quoted):
            yield replace(block, path=FILE)


GOOD: list[tuple[str, Found]] = [
    ("1,2\n3,4\n", [(1, "1", "2"), (2, "3", "4")]), ("1,2\r\n3,4", [(1, "1", "2"), (2, "3", "4")]),
    (",2\n3,\n,\n", [(1, "", "2"), (2, "3", ""), (3, "", "")]),
    ('"1","2"\n"",4\n', [(1, "1", "2"), (2, "", "4")]), ('"1,5",2\n', [(1, "1,5", "2")]),
    ('"say ""hi""",2\n', [(1, 'say "hi"', "2")]),
    ('"over\ntwo lines",2\n3,4\n', [(1, "over\ntwo lines", "2"), (3, "3", "4")]),
    ('1,"over\r\nthree\r\n"\r\n3,4\r\n', [(1, "1", "over\r\nthree\r\n"), (4, "3", "4")]),
    ('5" nails,2\n3,4\n', [(1, '5" nails', "2"), (2, "3", "4")]),
    ('5" nails,2\n3,4\n6" nails,5\n', [(1, '5" nails', "2"), (2, "3", "4"), (3, '6" nails', "5")]),
    ("é,x y\n#3, 4\n", [(1, "é", "x y"), (2, "#3", " 4")]),
    ("a\0b,\x1f\n", [(1, "a\0b", "\x1f")]), ("1\r,\r2\n", [(1, "1\r", "\r2")]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "wanted", "shown"),  # the lines that are shown as bad
    [
        *[(*case, []) for case in GOOD],
        ("1,2\n3\n5,6\n", [(1, "1", "2"), (3, "5", "6")], [2]), ("1,2\n3,4,", [(1, "1", "2")], [2]),
        ("1,2\n3,4,5\n5,6\n", [(1, "1", "2"), (3, "5", "6")], [2]),
        ("1,2\n\n\r\n5,6\n", [(1, "1", "2"), (4, "5", "6")], [2, 3]),
        ("1,2\na,b\n5,6\n", [(1, "1", "2"), (3, "5", "6")], [2]), ('1,2\n"a",b\n5\n', [(1, "1", "2")], [2, 3]),
        (b"1,2\n\xff\n5,6\n", [(1, "1", "2"), (3, "5", "6")], [2]),
        (b"1,2\n\xff,4\n5,6\n", [(1, "1", "2"), (3, "5", "6")], [2]),
        (b'1,2\n"x\n\xff",4\n5,6\n', [(1, "1", "2"), (4, "5", "6")], [2]),
        ('1,2\n"3,4\n5,6\n', [(1, "1", "2"), (3, "5", "6")], [2]),
        ('1,2\n3,4\n5,"6', [(1, "1", "2"), (2, "3", "4")], [3]),
        ('1,2\n"3,4\n5,6\n"7,8\n9,10\n', [(1, "1", "2"), (3, "5", "6"), (5, "9", "10")], [2, 4]),
        ('"1\n2",3\n4\n"5\n6",7\n8\n', [(1, "1\n2", "3"), (4, "5\n6", "7")], [3, 6]),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("error")
def test_a_bad_row_costs_its_own_line(content: str | bytes, wanted: Found, shown: list[int]) -> None:
    found, bad = parsed(content)
    assert (found, bad.total) == (wanted, len(shown))
    assert [line.partition(": ")[0] for line in bad.shown] == [f"t.csv, line {number}" for number in shown]


def test_cut_lines_cost_no_second_look_at_the_other_lines() -> None:
    lines = [f'{n},"a, {n}"' for n in range(20_000)]
    lines[7000], lines[7001], lines[15_000] = "7", "", '8,"b",'
    text, n_bytes, read_csv = "\n".join(["x,y", *lines, ""]), 0, csv.read_csv

    def counted(read: pa.BufferReader, *options: Any) -> pa.Table:
        nonlocal n_bytes
        n_bytes += read.size()
        return read_csv(read, *options)

    with patch.object(csv, "read_csv", counted):
        found, bad = parsed(text, replace(CSV, header=("x", "y")))
    assert [row[0] for row in found] == [n + 2 for n in range(20_000) if n not in (7000, 7001, 15_000)]
    assert bad.counts == {"wrong number of fields": 2, "empty line": 1, "header line again": 1}
    assert len(text) <= n_bytes <= 2 * len(text)


def test_a_header_with_unnamed_and_repeated_columns_is_known_again() -> None:
    layout = Layout(("", "a", "a 3"), b",", quoted=True, header=("", "a", "a"))
    for content in (",a,a\n0,1,2\n", ",a,a\n0,1,2\n3\n"):  # all at once, and one by one
        found, bad = parsed(content, layout)
        assert (found, bad.counts["header line again"]) == ([(2, "0", "1", "2")], 1)


@pytest.mark.parametrize(("separator", "quoted"), [(b"::", False), (b"\t", True), (b";", True), (b"|", True)])
def test_other_separators(separator: bytes, quoted: bool) -> None:
    layout = Layout(("a", "b"), separator, quoted=quoted, header=())
    found, bad = parsed(b'1,5@2\na@b\nx\x1f@y\n"p@q"\n3@"\n3\n'.replace(b"@", separator), layout)
    assert found[:3] == [(1, "1,5", "2"), (2, "a", "b"), (3, "x\x1f", "y")]
    assert bad.counts["wrong number of fields"] == (2 if quoted else 1)
    assert quoted or found[3:] == [(4, '"p', 'q"'), (5, "3", '"')]  # a quote is a letter


TYPES = {"a": pl.Int64, "b": pl.Float32}
NUMBERS = [
    "7", "-7", "007", "+7", " 7", "7 ", "7.0", "7.5", "1e3", ".5", "5.", "1_0", "0x1", "x", "", "nan", "-inf", "9" * 20,
    '"7"', "0.1", "3.3333333", "1e-3", "1e39", "-0",
]  # fmt: skip


@pytest.mark.parametrize("other", ["1,1\n", "1,1\n1\n"])  # all at once, and one by one
def test_numbers_parsed_as_such_are_those_of_their_text(other: str) -> None:
    for number in NUMBERS:
        (first, *_), _ = parsed(f"{number},{number}\n{other}", replace(CSV, types=TYPES))
        text = number.strip('"')
        is_number = isinstance(first[1], int)
        assert first[1:] == ((int(text), pl.Series([text.strip()]).cast(pl.Float32)[0]) if is_number else (text, text))


def test_text_behind_a_closing_quote_belongs_to_a_field_of_one_line_only() -> None:
    assert split_fields(['"a"b,c'], ",", quoted=True) == (["ab", "c"], 1)
    assert split_fields(['"a"b,"c', 'd"'], ",", quoted=True) == ([], 1)


PIECES = st.sampled_from(
    ["a", "1", "é", " ", "\0", "\x1f", "@", "@", '"', '"', '""', "\n", "\n", "\r\n", "\r", "\udcff",
     "x@y\n", "x@y\n", '"p"@"q"\n', '"u\nv"@w\n']
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    st.lists(PIECES, max_size=40).map("".join), st.sampled_from([",", "::"]), st.sampled_from([1, 3, 7, 50]),
    st.sampled_from([4, 16, 1 << 14]), st.sampled_from([20, 1 << 16]),
)  # fmt: skip
@example('x@"y\n' + "x@y\n" * 9 + 'x@"y\n', ",", 7, 4, 20)
@example("x\r@\n\n", ",", 3, 4, 20)
@example('x"y@"z\nx@y\n', ",", 3, 4, 20)
def test_where_the_text_is_cut_does_not_change_the_rows(
    content: str, separator: str, size: int, small: int, longest: int
) -> None:
    layout = Layout(("a", "b"), separator.encode(), quoted=separator == ",", header=("x", "y"))
    raw = content.replace("@", separator).encode("utf-8", "surrogateescape")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_blocks, "LONGEST_QUOTED", longest)
        at_once, bad = parsed(raw, layout)
        patch.setattr(text_blocks, "SMALL", small)
        try:
            in_parts, also_bad = parsed(raw, layout, size=size)
        except DataError:
            reject()  # a line that is too long
    assert in_parts == at_once
    assert (also_bad.counts, also_bad.shown) == (bad.counts, bad.shown)


@pytest.mark.parametrize(
    ("text", "separator", "columns", "layout"),  # of the layout what follows its columns; the header where it differs
    [
        ("a,b\n1,2\n", "auto", ("a", "b"), (b",", True)), ("a\n", "auto", ("a",), (b",", True)),
        ("\ufeffa;b,c;d\r\n1;2;3\n", "auto", ("a", "b,c", "d"), (b";", True)),
        ("a::b\n", "auto", ("a", "b"), (b"::", False)), ("a,b\tc\n", "\\t", ("a,b", "c"), (b"\t", True)),
        ('"a,""b""",c', "auto", ('a,"b"', "c"), (b",", True)),
        ("7|8|\n", "|", ("1", "2", "3"), (b"|", True, ())),  # without a header
        ("a,b,a,,b,\n", "auto", ("a", "b", "a 3", "", "b 5", " 6"), (b",", True, ("a", "b", "a", "", "b", ""))),
    ],
)  # fmt: skip
def test_a_header_names_the_columns(
    tmp_path: Path, text: str, separator: str, columns: tuple[str, ...], layout: tuple[Any, ...]
) -> None:
    (tmp_path / "t.csv").write_text(text)
    expected = Layout(columns, *(layout if len(layout) == 3 else (*layout, columns)), types={columns[0]: pl.Int64})
    has_header, types = bool(expected.header), {columns[0]: pl.Int64}
    assert read_layout(tmp_path / "t.csv", separator=separator, has_header=has_header, types=types) == expected


def test_a_first_line_that_tells_nothing_is_refused(tmp_path: Path) -> None:
    for text, place in (("", ": "), (" \n\n", ": "), ('a,"b\n1,2\n', ", line 1: "), ('a,"b\n1",2\n', ", line 1: ")):
        (tmp_path / "t.csv").write_text(text)
        with one_line(f"{tmp_path / 't.csv'}{place}"):
            read_layout(tmp_path / "t.csv", separator="auto", has_header=True)


def found_in(path: Path, *, size: int, quoted: bool = False) -> list[tuple[bytes, int, bool]]:
    return [(block.text, block.first_line, block.unclosed) for block in blocks(path, size=size, quoted=quoted)]


def test_blocks_end_with_a_line_and_know_the_number_of_their_first(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes(b"\xef\xbb\xbfab\ncde\nf\n\nghi")
    wanted = [(b"ab\n", 1, False), (b"cde\nf\n\n", 2, False), (b"ghi", 5, False)]
    assert found_in(path, size=8) == wanted
    assert [block.done for block in blocks(path, size=8, quoted=False)] == [8, 16, 16]


def test_packed_text_is_unpacked_whatever_its_file_is_called(tmp_path: Path) -> None:
    text = b"ab\ncde\n" * 3
    for packed in (gzip.compress(text), pa.compress(text, codec="zstd", asbytes=True)):
        (tmp_path / "t.csv").write_bytes(packed)
        assert found_in(tmp_path / "t.csv", size=1 << 20) == [(text, 1, False)]
        with patch.object(text_blocks, "FIRST_BYTES", 9):
            assert head(tmp_path / "t.csv") == b"ab\ncde\nab"


def test_a_quoted_field_of_several_lines_is_not_cut_and_an_open_quote_costs_its_line(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b'1,"a\nb"\n2,"c\n3,d\n')
    wanted = [(b'1,"a\nb"\n', 1, False), (b'2,"c\n', 3, True), (b"3,d\n", 4, False)]
    assert found_in(path, size=6, quoted=True) == wanted
    assert [text for text, *_ in found_in(path, size=6)] == [b'1,"a\n', b'b"\n', b'2,"c\n3,d\n']
    path.write_bytes(b"1,2\n" + b"x" * 60)
    with patch.object(text_blocks, "LONGEST_QUOTED", 10), one_line(f"{path}, line 2: "):
        found_in(path, size=20)


@pytest.mark.parametrize("read", [lambda path: found_in(path, size=99), head])
def test_utf_16_and_what_is_cut_off_are_refused(tmp_path: Path, read: Callable[[Path], Any]) -> None:
    for content in ("a,b\n".encode("utf-16"), gzip.compress(b"a,b\n" * 99, mtime=0)[:20]):
        (tmp_path / "t.csv").write_bytes(content)
        with one_line(f"{tmp_path / 't.csv'}: "):
            read(tmp_path / "t.csv")


@pytest.mark.parametrize(
    ("size", "quoted", "block"),
    [
        (9, True, (b'ab\n"c\nd"\n', 1, 9)), (7, True, (b"ab\n", 1, 3)), (7, False, (b'ab\n"c\n', 1, 6)),
        (2, True, (b"", 1, 0)), (99, True, (b'ab\n"c\nd"\ne', 1, 10)),
    ],
)  # fmt: skip
def test_the_first_block_has_the_whole_lines_of_the_first_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, quoted: bool, block: tuple[bytes, int, int]
) -> None:
    monkeypatch.setattr(text_blocks, "FIRST_BYTES", size)
    path = tmp_path / "t.csv"
    path.write_bytes(b'ab\n"c\nd"\ne')
    assert list(blocks(path, size=1, quoted=quoted, only_first=True)) == [Block(path, *block)]


KEYS = {"user": "who", "title": "name"}
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**30), 10**30), st.integers(-20, 20).map(float),
    st.floats(-1e6, 1e6, width=32),
    st.sampled_from(["[REC] (2007)", "{x}", "true", "truth", "falsely", "", " ", "7", "7.0", "é\n", "\0"]),
    st.text(max_size=3),
)  # fmt: skip
VALUES = st.one_of(SCALARS, st.lists(SCALARS, max_size=2), st.dictionaries(st.text(max_size=2), SCALARS, max_size=2))
RECORDS = st.dictionaries(st.sampled_from(["who", "name", "other"]), VALUES)
JSON_LINES = st.one_of(
    RECORDS.map(lambda record: json.dumps(record).encode()),
    RECORDS.map(lambda record: json.dumps(record, ensure_ascii=False).encode("utf-8", "surrogatepass")),
    st.sampled_from([b"", b" \r", b"[1]", b"null", b"{}\r", b'{"who": 1', b'{"who": "\xe9"}', b'{"who": 1, "who": 2}']),
)  # fmt: skip


def json_rows_of(block: Block) -> tuple[list[tuple[Any, ...]], BadRows]:
    bad = BadRows()
    frames = [*parse_json(block, KEYS, bad)]
    assert all(rows.schema == {LINE: pl.Int64, "user": pl.String, "title": pl.String} for rows in frames)
    return [row for rows in frames for row in rows.rows()], bad


@settings(max_examples=60, deadline=None)
@given(st.lists(JSON_LINES, min_size=1, max_size=8), st.integers(1, 10**9), st.booleans())
def test_at_once_and_line_by_line_are_the_same(lines: list[bytes], first: int, ends: bool) -> None:
    block = Block(Path("log.jsonl"), b"\n".join(lines) + b"\n" * ends, first, 0)
    if not block.text:
        return
    with patch.object(text_blocks, "SMALL", 1):
        found, bad = json_rows_of(block)
    with patch.object(text_rows, "_json_at_once", return_value=None):
        one_by_one, also_bad = json_rows_of(block)
    assert found == one_by_one
    assert bad.counts == also_bad.counts
    assert sorted(bad.shown) == sorted(also_bad.shown)
    assert len(found) + bad.total == len(block.text.removesuffix(b"\n").split(b"\n"))


NUMBER_TEXTS = {
    "7": "7", "7.0": "7", "-7.0": "-7", "7.5": "7.5", "1e3": "1000", "1e-7": "0.0000001", "-0": "0",
    "1600000000.25": "1600000000.25", "9007199254740993": "9007199254740993", "9" * 50: "9" * 50,
    "1e22": "1" + 22 * "0", '"7.0"': "7.0", '"007"': "007", "null": None, "NaN": None,
}  # fmt: skip


@pytest.mark.parametrize(("number", "text"), NUMBER_TEXTS.items())
def test_a_number_is_text_as_in_a_csv_file(number: str, text: str | None) -> None:
    line = f'{{"who": {number}}}'.encode()
    for lines in ([line], [line, b"broken"]):
        assert json_rows_of(Block(Path("log.jsonl"), b"\n".join(lines), 1, 0))[0] == [(1, text, None)]
