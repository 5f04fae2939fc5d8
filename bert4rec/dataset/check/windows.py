"""What must hold of every row by itself."""

import numpy as np

from bert4rec.dataset.check.metadata import Metadata
from bert4rec.dataset.check.rows_in_parts import Array, Part, first_true
from bert4rec.dataset.schema import FIRST_ITEM_ID, table_rows


def check_rows(part: Part, metadata: Metadata) -> None:
    """Ids are those of items, times do not decrease and are on the right side of the split, ratings are numbers.

    Raises `DataError` for the first row of `part` of which that is not so.
    """
    _check_ids(part, metadata)
    if metadata.has_times:
        _check_times(part, metadata)
    if metadata.has_ratings and (wrong := first_true(~np.isfinite(part.lists["ratings"]))) is not None:
        raise part.refusal_at(wrong, "ratings", "must be finite")


def check_negatives(part: Part) -> dict[str, Array]:
    """The negatives of each row that has some, sorted: name → [D, n]. Raises `DataError` for a row with one twice."""
    ordered = {name: np.sort(negatives, axis=1) for name, negatives in part.negatives.items()}
    for name, negatives in ordered.items():
        repeated = negatives[:, 1:] == negatives[:, :-1]
        if (row := first_true(repeated.any(axis=1))) is not None:
            item = negatives[row, repeated[row].argmax()]
            raise part.refusal(int(part.drawn[row]), f"{name} has item {item} twice")
    return ordered


def _check_ids(part: Part, metadata: Metadata) -> None:
    limit = table_rows(metadata.n_items)
    wish = f"items have ids from {FIRST_ITEM_ID} to {limit - 1}"
    if (wrong := _outside(part.lists["items"], limit)) is not None:
        raise part.refusal_at(wrong, "items", wish)
    if (row := _outside(part.targets, limit)) is not None:
        raise part.refusal(row, f"target is {part.targets[row]}, {wish}")
    for name, negatives in part.negatives.items():
        if (wrong := _outside(negatives.ravel(), limit)) is not None:
            row, place = divmod(wrong, negatives.shape[1])
            raise part.refusal(int(part.drawn[row]), f"{name}[{place}] is {negatives[row, place]}, {wish}")


def _outside(ids: Array, limit: int) -> int | None:
    """Where the first id stands that is not an item's."""
    if not len(ids) or FIRST_ITEM_ID <= ids.min() <= ids.max() < limit:
        return None
    return first_true((ids < FIRST_ITEM_ID) | (ids >= limit))


def _check_times(part: Part, metadata: Metadata) -> None:
    times = part.lists["times"]
    earlier = np.zeros(len(times), bool)
    earlier[1:] = times[1:] < times[:-1]
    starts = part.starts
    earlier[starts[part.lengths > 0]] = False
    if (wrong := first_true(earlier)) is not None:
        raise part.refusal_at(wrong, "times", f"earlier than the one before it, {times[wrong - 1]}")
    if metadata.instant is not None and (wrong := first_true(times >= metadata.instant)) is not None:
        raise part.refusal_at(wrong, "times", f"not before {metadata.instant}, when the test begins")
    if part.target_times is not None:
        last = times[part.ends - 1]
        if (row := first_true(part.target_times < last)) is not None:
            what = f"target_time is {part.target_times[row]}, earlier than the last of times, {last[row]}"
            raise part.refusal(row, what)
