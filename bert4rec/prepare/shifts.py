"""Find what has moved in a log of less than a year: the shares of its last weeks against those before."""

from typing import Any

import numpy as np
import polars as pl

from bert4rec.runtime.arrays import Bools, Float64s, Int32s, Int64s

SLOTS = 24  # halves of months, of a year
LAST_SHARE = 0.1  # share of the rows that the last weeks have at least
MOVED, LEAST_RATIO = 0.05, 1.5  # smallest change of a share, and smallest ratio of the two
DEVIATIONS = 5  # smallest change in standard deviations of it, as if rows came one by one
POPULAR_SHARE, FALLEN = 0.1, 0.1  # share of the items that are popular, and smallest fall of their share of the rows
OWN_COLUMNS = {"item", "original", "count", "train_count", "title"}


def slots_of(times: Int64s) -> Int64s:
    """Return the half of a month [N], counted from 1970, of `times` [N] in seconds.

    >>> slots_of(np.array([0, 14 * 86_400, 15 * 86_400, 31 * 86_400])).tolist()
    [0, 0, 1, 2]
    """
    days = times.astype("datetime64[s]").astype("datetime64[D]")
    months = days.astype("datetime64[M]")
    is_second = (days - months.astype("datetime64[D]")).astype(np.int64) >= 15
    return 2 * months.astype(np.int64) + is_second


def shifts(counts: Int32s, span: tuple[int, int], items: pl.DataFrame) -> dict[str, Any]:
    """Return how shares of the rows have moved: `since`, and `column` and `values`, or else `popular`.

    `counts` [V, SLOTS]: rows of the items by half of a month, modulo a year; `span`: first and last time. `items` has
    the columns of the items by dense id. A value has its share before and since then; `popular` are those of the most
    popular items. {} if none has moved much.
    """
    first, last = slots_of(np.array(span)).tolist()
    ordered = np.roll(counts, -(first % SLOTS), axis=1)[:, : last - first + 1]
    n_later = ordered.sum(0)[::-1].cumsum()[::-1]
    border = int((n_later >= LAST_SHARE * n_later[0]).nonzero()[0][-1])
    if border == 0:
        return {}
    month, half = divmod(first + border, 2)
    since = np.datetime64(month, "M").astype("datetime64[D]") + 15 * half
    found: dict[str, Any] = {"since": int(since.astype("datetime64[s]").astype(np.int64))}
    if values := _moved_values(ordered, border, items):
        return found | values
    popular = _popular(ordered, border)
    return found | {"popular": popular} if popular else {}


def _moved_values(ordered: Int32s, border: int, items: pl.DataFrame) -> dict[str, Any]:
    """Return the `column` with the value that has moved most, and the `values` that fell and rose most; {} without."""
    rows = np.stack([ordered[:, :border].sum(1), ordered[:, border:].sum(1)], axis=1)
    largest, found = 0.0, {}
    for column in items:
        if column.name in OWN_COLUMNS or column.dtype != pl.String:
            continue
        table = pl.DataFrame({"value": column, "before": rows[:, 0], "since": rows[:, 1]}).drop_nulls()
        by_value = table.group_by("value", maintain_order=True).sum()
        shares = by_value.select("before", "since").to_numpy() / rows.sum(0)
        change = shares[:, 1] - shares[:, 0]
        moved = np.flatnonzero(_has_moved(shares, rows.sum(0), MOVED))
        if len(moved) and (most := float(np.abs(change[moved]).max())) > largest:
            ends = dict.fromkeys((moved[change[moved].argmin()], moved[change[moved].argmax()]))
            values = {by_value["value"][int(place)]: _rounded(shares[place]) for place in ends}
            largest, found = most, {"column": column.name, "values": values}
    return found


def _popular(ordered: Int32s, border: int) -> list[float]:
    """Return the shares of the most popular items, [] if their share has not fallen much.

    They are chosen by every second half of a month and measured in the others, so that they do not lose by chance.
    """
    if border < 2:
        return []
    chosen = ordered[:, 0:border:2].sum(1).argsort(kind="stable")[-max(1, int(POPULAR_SHARE * len(ordered))) :]
    periods = np.stack([ordered[:, 1:border:2].sum(1), ordered[:, border:].sum(1)], axis=1)
    shares = periods[chosen].sum(0) / np.maximum(1, periods.sum(0))
    has_fallen = shares[0] > shares[1] and _has_moved(shares, periods.sum(0), FALLEN)
    return _rounded(shares) if has_fallen else []


def _has_moved(shares: Float64s, n_rows: Int64s, least: float) -> Bools:
    """Return whether shares [..., 2] of `n_rows` [2] rows differ by `least`, by `LEAST_RATIO`, not by chance."""
    low, high = shares.min(-1), shares.max(-1)
    mean = shares @ n_rows / n_rows.sum()
    deviation = np.sqrt(mean * (1 - mean) * (1 / n_rows).sum())
    return (high - low >= np.maximum(least, DEVIATIONS * deviation)) & (high >= LEAST_RATIO * low)


def _rounded(shares: Float64s) -> list[float]:
    return [round(float(share), 4) for share in shares]
