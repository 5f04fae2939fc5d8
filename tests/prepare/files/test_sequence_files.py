"""Lines of words → interactions; a file has pairs, or each user once with all its items."""

from contextlib import nullcontext
from pathlib import Path

import pytest

from bert4rec.prepare.progress import BadRows
from bert4rec.prepare.tables import Words
from bert4rec.prepare.text_blocks import Block
from tests.checks import one_line

FILE = Path("a.txt")


def test_every_item_of_a_line_is_a_row_of_its_own() -> None:
    bad = BadRows()
    rows = Words().parse(Block(FILE, b"u1 7 8\t9 \r\n u2  7\nu3 x", 5, 0), bad).rows()
    assert rows == [(5, "u1", "7"), (5, "u1", "8"), (5, "u1", "9"), (6, "u2", "7"), (7, "u3", "x")]
    assert bad.total == 0


def test_lines_without_an_item_or_without_utf_8_are_bad() -> None:
    bad = BadRows()
    rows = Words().parse(Block(FILE, b"u1 7\nu1\n \t\r\nu1 \xff\n\nu2 8\n", 1, 0), bad).rows()
    assert rows == [(1, "u1", "7"), (6, "u2", "8")]
    assert bad.counts == {"not UTF-8": 1, "item is missing": 1, "empty line": 2}
    assert [line.partition(": ")[0] for line in bad.shown] == [f"a.txt, line {number}" for number in (4, 2, 3, 5)]


@pytest.mark.parametrize(
    ("texts", "n_users", "is_refused"),
    [
        ([b"1 7\n1 8\n2 7\n"], 2, False), ([b"1 7 8\n", b"2 7 9 9\n3 1\n"], 3, False),  # pairs; users that stand once
        ([b"1 7\n2 8\n", b"2 7\n3 7 8 9\n4 7 8\n"], 4, True),
    ],
)  # fmt: skip
def test_a_user_stands_on_several_lines_of_pairs_alone(texts: list[bytes], n_users: int, is_refused: bool) -> None:
    words = Words()
    for number, text in enumerate(texts):
        words.parse(Block(FILE, text, 1 + 10 * number, 0), BadRows())
    with one_line("a.txt, line 12: 4 fields") if is_refused else nullcontext():
        words.check(n_users=n_users)
