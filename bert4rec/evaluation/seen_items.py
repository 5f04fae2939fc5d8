"""Say which of the items that a user has seen are left out of its list."""

from typing import Final, Literal, TypeAlias

import numpy as np

from bert4rec.runtime.arrays import Bools, Integers

BY_ITEM: Final = "by_item"  # as in evaluation.seen_items

SeenRule: TypeAlias = bool | Literal["by_item"]
"""Whether all seen items are left out, or none, or by item those that people do not take again."""

LeavesOut: TypeAlias = bool | Bools
"""Whether seen items are left out: all or none of them, or for each item [V] whether it is."""


def are_left_out(leaves_out: LeavesOut, items: Integers) -> Bools:
    """Return for each of the seen `items` [n] whether it is left out.

    >>> are_left_out(np.array([True, False, True]), np.array([1, 2])).tolist()
    [False, True]
    """
    return np.full(len(items), leaves_out) if isinstance(leaves_out, bool) else leaves_out[items]


def rule_of(leaves_out: LeavesOut) -> str:
    """Return the value of `evaluation.seen_items` for the items that are left out.

    >>> rule_of(True), rule_of(False), rule_of(np.array([True, False]))
    ('leave_out', 'keep', 'by_item')
    """
    return ("leave_out" if leaves_out else "keep") if isinstance(leaves_out, bool) else BY_ITEM
