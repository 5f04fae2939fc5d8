"""Judge the first lines of a text: is it text, what separates its fields, is it a table or a user with items a line.

Imports neither Polars nor torch, as all of `config`.
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import PurePath

FIELD_SEPARATORS = ("\t", "::", ";", "|", ",", " ")  # the first of two that fit equally; " " = blanks
EQUAL_FIELDS_SHARE = 0.9  # share of the lines with as many fields as the first one
N_LINES = 100  # largest number of lines to look at
UTF_16 = (b"\xff\xfe", b"\xfe\xff")
IS_UTF_16 = "not UTF-8 but UTF-16 text; convert it, for instance with iconv -f UTF-16 -t UTF-8"
QUOTED = re.compile(r'(?<![^\t;|,: \n])"[^"]*(?:""[^"]*)*"(?![^\t;|,: \r\n])')
CONTROLS = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1e\x7f]")  # ESC and US occur in the text of some logs
MOST_CONTROLS, FEW_CONTROLS = 0.01, 8  # largest share of control characters in a text; as many may be in any text
TYPED_NAME = re.compile(r"(.+):(?:token|float)(?:_seq)?", re.DOTALL)
BASKET = re.compile(r"basket|cart|invoice|order|receipt|retail|transaction")
SEPARATOR_LINE = re.compile(rb'"?sep=.?"?[;,\t]*\r?\n', re.IGNORECASE)  # tells Excel how fields are separated
USER_STEP = 2  # largest mean distance of user numbers in lines of a user and items
BASKET_SEPARATORS = (";", ",", "|")  # of baskets; else blanks


def problem_of_text(start: bytes) -> str:
    """Return why a file that begins with `start` is no text that can be read, and the advice; "" if it is text.

    >>> problem_of_text(b"user,item\\n"), problem_of_text(b"\\x89PNG\\r\\n\\x1a\\n\\x00\\x00")[:11]
    ('', 'is not text')
    """
    if start[:2] in UTF_16:
        return IS_UTF_16
    head = start.partition(b"\n")[0]
    n_controls = len(CONTROLS.findall(start))
    is_other = bool(n_controls) and "\ufffd" in head.decode(errors="replace")  # than UTF-8
    is_named = not CONTROLS.search(head) and b"\x1b" not in head and not is_other
    if is_named and n_controls <= max(FEW_CONTROLS, MOST_CONTROLS * len(start)):
        return ""
    even, odd = start[::2].count(0), start[1::2].count(0)
    if max(even, odd) >= len(start) // 4 and min(even, odd) <= len(start) // 100:
        return IS_UTF_16
    return "is not text: expected lines of a table, or a Parquet file; name another file, or copy it again if damaged"


@lru_cache(maxsize=2)  # a preparation asks ten times
def infer_separator(text: str) -> str:
    """Return the separator with which nearly all first lines have as many fields as the first one, and most.

    A separator inside quotes does not count. Blanks count only where no other separator fits. Where none fits, it is
    the most frequent one of the first line.

    >>> infer_separator("user;item;price\\n1;2;3,5\\n1;3;2,5\\n"), infer_separator("user item\\n1 2\\n1  3\\n")
    (';', ' ')
    """
    lines = _unquoted_lines(text) or [""]
    counts = {separator: _n_fields(lines, separator) for separator in FIELD_SEPARATORS}
    fitting = [
        separator for separator, n_fields in counts.items()
        if n_fields[0] > 1 and n_fields.count(n_fields[0]) >= EQUAL_FIELDS_SHARE * len(lines)
    ]  # fmt: skip
    *others, blanks = FIELD_SEPARATORS
    if likely := [separator for separator in fitting if separator != blanks]:
        return max(likely, key=lambda separator: counts[separator][0])
    frequent = max(reversed(others), key=lambda separator: counts[separator][0])
    return blanks if counts[frequent][0] == 1 and blanks in fitting and len(lines) > 1 else frequent


def without_separator_line(text: bytes) -> bytes:
    """Return the `text` without a first line that only tells Excel the separator.

    >>> without_separator_line(b"sep=;\\nuser;item\\n"), without_separator_line(b"sep;item\\n")
    (b'user;item\\n', b'sep;item\\n')
    """
    return text[match.end() :] if (match := SEPARATOR_LINE.match(text)) else text


@lru_cache(maxsize=2)
def is_above_header(text: str) -> bool:
    """Return whether the first line is a comment or a heading: it has one field, and nearly all later lines several.

    >>> is_above_header("# exported\\nuser,item\\n1,2\\n1,3\\n"), is_above_header("user item\\n1 2\\n1 3\\n")
    (True, False)
    """
    first, *later = _unquoted_lines(text) or [""]
    separator = infer_separator("\n".join(later))
    counts = _n_fields(later, separator)
    if separator == " " or len(later) < 2 or sum(n > 1 for n in counts) < EQUAL_FIELDS_SHARE * len(counts):
        return False
    fields = first.split(separator)
    n_named = sum(bool(field.strip(' "')) for field in fields)
    return (n_named == 1 and len(fields) != 2) or (first.startswith("#") and len(fields) not in counts)


def has_runs_of_blanks(text: str) -> bool:
    """Return whether several blanks, or tabs, can be between two fields of the lines, which blanks separate.

    >>> has_runs_of_blanks("user item\\n1 2\\n"), has_runs_of_blanks("user item\\n1    2\\n")
    (False, True)
    """
    return len({line.count(" ") for line in _unquoted_lines(text)}) > 1 or "\t" in text


def _unquoted_lines(text: str) -> list[str]:
    """Return the first lines that are not blank, with "x" for each quoted field."""
    lines = QUOTED.sub("x", text).split("\n", N_LINES)[:N_LINES]
    return [line.removesuffix("\r") for line in lines if line.strip()]


def _n_fields(lines: Sequence[str], separator: str) -> list[int]:
    """Return the number of fields in each line; several blanks are one separator, unless that differs by line."""
    single = [1 + line.count(separator) for line in lines]
    return single if separator != " " or len({*single}) == 1 else [len(line.split()) for line in lines]


def column_names(header: Sequence[str]) -> list[str]:
    """Return the names in a header, without the types that RecBole writes after all of them.

    >>> column_names(["user_id:token", "timestamp:float"]), column_names(["user_id:token", "time"])
    (['user_id', 'timestamp'], ['user_id:token', 'time'])
    """
    matches = [TYPED_NAME.fullmatch(name) for name in header]
    return [match[1] for match in matches if match] if all(matches) else [*header]


def basket_separator(text: str) -> str:
    """Return the first separator of items that most lines of baskets have; " " for blanks.

    >>> basket_separator("whole milk,bread\\nbread\\nbutter,milk\\n"), basket_separator("1 2\\n3\\n")
    (',', ' ')
    """
    lines = [line for line in text.split("\n", N_LINES)[:N_LINES] if line.strip()]
    several = (bar for bar in BASKET_SEPARATORS if 2 * sum(bar in line for line in lines) > len(lines))
    return next(several, " ")


def cells(lines: Sequence[str]) -> list[str]:
    """Return the fields of the first line, as names of columns."""
    line = lines[0] if lines else ""
    separator = infer_separator("\n".join(lines))
    fields = line.split() if separator == " " else line.split(separator)
    return column_names([field.strip().strip('"') for field in fields]) if line else []


def has_number(fields: Iterable[str]) -> bool:
    """Return whether one of the fields is a number, so that they are no header."""
    return any(re.fullmatch(r"[-+]?\d+(\.\d*)?", field) for field in fields)


def are_rows(lines: Sequence[str]) -> bool:
    """Return whether a header and at least one row have the same number of fields, more than one.

    Words with blanks between them are rows if each line after the header has a number.
    """
    is_other = not lines or lines[0].startswith(("{", "[", "<"))  # JSON, XML
    if len(lines) < 2 or is_other or has_number(cells(lines)):
        return False
    separator = infer_separator("\n".join(lines))
    counts = {*_n_fields(_unquoted_lines("\n".join(lines)), separator)}
    has_numbers = separator != " " or all(has_number(line.split()) for line in lines[1:])
    return len(counts) == 1 and counts != {1} and has_numbers


def are_sequences(lines: Sequence[str]) -> bool:
    """Return whether the lines are `user item` pairs, or have each user once with all items.

    Lines that all have one length above two, or a user on two longer lines, may be rows of a table.
    """
    rows = _numbers(lines)
    if not rows or min(map(len, rows)) < 2:
        return False
    lengths = {len(row) for row in rows}
    is_line_a_user = len({row[0] for row in rows}) == len(rows) and (len(lengths) > 1 or len(rows) == 1)
    return lengths == {2} or is_line_a_user


def may_be_baskets(name: str, lines: Sequence[str]) -> bool:
    """Return whether the lines of the file `name` may be items alone, without a user as the first number.

    Users are numbered from 0 or 1 on, line by line. Other first numbers are doubtful, as is a name such as baskets.dat.

    >>> may_be_baskets("a.txt", ["1 8 9 10", "2 8 7", "3 5 6"]), may_be_baskets("a.txt", ["30 31 32", "33 34", "8 38"])
    (False, True)
    """
    rows = _numbers(lines)
    if len({len(row) for row in rows}) < 2:
        return False
    first = [int(row[0]) for row in rows]
    is_ascending = all(before < after for before, after in pairwise(first))
    are_users = is_ascending and first[0] <= 1 and first[-1] <= USER_STEP * len(rows)
    return not are_users or BASKET.search(PurePath(name).name.lower()) is not None


def _numbers(lines: Sequence[str]) -> list[list[str]]:
    """Return the words of the lines; [] unless all are whole numbers."""
    rows = [line.split() for line in lines]
    return rows if all(word.isdecimal() for row in rows for word in row) else []
