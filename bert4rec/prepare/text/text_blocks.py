"""Text files as blocks of whole lines, however large they are: plain, gzip or zstd; every line keeps its number."""

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bert4rec.config.recognition import BYTE_ORDER_MARK, compression_of
from bert4rec.runtime.errors import DataError

T = TypeVar("T")

SMALL = 1 << 14  # bytes that are parsed line by line rather than halved again
UTF_16 = (b"\xff\xfe", b"\xfe\xff")
FIRST_BYTES = 1 << 20  # in which the first rows stand
QUOTE = b'"'
NEWLINE = b"\n"
LONGEST_QUOTED = 1 << 16  # bytes from the line on which a quote opens to the end of the line on which it closes


@dataclass(frozen=True)
class Block:
    """Hold whole lines of a text file.

    `first_line` is the number (from 1) of the first of them; `done` how many bytes of the file, as it lies on the
    disk, have been read so far; `unclosed`: one line alone, with a quote that nothing closes.
    """

    path: Path
    text: bytes
    first_line: int
    done: int
    unclosed: bool = False


def blocks(path: Path, *, size: int, quoted: bool, only_first: bool = False) -> Iterator[Block]:
    """Yield the text of `path` in blocks of about `size` bytes, cut at ends of lines; if `quoted`, outside of quotes.

    `only_first`: the whole lines among the first `FIRST_BYTES` alone; no line where the first one is longer. Raises
    `DataError` for UTF-16 text and for compressed files that are damaged.
    """
    if only_first:
        text = head(path, size=FIRST_BYTES)
        end, _ = _last_end(text, quoted, is_last=len(text) < FIRST_BYTES - len(BYTE_ORDER_MARK))
        yield Block(path, text[:end], 1, min(end, path.stat().st_size))
        return
    with _open(path) as file, _decompressed(file, path) as stream:
        line, text = 1, b""
        for piece in iter(lambda: _read(stream, size, path), b""):
            is_start = line == 1 and not text
            text += piece.removeprefix(BYTE_ORDER_MARK) if is_start else piece
            line, text = yield from _whole_lines(Block(path, text, line, file.tell()), quoted, is_last=False)
            if len(text) > size + LONGEST_QUOTED:
                raise DataError(f"{path}, line {line}: is longer than {size:,} bytes: not text in lines")
        yield from _whole_lines(Block(path, text, line, file.tell()), quoted, is_last=True)


def head(path: Path, *, size: int) -> bytes:
    """Return the first `size` bytes of the text, at most."""
    start = b""
    with _open(path) as file, _decompressed(file, path) as stream:
        while len(start) < size and (piece := _read(stream, size - len(start), path)):
            start += piece
    return start.removeprefix(BYTE_ORDER_MARK)


def parsed(
    block: Block, at_once: Callable[[Block], T | None], one_by_one: Callable[[Block], T], *, quoted: bool
) -> Iterator[T]:
    """Yield the result of `at_once` for `block`; if that is None, for its halves, and for few lines of `one_by_one`."""
    whole = None if block.unclosed else at_once(block)
    if whole is not None:
        yield whole
        return
    parts = [block] if len(block.text) <= SMALL or block.unclosed else _halves(block, quoted=quoted)
    if len(parts) == 1:
        yield one_by_one(block)
        return
    for part in parts:
        yield from parsed(part, at_once, one_by_one, quoted=quoted)


def _halves(block: Block, *, quoted: bool) -> list[Block]:
    """Return `block` as two of about half the size, or itself where it cannot be cut."""
    end, _ = _last_end(block.text[: 1 + len(block.text) // 2], quoted)
    if end in (0, len(block.text)):
        return [block]
    line = block.first_line + block.text.count(b"\n", 0, end)
    return [replace(block, text=block.text[:end]), replace(block, text=block.text[end:], first_line=line)]


def _whole_lines(block: Block, quoted: bool, *, is_last: bool) -> Generator[Block, None, tuple[int, bytes]]:
    """Yield the whole lines of `block`, a line with an unclosed quote alone. Return number and text of the rest."""
    line, text = block.first_line, block.text
    while text:
        end, is_open = _last_end(text, quoted, is_last=is_last)
        if end:
            yield Block(block.path, text[:end], line, block.done)
            line, text = line + text.count(NEWLINE, 0, end), text[end:]
        if not is_open:
            break
        end = text.find(NEWLINE) + 1 or len(text)
        yield Block(block.path, text[:end], line, block.done, unclosed=True)
        line, text = line + 1, text[end:]
    return line, text


def _last_end(text: bytes, quoted: bool, *, is_last: bool = False) -> tuple[int, bool]:
    """Return where the last line ends that ends outside of quotes, and whether a quote opened after it is never
    closed.
    """
    if not quoted or QUOTE not in text:
        return len(text) if is_last else text.rfind(NEWLINE) + 1, False
    newlines = np.flatnonzero(np.frombuffer(text, np.uint8) == NEWLINE[0])
    is_inside = inside_quotes(text)[newlines] == 1
    ends = np.concatenate([[0], 1 + newlines[~is_inside]])
    too_long = np.flatnonzero(
        newlines[is_inside] >= ends[np.searchsorted(ends, newlines[is_inside], "right") - 1] + LONGEST_QUOTED
    )
    if len(too_long):
        first = newlines[is_inside][too_long[0]]
        return int(ends[np.searchsorted(ends, first, "right") - 1]), True
    end = int(ends[-1])
    is_open = is_last and text.count(QUOTE, end) % 2 == 1
    return (len(text) if is_last and not is_open else end), is_open


def inside_quotes(text: bytes) -> NDArray[np.uint8]:
    """Return for each byte of `text` 1 after an odd number of quotes, else 0."""
    quotes = np.frombuffer(text, np.uint8) == QUOTE[0]
    parity: NDArray[np.uint8] = np.cumsum(quotes, dtype=np.uint8) & np.uint8(1)  # the sum runs over at 256: even
    return parity


def _open(path: Path) -> Any:
    try:
        return pa.OSFile(str(path), "rb")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None


def _decompressed(file: Any, path: Path) -> Any:
    start = file.read(4)
    file.seek(0)
    if start[:2] in UTF_16:
        raise DataError(f"{path}: not UTF-8 but UTF-16 text; convert it, for instance with iconv -f UTF-16 -t UTF-8")
    compression = compression_of(start)
    return pa.CompressedInputStream(file, compression) if compression else file


def _read(stream: Any, size: int, path: Path) -> bytes:
    try:
        text: bytes = stream.read(size)
        return text
    except OSError as error:
        raise DataError(f"{path}: damaged or cut off: {error}; bring the whole file") from None
