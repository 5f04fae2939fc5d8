"""Text in blocks of whole lines: where they are cut, which line is the first of each, what cannot be read."""

import gzip
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.prepare.text import text_blocks
from bert4rec.prepare.text.text_blocks import Block, blocks, head, inside_quotes, parsed
from bert4rec.runtime.errors import DataError

FILE = Path("t.csv")


def found_in(path: Path, *, size: int, quoted: bool = False) -> list[tuple[bytes, int, bool]]:
    return [(block.text, block.first_line, block.unclosed) for block in blocks(path, size=size, quoted=quoted)]


def test_blocks_end_with_a_line_and_know_the_number_of_their_first(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes(b"\xef\xbb\xbfab\ncde\nf\n\nghi")
    wanted = [(b"ab\n", 1, False), (b"cde\nf\n\n", 2, False), (b"ghi", 5, False)]
    assert found_in(path, size=8) == wanted
    assert [block.done for block in blocks(path, size=8, quoted=False)] == [8, 16, 16]


@pytest.mark.parametrize("name", ["gzip", "zstd"])
def test_packed_text_is_unpacked_whatever_its_file_is_called(tmp_path: Path, name: str) -> None:
    text = b"ab\ncde\n" * 3
    packed = gzip.compress(text) if name == "gzip" else pa.compress(text, codec="zstd", asbytes=True)
    (tmp_path / "t.csv").write_bytes(packed)
    assert found_in(tmp_path / "t.csv", size=1 << 20) == [(text, 1, False)]
    assert head(tmp_path / "t.csv", size=9) == b"ab\ncde\nab"


def test_a_quoted_field_of_several_lines_is_not_cut_and_an_open_quote_costs_its_line(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b'1,"a\nb"\n2,"c\n3,d\n')
    wanted = [(b'1,"a\nb"\n', 1, False), (b'2,"c\n', 3, True), (b"3,d\n", 4, False)]
    assert found_in(path, size=6, quoted=True) == wanted
    assert [text for text, *_ in found_in(path, size=6)] == [b'1,"a\n', b'b"\n', b'2,"c\n3,d\n']


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from([b"a", b'"', b"\n", b"\r\n", b"xyz,"]), max_size=30), st.integers(1, 20), st.booleans())
def test_nothing_is_lost_between_blocks_of_any_size(pieces: list[bytes], size: int, quoted: bool) -> None:
    text = b"".join(pieces)
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "t.csv").write_bytes(text)
        found = found_in(Path(place) / "t.csv", size=size, quoted=quoted)
    assert b"".join(part for part, *_ in found) == text
    assert all(part.endswith(b"\n") for part, *_ in found[:-1])
    ends = [part.count(b"\n") for part, *_ in found]
    assert [line for _, line, _ in found] == [1 + sum(ends[:place]) for place in range(len(found))]


def test_a_line_that_does_not_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_blocks, "LONGEST_QUOTED", 10)
    (tmp_path / "t.csv").write_bytes(b"1,2\n" + b"x" * 60)
    with pytest.raises(DataError, match=r"t\.csv, line 2: .*20 bytes"):
        found_in(tmp_path / "t.csv", size=20)


@pytest.mark.parametrize(
    ("content", "message"),
    [("a,b\n".encode("utf-16"), "UTF-16"), (gzip.compress(b"a,b\n" * 99, mtime=0)[:20], "damaged")],
)
def test_what_is_no_text_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    for read in (lambda path: found_in(path, size=99), lambda path: head(path, size=999)):
        with pytest.raises(DataError, match=rf"t\.csv: .*{message}"):
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


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (b"1\n2\n3\n4\n", [(b"1\n2\n", 5), (b"3\n4\n", 7)]),
        (b'1\n"2\n3"\n', [(b"1\n", 5), (b'"2\n3"\n', 6)]),
        (b"long line\n2\n", [(b"long line\n2\n", 5)]),
    ],
)
def test_a_block_in_question_is_halved_at_the_end_of_a_line_outside_of_quotes(
    monkeypatch: pytest.MonkeyPatch, text: bytes, parts: list[tuple[bytes, int]]
) -> None:
    monkeypatch.setattr(text_blocks, "SMALL", 1)
    block = Block(FILE, text, 5, 9)
    halves = parsed(block, lambda part: None if part == block else part, lambda part: part, quoted=True)
    assert list(halves) == [Block(FILE, part, line, 9) for part, line in parts]


def test_which_bytes_stand_inside_of_quotes() -> None:
    assert inside_quotes(b'a"b"c').tolist() == [0, 1, 1, 0, 0]
    assert inside_quotes(b'"' * 259).tolist() == [1, 0] * 129 + [1]  # more than a byte can count
