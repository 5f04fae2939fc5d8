"""The rows that pass the filters, user by user in order of time, their items as codes."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bert4rec.config.tables import Preprocessing
from bert4rec.config.values import instant
from bert4rec.prepare.order.filters import (
    Verb,
    apply,
    drop_consecutive_duplicates,
    drop_low_ratings,
    drop_unread,
    drop_users,
    keep_repeats,
    keep_times,
)
from bert4rec.prepare.order.histories import in_time_order, with_codes
from bert4rec.prepare.order.ids import same_type
from bert4rec.prepare.order.spool import Parts
from bert4rec.prepare.progress import Progress
from bert4rec.prepare.stages.raw_rows import RawRows


@dataclass
class OrderedRows:
    """Hold rows in order. Items are codes: places in the sorted `items`; `counts`: rows of each.

    The first `n_known` parts are of users with known ids. `dropped`: rows by the setting that has dropped them.
    """

    parts: Parts
    items: pl.Series
    counts: NDArray[np.int64]
    n_known: int = 0
    n_rows_read: int = 0
    n_users_read: int = 0
    n_items_read: int = 0
    dropped: Counter[str] = field(default_factory=Counter)


def order_rows(
    raw: RawRows, settings: Preprocessing, order: Mapping[str, Any], *, folder: Path, progress: Progress,
    also: Iterable[pl.Series] = (),
) -> OrderedRows:  # fmt: skip
    """Return the rows that pass, user by user in order of time, or where none is known in the `order` of the source.

    `also`: items that have a code with or without rows.
    """
    n_items_read = len(raw.items.rows())
    for items in also:
        raw.items.add(pl.DataFrame({"item": items}))
    originals = raw.items.rows()["item"].sort()
    codes = pl.DataFrame([originals.alias("original"), pl.Series("code", np.arange(len(originals)), dtype=pl.Int32)])
    ordered = OrderedRows(Parts(folder), originals, np.zeros(len(originals), np.int64))
    ordered.n_rows_read, ordered.n_items_read = len(raw), n_items_read
    with progress.stage("order", len(raw)) as stage:
        for spool in (raw.known, raw.new):
            for frame in spool.partitions():
                stage.advance(stage.n_rows + len(frame), len(frame))
                ordered.n_users_read += frame["user"].n_unique()
                kept = _ordered(frame, codes, settings, newest_first=order["newest_first"], dropped=ordered.dropped)
                ordered.counts += np.bincount(kept["item"].to_numpy(), minlength=len(originals))
                ordered.parts.add(kept)
            if spool is raw.known:
                ordered.n_known = len(ordered.parts)
            spool.remove()
    return ordered


def _ordered(
    frame: pl.DataFrame, codes: pl.DataFrame, settings: Preprocessing, *, newest_first: bool, dropped: Counter[str]
) -> pl.DataFrame:
    """Return the rows of a part that pass the filters, in order and coded."""
    frame = apply(_filters_by_row(settings), frame, dropped)
    item, original = same_type(frame["item"], codes["original"])
    coded = with_codes(frame.with_columns(item), codes.with_columns(original))
    return apply(_filters_in_order(settings), in_time_order(coded, newest_first=newest_first), dropped)


def filters_of_users(settings: Preprocessing) -> dict[str, Verb]:
    """Return the filters by how many rows a user has, by the setting that asks for them."""
    least, most = settings.min_user_interactions, settings.max_user_interactions
    return {
        "min_user_interactions": partial(drop_users, min_interactions=least),
        "max_user_interactions": partial(drop_users, min_interactions=1, max_interactions=most),
    }


def _filters_by_row(settings: Preprocessing) -> dict[str, Verb]:
    """Return the filters that look at one row at a time."""
    start, end = (instant(text) if text else None for text in (settings.time_from, settings.time_until))
    return {
        "only_read": partial(drop_unread, only_read=settings.only_read),
        "min_rating": partial(drop_low_ratings, min_rating=settings.min_rating),
        "time_from": partial(keep_times, start=start),
        "time_until": partial(keep_times, end=end),
    }


def _filters_in_order(settings: Preprocessing) -> dict[str, Verb]:
    """Return the filters that look at a user's rows in order of time; those of users unless a rare item goes before."""
    verbs: dict[str, Verb] = {"repeats": partial(keep_repeats, which=settings.repeats)}
    if settings.drop_consecutive_duplicates:
        verbs["drop_consecutive_duplicates"] = drop_consecutive_duplicates
    return verbs | (filters_of_users(settings) if settings.min_item_interactions <= 1 else {})
