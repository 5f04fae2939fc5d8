"""Read text files of any size (plain, gzip or zstd) in blocks of whole, numbered lines."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bert4rec.config.first_lines import IS_UTF_16, UTF_16, problem_of_text
from bert4rec.config.recognition import BYTE_ORDER_MARK, compression_of, problem_of_path
from bert4rec.runtime.errors import DataError

T = TypeVar("T")

SMALL = 1 << 14  # bytes; smaller blocks are parsed line by line and not halved again
FIRST_BYTES = 1 << 20  # bytes that are read for the header, the keys of JSON objects, and the first rows
QUOTE = b'"'
NEWLINE = b"\n"
LONGEST_QUOTED = 1 << 16  # bytes from the line on which a quote opens to the end of the line on which it closes
TEXT_PIECE = 1 << 26  # of text that can be read alone


@dataclass(frozen=True)
class Block:
    """Whole lines of a text file.

    `first_line` is the number of the first line, from 1. `done` is the number of bytes of the file on the disk that
    have been read so far. `unclosed`: the block is a single line with an unclosed quote.
    """

    path: Path
    text: bytes
    first_line: int
    done: int
    unclosed: bool = False


def blocks(
    path: Path, *, size: int, quoted: bool, only_first: bool = False, start: int = 0, stop: int | None = None
) -> Iterator[Block]:
    """Yield the text of `path` in blocks of about `size` bytes, cut at ends of lines; if `quoted`, outside of quotes.

    With `only_first`, yields only the whole lines of the first `FIRST_BYTES`; an empty block if the first line is
    longer. With `start` and `stop`, yields a piece of plain text (see `cut_places`), whose lines count from 1. Raises
    `DataError` for UTF-16 text and for damaged compressed files.
    """
    if only_first:
        text = head(path)
        end, unclosed = _next_end(text, quoted, is_last=len(text) < FIRST_BYTES - len(BYTE_ORDER_MARK))
        yield Block(path, text[:end], 1, min(end, path.stat().st_size), unclosed)
        return
    with _opened(path) as (file, stream):
        line, text, is_last, left = 1, b"", False, size if stop is None else stop - start
        if start:
            file.seek(start)
        while not is_last:
            piece = stream.read(min(size, left))
            left -= 0 if stop is None else len(piece)
            is_last = not piece
            text += piece if text or line > 1 or start else piece.removeprefix(BYTE_ORDER_MARK)
            while text:
                end, unclosed = _next_end(text, quoted, is_last=is_last)
                if not end:
                    break
                yield Block(path, text[:end], line, file.tell(), unclosed)
                line, text = line + text.count(NEWLINE, 0, end), text[end:]
            if len(text) > size + LONGEST_QUOTED:
                line += count_lines(path, start)
                raise DataError(f"{path}, line {line}: is longer than {size:,} bytes: not text in lines")


def cut_places(path: Path, *, quoted: bool) -> list[int]:
    """Return where the text of `path` can be cut into pieces of about `TEXT_PIECE`: at lines that are surely whole.

    If it may be `quoted`, it is cut where no quote is near enough to be open. Packed text has no such places.
    """
    places: list[int] = []
    with _opened(path) as (file, stream):
        for place in range(TEXT_PIECE, file.size(), TEXT_PIECE) if stream is file else ():
            first = max(0, place - LONGEST_QUOTED) if quoted else place
            file.seek(first)
            near = file.read(place + LONGEST_QUOTED - first)
            end = near.find(NEWLINE, place - first)
            if end >= 0 and not (quoted and QUOTE in near[: end + 1]):
                places.append(first + end + 1)
    return [place for place in places if place < path.stat().st_size]


def count_lines(path: Path, stop: int) -> int:
    """Return the number of line ends in the first `stop` bytes of a plain text file."""
    n, left = 0, stop
    with path.open("rb") as file:
        while left and (text := file.read(min(left, TEXT_PIECE))):
            n, left = n + text.count(NEWLINE), left - len(text)
    return n


def head(path: Path) -> bytes:
    """Return at most the first `FIRST_BYTES` of the text. Raises `DataError` for a file that is no UTF-8 text."""
    start = b""
    with _opened(path) as (_, stream):
        while len(start) < FIRST_BYTES and (piece := stream.read(FIRST_BYTES - len(start))):
            start += piece
    if problem := problem_of_text(start):
        raise DataError(f"{path}: {problem}")
    return start.removeprefix(BYTE_ORDER_MARK)


def parsed(
    block: Block, at_once: Callable[[Block], T | None], one_by_one: Callable[[Block], T], *, quoted: bool
) -> Iterator[T]:
    """Yield the result of `at_once` for `block`; if it is None, try its halves, and use `one_by_one` for few lines."""
    whole = None if block.unclosed else at_once(block)
    if whole is not None:
        yield whole
        return
    text, is_small = block.text, len(block.text) <= SMALL or block.unclosed
    end, unclosed = (0, False) if is_small else _next_end(text[: 1 + len(text) // 2], quoted)
    if unclosed or end in (0, len(text)):
        yield one_by_one(block)
        return
    first, second = replace(block, text=text[:end]), replace(block, text=text[end:])
    for half in (first, replace(second, first_line=block.first_line + text.count(NEWLINE, 0, end))):
        yield from parsed(half, at_once, one_by_one, quoted=quoted)


def _next_end(text: bytes, quoted: bool, *, is_last: bool = False) -> tuple[int, bool]:
    """Return where the next block of `text` ends (0 = more text is needed), and if it is a line with an unclosed quote.

    A block ends at the last line end outside of quotes, or at the line end before a quote that is never closed.
    """
    if not quoted or QUOTE not in text:
        return len(text) if is_last else text.rfind(NEWLINE) + 1, False
    newlines = np.flatnonzero(np.frombuffer(text, np.uint8) == NEWLINE[0])
    is_inside = inside_quotes(text)[newlines] == 1
    ends, inside = np.concatenate([[0], 1 + newlines[~is_inside]]), newlines[is_inside]
    starts = ends[np.searchsorted(ends, inside, "right") - 1]
    too_long = np.flatnonzero(inside >= starts + LONGEST_QUOTED)
    end = int(starts[too_long[0]] if len(too_long) else ends[-1])
    if not len(too_long) and not (is_last and text.count(QUOTE, end) % 2):
        return len(text) if is_last else end, False
    return (end, False) if end else (text.find(NEWLINE) + 1 or len(text), True)


def inside_quotes(text: bytes) -> NDArray[np.uint8]:
    """Return 1 for each byte of `text` after an odd number of quotes, else 0."""
    quotes = np.frombuffer(text, np.uint8) == QUOTE[0]
    parity: NDArray[np.uint8] = np.cumsum(quotes, dtype=np.uint8) & np.uint8(1)  # overflow at 256 keeps the parity
    return parity


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, Any]]:
    """Open the file at `path`; yield it and the stream of its unpacked text."""
    try:
        with pa.OSFile(str(path), "rb") as file:
            start = file.read(4)
            file.seek(0)
            if start[:2] in UTF_16:
                raise DataError(f"{path}: {IS_UTF_16}")
            compression = compression_of(start)
            with pa.CompressedInputStream(file, compression) if compression else file as stream:
                yield file, stream
    except OSError as error:
        if error.strerror:
            raise DataError(problem_of_path(path, error)) from None
        raise DataError(f"{path}: damaged or cut off: {error}; copy the whole file again") from None
