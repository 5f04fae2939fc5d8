"""Film a user's first commands on a terminal: `python -m scripts.film` writes logs/film.cast and docs/film.svg.

The commands really run, in a temporary folder with the log of the tutorial; pauses are shortened. The cast is a
recording of asciinema, version 2. The SVG needs no script and no network. `--from=logs/film.cast` draws a cast again.
"""

import argparse
import codecs
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple, TypeAlias

ROOT = Path(__file__).parents[1]
CAST, FILM = ROOT / "logs" / "film.cast", ROOT / "docs" / "film.svg"
COLUMNS, ROWS = 104, 30
COMMANDS = (
    "head -3 log.csv",
    "bert4rec prepare log.csv",
    "bert4rec train data/log --model=sasrec --epochs=20",
    "bert4rec report | head -14",
    "bert4rec recommend runs/log-sasrec --user c-17 --top=5",
)

PROMPT = "$ "
KEY, LONGEST_PAUSE, READING = 0.04, 0.06, 3.0  # seconds: of a key, between two outputs, after a command
READING_LINE = 0.1  # seconds after an output, for each of its lines
FRAME = 0.1  # seconds: outputs that are closer share a frame
CELL, LINE, MARGIN = 8.0, 18, 12  # pixels
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|.", re.DOTALL)
UNFINISHED = re.compile(r"\x1b(\[[0-9;?]*)?$")
STYLE = """\
svg {{ background: #16181d; }}
text {{ font: 13px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #d6dae1; white-space: pre; }}
.typed {{ fill: #7fd88f; font-weight: bold; }}
.film {{ transform: translateX(-{last}px); animation: film {seconds:.1f}s steps(1, end) infinite; }}
@keyframes film {{ {keyframes} }}
@media (prefers-reduced-motion) {{ .film {{ animation: none; }} }}
"""

Screen: TypeAlias = tuple[str, ...]


class Event(NamedTuple):
    """What appears on the terminal, and when, in seconds from the start."""

    at: float
    text: str


def outputs(command: str, folder: Path) -> Iterator[tuple[float, str]]:
    """Run `command` in a terminal; yield each output with the seconds since the one before. Raises if it fails."""
    child, terminal = pty.fork()
    if not child:
        os.chdir(folder)
        os.environ.pop("COLUMNS", None)
        os.execvp("sh", ["sh", "-c", command])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    decoder, text, before = codecs.getincrementaldecoder("utf-8")(), "", time.monotonic()
    try:
        while chunk := os.read(terminal, 65536):
            text += decoder.decode(chunk)
            if not UNFINISHED.search(text):
                now = time.monotonic()
                yield now - before, text
                text, before = "", now
    except OSError:  # the end, on Linux
        pass
    if status := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise SystemExit(f"{command}: exit status {status}")


def record(commands: Iterable[str], folder: Path) -> Iterator[Event]:
    """Type and run the commands; yield what appears, with pauses of at most `LONGEST_PAUSE`."""
    at = 0.0
    for command in commands:
        yield Event(at, PROMPT)
        at += READING / 3
        for key in command:
            yield Event(at, key)
            at += KEY
        yield Event(at, "\r\n")
        for pause, text in outputs(command, folder):
            at += min(pause, LONGEST_PAUSE)
            yield Event(at, text)
            at += READING_LINE * text.count("\n")
        at += READING
    yield Event(at, PROMPT)


def write_cast(events: Iterable[Event], path: Path) -> None:
    """Write the recording as asciinema does, version 2."""
    path.parent.mkdir(exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        print(json.dumps({"version": 2, "width": COLUMNS, "height": ROWS}), file=file)
        for event in events:
            print(json.dumps([round(event.at, 3), "o", event.text], ensure_ascii=False), file=file, flush=True)


def read_cast(path: Path) -> list[Event]:
    """Return the outputs of a recording."""
    lines = path.read_text(encoding="utf-8").splitlines()[1:]
    return [Event(at, text) for at, kind, text in map(json.loads, lines) if kind == "o"]


def screens(events: Iterable[Event]) -> Iterator[tuple[float, Screen]]:
    """Yield the screen after each event. Raises `ValueError` for an escape sequence that cannot be drawn."""
    lines: list[list[str]] = [[]]
    column = 0
    for at, text in events:
        for token in ESCAPE.findall(text):
            if token == "\r":
                column = 0
            elif token == "\n" or (column == COLUMNS and token.isprintable()):
                lines, column = [*lines, []][-ROWS:], column if token == "\n" else 0
            elif token == "\x1b[K":
                del lines[-1][column:]
            elif not token.isprintable():
                raise ValueError(f"{token!r}: the film cannot draw this")
            if token.isprintable():
                lines[-1] += " " * (column - len(lines[-1]))
                lines[-1][column : column + 1] = token
                column += 1
        yield at, tuple("".join(line).rstrip() for line in lines)


def frames(shown: Iterable[tuple[float, Screen]]) -> list[tuple[float, Screen]]:
    """Return the screens that differ and last, each with its start in seconds."""
    kept: list[tuple[float, Screen]] = []
    for at, screen in shown:
        if kept and at - kept[-1][0] < FRAME:
            kept[-1] = (kept[-1][0], screen)
        elif not kept or screen != kept[-1][1]:
            kept.append((at, screen))
    return kept


def draw(shown: Sequence[tuple[float, Screen]]) -> str:
    """Return an SVG that shows one frame after the other, forever; each line is stored once."""
    width, height = round(COLUMNS * CELL) + 2 * MARGIN, ROWS * LINE + 2 * MARGIN
    seconds = shown[-1][0] + 2 * READING
    names: dict[str, str] = {}
    strip = []
    for number, (_, screen) in enumerate(shown):
        uses = [
            f'<use href="#{names.setdefault(line, f"l{len(names)}")}" y="{MARGIN + LINE * row + LINE - 5}"/>'
            for row, line in enumerate(screen)
            if line
        ]
        strip.append(f'<g transform="translate({number * width})">{"".join(uses)}</g>')
    texts = [
        f'<text id="{name}" x="{MARGIN}" textLength="{len(line) * CELL:g}" lengthAdjust="spacingAndGlyphs"'
        f' class="{"typed" if f"{line} ".startswith(PROMPT) else "printed"}">{escape(line)}</text>'
        for line, name in names.items()
    ]
    keyframes = " ".join(
        f"{at / seconds:.3%} {{ transform: translateX(-{number * width}px); }}" for number, (at, _) in enumerate(shown)
    )
    style = STYLE.format(last=(len(shown) - 1) * width, seconds=seconds, keyframes=keyframes)
    body = "\n".join(["<defs>", *texts, "</defs>", '<g class="film">', *strip, "</g>"])
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n<style>{style}</style>\n{body}\n</svg>\n'


def main() -> None:
    """Record the commands, or read a recording, and draw it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--from", dest="cast", type=Path, help="a recording to draw again")
    cast = parser.parse_args().cast
    if cast is None:
        with tempfile.TemporaryDirectory(prefix="bert4rec-") as folder:
            subprocess.run([sys.executable, ROOT / "examples" / "shop_log.py"], cwd=folder, check=True)
            write_cast(record(COMMANDS, Path(folder)), cast := CAST)
    FILM.write_text(draw(frames(screens(read_cast(cast)))), encoding="utf-8")


if __name__ == "__main__":
    main()
