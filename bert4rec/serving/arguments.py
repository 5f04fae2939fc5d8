"""Check what a call of a `Recommender` is given: lists where lists are expected, and items that the model knows."""

import operator
from collections.abc import Collection, Iterable, Mapping, Sequence
from numbers import Number
from typing import Any

import numpy as np

from bert4rec.dataset.format import NO_ITEM
from bert4rec.evaluation.seen_items import BY_ITEM, SeenRule
from bert4rec.runtime.arrays import Int64s
from bert4rec.runtime.console import warn
from bert4rec.runtime.errors import ArgumentError, join_names, pluralize
from bert4rec.serving.histories import History, TimedHistory, items_of
from bert4rec.serving.rules import Rules

LONGEST_VALUE = 60  # characters of a value in a message
FROM_A_FRAME = (
    'with Polars frame.group_by("user", maintain_order=True).agg("item")["item"].to_list(), with pandas '
    'frame.groupby("user")["item"].agg(list).tolist()'
)


def checked_k(k: Any) -> int:
    """Return `k`, a whole number of Python, NumPy or torch. Raises `ArgumentError` for anything else, and below 1."""
    try:
        number = 0 if isinstance(k, bool) else operator.index(k)
    except TypeError:
        number = 0
    if number < 1:
        raise ArgumentError(f"k = {_shown(k)}: must be a whole number, at least 1")
    return number


def checked_seen(value: Any, *, default: SeenRule) -> SeenRule:
    """Return `value`, `default` for None. Raises `ArgumentError` for anything else, such as the text "keep"."""
    if value is None or isinstance(value, bool | np.bool_):
        return default if value is None else bool(value)
    if isinstance(value, str) and value == BY_ITEM:
        return BY_ITEM
    raise ArgumentError(f'leave_out_seen = {_shown(value)}: must be True, False or "{BY_ITEM}"')


def checked_rules(rules: Any) -> Rules:
    """Return `rules`. Raises `ArgumentError`, with the right call, for anything else."""
    if isinstance(rules, Rules):
        return rules
    raise ArgumentError(f'rules = {_shown(rules)}: expected rules; type rules=model.rules(where="price < 5")')


def checked_items(name: str, items: Any, call: str) -> list[Any]:
    """Return `items` as a list. Raises `ArgumentError`, with the right `call`, if they are one item or a table.

    >>> checked_items("allow", {"A": 1}.keys(), "allow={}")
    ['A']
    >>> checked_items("allow", "A0305", "allow={}")
    Traceback (most recent call last):
    bert4rec.runtime.errors.ArgumentError: allow = 'A0305': expected a list of items; type allow=['A0305']
    """
    if is_one_value(items):
        right = call.format(f"[{_shown(items)}]")
        raise ArgumentError(f"{name} = {_shown(items)}: expected a list of items; type {right}")
    if _is_table(items) or items is None:
        found, right = type(items).__name__, call.format("[…]")
        raise ArgumentError(f"{name}: expected a list of items, not a {found}; type {right}")
    listed = _as_list(items)
    if (nested := _nested(listed)) is not None:
        raise ArgumentError(
            f"{name}: the item {_shown(nested)} is a {type(nested).__name__}; expected an id, text or a number"
        )
    return listed


def checked_item(item: Any, call: str) -> Any:
    """Return `item`, one id. Raises `ArgumentError`, with the right `call`, for a list of items."""
    if is_one_value(item):
        return item
    raise ArgumentError(f"item = {_shown(item)}: expected one item, not a {type(item).__name__}; type {call}")


def _nested(items: Iterable[Any]) -> Any:
    """Return the first of `items` that is a list or a mapping, None if there is none."""
    return next((item for item in items if isinstance(item, list | tuple | dict | set | np.ndarray)), None)


def checked_histories(histories: Any, function: str) -> Sequence[History]:
    """Return `histories`, each a list of items or a `TimedHistory`.

    Raises `ArgumentError`, with the right call of `function`, for one history instead of a list, and for a table.
    """
    if isinstance(histories, TimedHistory):
        raise ArgumentError(
            f"histories: expected a list of histories, not one; type model.{function}([TimedHistory(items, times)])"
        )
    if is_one_value(histories):
        right = f"model.{function}([[{_shown(histories)}]])"
        raise ArgumentError(f"histories = {_shown(histories)}: expected a list of histories, each a list; type {right}")
    if _is_table(histories) or histories is None:
        raise ArgumentError(
            f"histories: expected a list of histories, not a {type(histories).__name__}; each history is a list of "
            f"items, the oldest first: {FROM_A_FRAME}"
        )
    return [_checked_history(history, histories, function) for history in _as_list(histories)]


def _checked_history(history: Any, histories: Any, function: str) -> History:
    items = items_of(history)
    if is_one_value(items) and isinstance(history, TimedHistory):
        right = f"TimedHistory([{_shown(items)}], [time])"
        raise ArgumentError(f"the items of a history are {_shown(items)}: expected a list of items; type {right}")
    if is_one_value(items):
        one = _as_list(histories)
        right = f"model.{function}([{_shown(one)}])" if all(map(is_one_value, one)) else f"[{_shown(items)}]"
        raise ArgumentError(
            f"a history is {_shown(items)}: expected a list of histories, each a list of items; type {right}"
        )
    if items is None or isinstance(items, set | frozenset) or _is_table(items):
        raise ArgumentError(f"a history is a {type(items).__name__}: expected a list of items, the oldest first")
    if (nested := _nested(items)) is not None:
        raise ArgumentError(f"an item of a history is {_shown(nested)}: expected an id, text or a number")
    if isinstance(history, TimedHistory):
        return history if isinstance(items, list | tuple) else history._replace(items=_as_list(items))
    return items if isinstance(items, list | tuple) else _as_list(items)


def is_one_value(value: Any) -> bool:
    """Return whether `value` is text or a number, not a list; an array without dimensions is a number."""
    return isinstance(value, str | bytes | bytearray | Number | np.generic) or getattr(value, "ndim", 1) == 0


def _is_table(value: Any) -> bool:
    """Return whether `value` is a frame, a table or a mapping, whose elements are the names of its columns."""
    return isinstance(value, Mapping) or hasattr(value, "columns")


def _as_list(values: Iterable[Any]) -> list[Any]:
    """Return a list; arrays and series become values of Python."""
    try:
        return list(values.tolist() if isinstance(values, np.ndarray) else values)
    except TypeError:
        raise ArgumentError(f"{_shown(values)}: expected a list, not a {type(values).__name__}") from None


def _shown(value: Any) -> str:
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


class UnknownItems:
    """Count the items that a model does not know, for one warning that lists the first ones."""

    def __init__(self, purpose: str = "") -> None:
        self._purpose = f" {purpose}" if purpose else ""
        self._names: dict[str, None] = {}
        self._n, self._total = 0, 0

    def count(self, items: Collection[Any], indices: Int64s) -> None:
        """Count the `items` without an index."""
        self._total += len(items)
        in_order = items if isinstance(items, Sequence) else list(items)
        for place in np.flatnonzero(indices == NO_ITEM).tolist():
            self._n += 1
            if len(self._names) <= 3:
                self._names[str(in_order[place])] = None

    def warn(self) -> None:
        """Warn once if there were unknown items."""
        if self._n:
            warn(
                f"{self._n:,} of {pluralize(self._total, 'item')}{self._purpose} skipped, because the "
                f"model does not know them: {join_names([*self._names])}"
            )
