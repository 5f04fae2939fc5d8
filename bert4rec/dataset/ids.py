"""Define when two ids are one: the canonical form of an id, by its value alone, in pure Python.

Blanks around an id are removed, its characters get one Unicode form (NFC), and a whole number written as a decimal, as
pandas writes the integers of a column with missing values, is that number: "7.0" is "7". Everything else that looks
different is different: "007", "+7", "1e3", "7.5", "C1" and "c1". A text that programs write for a missing value is no
id. `prepare.ids` applies this to columns.
"""

import re
import unicodedata
from decimal import Decimal
from typing import Any

OUTER_BLANKS = (  # white space and characters of no width
    "\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u180e\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u200b\u200c\u200d\u2028\u2029\u202f\u205f\u2060\u3000\ufeff"
)
NO_IDS = frozenset(  # in small letters
    {
        "", "na", "<na>", "n/a", "#n/a", "nan", "-nan", "none", "(none)", "null", "(null)", "<null>", "nil",
        "undefined", "(not set)", "\\n", "-", "--", "---", "–", "—",
    }
)  # fmt: skip
LONGEST_NO_ID = max(map(len, NO_IDS))
NO_TEXT = re.compile("[\ud800-\udfff]")  # halves of a character, which no file in UTF-8 has
WHOLE = re.compile(r"(0|-?[1-9][0-9]*)\.0+")
WHOLE_NUMBER = re.compile(r"0|-?[1-9][0-9]{0,18}")
LARGEST_ID = 2**63 - 1


def canonical(text: str) -> str | None:
    """Return the id that `text` means; None for a text that means a missing id.

    >>> canonical(" 7.0"), canonical("007"), canonical("N/A")
    ('7', '007', None)
    """
    text = text.strip(OUTER_BLANKS)
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
        if NO_TEXT.search(text):
            return None
    if len(text) <= LONGEST_NO_ID and text.lower() in NO_IDS:
        return None
    return text[: text.index(".")] if WHOLE.fullmatch(text) else text


def canonical_value(value: Any, *, is_number: bool) -> int | str | None:
    """Return the id that any value means, as an integer if the ids of a column are numbers; None for no id.

    >>> canonical_value(7.0, is_number=False), canonical_value("7.0", is_number=True)
    ('7', 7)
    >>> canonical_value("x", is_number=True) is None
    True
    """
    value = value.item() if hasattr(value, "item") else value  # of NumPy and torch
    if isinstance(value, float | Decimal) and value == value and value not in (float("inf"), float("-inf")):
        value = f"{Decimal(repr(value)) if isinstance(value, float) else value:f}"
    text = None if value is None else canonical(str(value))
    if text is None or not is_number:
        return text
    number = int(text) if WHOLE_NUMBER.fullmatch(text) else LARGEST_ID + 1
    return number if -LARGEST_ID - 1 <= number <= LARGEST_ID else None
