"""Which columns of a table hold the users, the items and the times, as far as their names tell: for a message only."""

import difflib
import re
import shlex
from collections.abc import Mapping, Sequence

from bert4rec.prepare.read.guesses import ITEMS, TIMES, USERS, words_of

WORDS = {"user": USERS, "item": ITEMS, "time": TIMES, "rating": {"rating", "star", "score", "overall", "grade"}}
CLOSE = 0.75  # of 1, as difflib measures how much of two names is the same


def column_advice(named: Mapping[str, str], present: Sequence[str]) -> str:
    """The end of a message that a column is missing: the options that name the columns, ready for the shell.

    `named`: field → column, as the settings say; `present`: the columns of the file, or its first row.

    >>> column_advice({"user": "user", "item": "item"}, ["customer", "product id", "at", "price"])
    "; try --data.user_column=customer '--data.item_column=product id' --data.time_column=at"
    >>> column_advice({"user": "user", "item": "what"}, ["user", "x"])
    '; name it with --data.item_column=…'
    """
    numbered = [str(number) for number in range(1, len(present) + 1)]
    if [*present] != numbered and any(re.fullmatch(r"-?\d+(\.\d*)?", name) for name in present):
        options = {"has_header": "false", "user_column": "1", "item_column": "2"}
        return f"; where this is a row and not a header, add {_options(options)}"
    left = [name for name in present if name not in named.values()]
    found: dict[str, str] = {}
    for field in WORDS:
        is_missing = field in named and named[field] not in present
        if is_missing or (field == "time" and field not in named):
            guess = _guess(field, named.get(field, ""), [name for name in left if name not in found.values()])
            if guess or is_missing:
                found[field] = guess
    verb = "try" if any(found.values()) else "name it with"
    return f"; {verb} {_options({f'{field}_column': name for field, name in found.items()})}"


def _guess(field: str, named: str, present: Sequence[str]) -> str:
    """The column that is probably meant; "" where none is likely."""
    if close := difflib.get_close_matches(named, present, n=1, cutoff=CLOSE):
        return close[0]
    whole = (name for name in present if not re.search(r"[;,|\t]", name))  # else it is a row that was not cut
    return next((name for name in whole if words_of(name) & WORDS[field]), "")


def _options(values: Mapping[str, str]) -> str:
    return " ".join(
        shlex.quote(f"--data.{key}={value}") if value else f"--data.{key}=…" for key, value in values.items()
    )
