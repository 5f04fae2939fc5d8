"""The rule by which every history is split: see `split.splits` for what it adds to histories."""

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import polars as pl

from bert4rec.config.tables import Preprocessing
from bert4rec.config.values import instant
from bert4rec.prepare.order.spool import Parts
from bert4rec.prepare.split.splits import all_for_training, by_time, instant_of_share, leave_one_out
from bert4rec.runtime.errors import DataError

SplitRule: TypeAlias = Callable[[pl.DataFrame], pl.DataFrame]


def choose_split(settings: Preprocessing, parts: Parts) -> tuple[SplitRule, int | None]:
    """Return the rule, and the second from which on a split by time tests, None of another one; `parts`: all rows.

    Raises `DataError` for a split by time of rows without times.
    """
    if settings.split == "none":
        return all_for_training, None
    if settings.split == "leave_one_out":
        return leave_one_out, None
    if "time" not in parts.columns:
        raise DataError('preprocessing.split = "time": the source has no times; choose "leave_one_out" or "none"')
    at = settings.split_at
    second = (
        instant(at) if isinstance(at, str) else instant_of_share(lambda: (p["time"] for p in parts.read("time")), at)
    )
    return partial(by_time, instant=second), second
