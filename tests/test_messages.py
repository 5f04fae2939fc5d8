"""The snapshot of all sentences of the program is up to date."""

import ast

from tests.messages import SNAPSHOT, messages, sentences


def test_the_snapshot_has_every_sentence() -> None:
    assert SNAPSHOT.read_text(encoding="utf-8") == messages(), "a sentence changed: type `python -m tests.messages`"


def test_a_sentence_is_listed_once_with_what_is_filled_in() -> None:
    code = """
def f():
    "A docstring, left out."
    fail(f"no such file: {path}{f', did you mean {name}' if name else ''}")
    "two words"
"""
    assert [*sentences(ast.parse(code))] == [
        "no such file: {path}{f', did you mean {name}' if name else ''}",
        ", did you mean {name}",
    ]
