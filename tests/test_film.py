"""docs/film.svg: what a terminal shows is what is drawn, and the film shows commands of today."""

import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from scripts import film
from scripts.film import COLUMNS, ROWS, Event, outputs, screens

NAMESPACE = "{http://www.w3.org/2000/svg}"


def shown(*texts: str) -> film.Screen:
    """The screen after these outputs."""
    return list(screens(Event(number, text) for number, text in enumerate(texts)))[-1][1]


def test_a_terminal_returns_erases_wraps_and_scrolls() -> None:
    assert shown("a\r\nbar") == ("a", "bar")
    assert shown("10 %", "\r20 %") == ("20 %",)
    assert shown("10 % long\r\x1b[Kdone") == ("done",)
    assert shown("a" * COLUMNS, "\r\n", "b") == ("a" * COLUMNS, "b")
    assert shown("a" * COLUMNS + "b") == ("a" * COLUMNS, "b")
    assert shown("\r\n".join(map(str, range(ROWS + 2)))) == tuple(map(str, range(2, ROWS + 2)))
    with pytest.raises(ValueError, match="cannot draw"):
        shown("\x1b[31mred")


def test_a_command_runs_on_a_terminal_of_the_films_size(tmp_path: Path) -> None:
    size = f"{sys.executable} -c 'import os; print(os.isatty(1), *os.get_terminal_size())'"
    assert "".join(text for _, text in outputs(size, tmp_path)) == f"True {COLUMNS} {ROWS}\r\n"
    with pytest.raises(SystemExit, match="exit status 3"):
        list(outputs("exit 3", tmp_path))


def test_the_film_is_small_and_of_the_commands() -> None:
    text = film.FILM.read_text(encoding="utf-8")
    assert len(text.encode()) <= 300_000
    typed = {one.text for one in ET.fromstring(text).iter(f"{NAMESPACE}text") if one.get("class") == "typed"}
    assert {f"$ {command}" for command in film.COMMANDS} <= typed
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
