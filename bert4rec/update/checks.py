"""Check the data of an update before anything is learnt from it, and the challenger after its training.

Numbers are compared with those of up to `N_EARLIER` earlier updates. Real days differ widely: Sundays, the days before
Christmas. So a number is unusual only if it is far outside of the range of the earlier ones; their median is shown as
what is usual. The thresholds are relative to that range, so they suit logs of all sizes. Until there are
`FEWEST_EARLIER` earlier updates, only what is wrong in any log is a problem. An update that a check has stopped is no
example for later ones.

The thresholds were set by the 305 days of a shop of 60 customers a day, UCI Online Retail: they stop one of them, the
last, which indeed ends at noon. Of such a shop they cannot see that half of a day's customers are missing: it looks
like a slow day.

An update is a line of `updates.jsonl`. Read are, if they are there:

    day: [first, last] time of the new rows, in seconds; last: that of the last row before
    rows: read, known (there already), new, late (new, but before the last day), future (later than now)
    users, items: day (with new rows), new; users also: largest (the share of the new rows that one user has)
    score.order: markov, popularity (NDCG@10 of both, over the same targets of the day)
    lists: users, coverage, overlap, sameness (see `list_figures`)
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from bert4rec.runtime.arrays import Integers
from bert4rec.runtime.errors import pluralize
from bert4rec.update.gate import FEWEST_USERS, PairedLoss

N_EARLIER = 28  # updates: each day of the week counts the same; shorter than a season
FEWEST_EARLIER = 7  # updates: a week, so that its slowest day is among them
FEWEST_ROWS = 100  # new rows: shares of fewer say little

FAR_BELOW = 0.5  # of the smallest earlier value; the slowest real day had 0.53 of it
FAR_ABOVE = 10.0  # of the largest earlier value; a sale brings several times as many rows, never ten times the best day
BELOW_STEADY = 0.8  # as `FAR_BELOW`, for what varies less: rows a user (real days: 0.83) and hours (0.83)
HALF_WAY = 0.5  # from the largest earlier share to 1: new users came up to 0.18 of the way, new items 0.01
ONE_USER = 0.25  # as `HALF_WAY`, for the share of one user, where a smaller rise does harm: 0.18 of the way
FUTURE_FROM = 0.01  # of the rows: single devices have wrong clocks, a hundredth has a wrong time zone or format
SAME_LIST_FROM = 0.9  # of the users: then a list does not depend on the user

Update: TypeAlias = Mapping[str, Any]
"""A line of `updates.jsonl`."""

Value: TypeAlias = Callable[[Update], float | None]
"""Read a number of an update; None if it is not there, or says nothing."""


class Problem(NamedTuple):
    """Something wrong with an update: a `name`, and a sentence with the value, what is usual, and what to do.

    `is_certain`: it is wrong in any log. Otherwise it is unusual beside the earlier updates.
    """

    name: str
    text: str
    is_certain: bool = False


class Usual(NamedTuple):
    """The range of a number in the earlier updates, and its median."""

    low: float
    median: float
    high: float


def before_training(update: Update, earlier: Sequence[Update]) -> list[Problem]:
    """Return what is wrong with the rows of an `update`; each stops it, before anything is learnt.

    `earlier`: the lines of all earlier updates, the newest last. A number that the update does not have yet, such as
    its score, is not checked. A certain problem comes alone, as it explains the others.
    """
    certain = [*_wrong_rows(update)]
    usual = _usual_updates(earlier)
    return certain[:1] or [*_unusual_rows(update, usual), *_unusual_shares(update, usual), *_lost_order(update, usual)]


def after_training(
    update: Update, earlier: Sequence[Update], *, is_finite: bool, above_popularity: PairedLoss
) -> list[Problem]:
    """Return what is wrong with a challenger: a certain problem refuses it, any makes the data checks fail.

    `update` and the `earlier` ones as for `before_training`. `is_finite`: whether all weights and scores are;
    `above_popularity`: its difference from popularity (as champion) on the tail.
    """
    certain = [*_wrong_model(update, is_finite, above_popularity)]
    return certain[:1] or [*_unusual_lists(update, _usual_updates(earlier))]


def list_figures(lists: Integers, previous: Integers, n_items: int) -> dict[str, float]:
    """Return the figures of the `lists` [U, k] of the challenger and the `previous` [U, k] of the champion.

    Both are of the same users, the best item first, negative where a list has ended. `n_items`: the catalogue. The keys
    are those of `lists` in `updates.jsonl`:

    - `users`: U;
    - `coverage`: the share of the catalogue that is in a list;
    - `overlap`: the share of the previous items that are still in the list of their user, in the mean over users;
    - `sameness`: the share of users who get the most frequent list, in the same order.

    >>> list_figures(np.array([[0, 1], [0, 1], [2, 0]]), np.array([[1, 0], [2, 1], [3, 4]]), 6)
    {'users': 3, 'coverage': 0.5, 'overlap': 0.5, 'sameness': 0.6666666666666666}
    """
    if not len(lists):
        return {"users": 0, "coverage": 0.0, "overlap": 0.0, "sameness": 0.0}
    is_item = previous >= 0
    kept = ((previous[:, :, None] == lists[:, None, :]).any(2) & is_item).sum(1) / np.maximum(is_item.sum(1), 1)
    _, counts = np.unique(lists, axis=0, return_counts=True)
    return {
        "users": len(lists),
        "coverage": len(np.unique(lists[lists >= 0])) / n_items,
        "overlap": float(kept.mean()),
        "sameness": float(counts.max() / len(lists)),
    }


def _wrong_rows(update: Update) -> Iterator[Problem]:
    """Yield what no log has: rows that are all known, none, late, of the future, or of unknown items."""
    rows, items = update["rows"], update.get("items", {})
    n_read, n_new = rows["read"], rows["new"]
    if n_read and rows.get("known", 0) == n_read:
        text = f"all {pluralize(n_read, 'row')} are there already; give the rows after the last update"
        yield Problem("repeats", text, is_certain=True)
    elif not n_new:
        text = f"{pluralize(n_read, 'row')} read, none is new; give the rows after the last update"
        yield Problem("rows", text, is_certain=True)
    elif (n_future := rows.get("future", 0)) > FUTURE_FROM * n_read:
        text = (
            f"{n_future:,} of {n_read:,} rows have a time in the future; usual is none; check the clock, the time zone"
        )
        yield Problem("future", f"{text} and the format of the times", is_certain=True)
    elif n_new >= FEWEST_ROWS and rows.get("late", 0) == n_new:
        text = f"all {n_new:,} new rows are older than the last day; check the clock and the format of the times"
        yield Problem("late", text, is_certain=True)
    elif n_new >= FEWEST_ROWS and items.get("new") == items.get("day", 0):
        text = (
            f"all {pluralize(items['day'], 'item')} are unknown; check the column of the items, and how ids are written"
        )
        yield Problem("unknown items", text, is_certain=True)


def _unusual_rows(update: Update, earlier: Sequence[Update]) -> Iterator[Problem]:
    """Yield numbers of rows, rows a user and hours that are far from those of earlier updates."""
    checked: list[tuple[str, Value, str, Callable[[float], str], float, float]] = [
        ("rows", _n_new, "{} new rows", "{:,.0f}".format, FAR_BELOW, FAR_ABOVE),
        ("rows a user", _rows_a_user, "{} new rows a user", "{:.1f}".format, BELOW_STEADY, FAR_ABOVE),
        ("hours", _hours, "{} hours from the first new row to the last", "{:.1f}".format, BELOW_STEADY, np.inf),
        ("gap", _gap, "{} days from the last known row to the first new one", "{:.1f}".format, 0.0, FAR_ABOVE),
    ]
    if (rows := _usual(_n_new, earlier)) is not None and rows.median < FEWEST_ROWS:
        return
    for name, value, what, form, share, multiple in checked:
        number, usual = value(update), _usual(value, earlier)
        if number is None or usual is None or share * usual.low <= number <= multiple * usual.high:
            continue
        text = f"{what.format(form(number))}; usual are {form(usual.median)}, {form(usual.low)} to {form(usual.high)}"
        doubt = "parts are missing" if number < usual.low else "other rows came in"
        doubt = "the clock is right" if name == "gap" else doubt
        yield Problem(name, f"{text}; check whether {doubt}")


def _unusual_shares(update: Update, earlier: Sequence[Update]) -> Iterator[Problem]:
    """Yield shares that are far above those of earlier updates."""
    checked: list[tuple[str, Value, str, float, str]] = [
        (
            "one user",
            _largest_user,
            "of the new rows are of one user",
            ONE_USER,
            "check for a program or a test account",
        ),
        ("unknown users", _new_users, "of the users are unknown", HALF_WAY, "check how their ids are written"),
        ("unknown items", _new_items, "of the items are unknown", HALF_WAY, "check how their ids are written"),
        ("late", _late, "of the new rows are older than the last day", HALF_WAY, "check the clock and the file"),
        ("repeats", _known, "of the rows are there already", HALF_WAY, "check that it is the right file"),
    ]
    for name, value, what, way, advice in checked:
        share, usual = value(update), _usual(value, earlier)
        if share is not None and usual is not None and share > usual.high + way * (1 - usual.high):
            yield Problem(name, f"{_percent(share)} {what}; {_usual_percent(usual)}; {advice}")


def _lost_order(update: Update, earlier: Sequence[Update]) -> Iterator[Problem]:
    """Yield that the order of the rows says less about the next item than it did, if it said something.

    It takes all targets of the day: by the first item of each user of the shop above, real and shuffled days look
    alike.
    """
    gain, usual = _order_gain(update), _usual(_order_gain, earlier)
    if gain is not None and usual is not None and usual.low > 0 and gain < FAR_BELOW * usual.low:
        text = (
            f"Markov is {gain:+.4f} of NDCG@10 from popularity; usual is {usual.median:+.4f}, at least {usual.low:+.4f}"
        )
        yield Problem("order", f"{text}; check that times and items belong to their rows")


def _wrong_model(update: Update, is_finite: bool, above_popularity: PairedLoss) -> Iterator[Problem]:
    """Yield what no model has: values that are not finite, figures below popularity, one list for all."""
    lists = update.get("lists", {})
    if not is_finite:
        text = "weights or scores are not finite; usual is that all are; lower the learning rate"
        yield Problem("finite", text, is_certain=True)
    if above_popularity.high < 0:
        pair = above_popularity
        text = f"NDCG@10 {pair.challenger:.4f} is below popularity, {pair.champion:.4f}, on {pair.n_users:,} users"
        yield Problem("popularity", f"{text}; usual is above; train anew on all rows", is_certain=True)
    if lists.get("users", 0) >= FEWEST_USERS and lists["sameness"] >= SAME_LIST_FROM:
        text = f"{_percent(lists['sameness'])} of {lists['users']:,} users get the same list; usual are few"
        yield Problem("sameness", f"{text}; train anew on all rows", is_certain=True)


def _unusual_lists(update: Update, earlier: Sequence[Update]) -> Iterator[Problem]:
    """Yield figures of the lists that are far from those of earlier updates."""
    coverage, overlap, sameness = (_of_lists(name) for name in ("coverage", "overlap", "sameness"))
    advice = "look at some lists, or train anew on all rows"
    for name, value, what in (
        ("coverage", coverage, "of the catalogue is in a list"),
        ("overlap", overlap, "of yesterday's recommendations are still in the lists"),
    ):
        share, usual = value(update), _usual(value, earlier)
        if share is not None and usual is not None and share < FAR_BELOW * usual.low:
            yield Problem(name, f"{_percent(share)} {what}; {_usual_percent(usual)}; {advice}")
    share, usual = sameness(update), _usual(sameness, earlier)
    if share is not None and usual is not None and share > usual.high + HALF_WAY * (1 - usual.high):
        yield Problem(
            "sameness", f"{_percent(share)} of the users get the same list; {_usual_percent(usual)}; {advice}"
        )


def _usual_updates(earlier: Sequence[Update]) -> Sequence[Update]:
    """Return the newest updates with rows that no check has stopped."""
    return [update for update in earlier if "rows" in update and update.get("decision") != "stopped"][-N_EARLIER:]


def _usual(value: Value, earlier: Sequence[Update]) -> Usual | None:
    """Return the range of a number; None if fewer than `FEWEST_EARLIER` updates have it."""
    numbers = [number for update in earlier if (number := value(update)) is not None]
    return Usual(min(numbers), median(numbers), max(numbers)) if len(numbers) >= FEWEST_EARLIER else None


def _n_new(update: Update) -> float:
    return update["rows"]["new"]


def _has_rows(update: Update) -> bool:
    return update["rows"]["new"] >= FEWEST_ROWS


def _rows_a_user(update: Update) -> float | None:
    n = update.get("users", {}).get("day", 0)
    return update["rows"]["new"] / n if n and _has_rows(update) else None


def _hours(update: Update) -> float | None:
    first, last = update.get("day", (0, 0))
    return (last - first) / 3600 if "day" in update and _has_rows(update) else None


def _gap(update: Update) -> float | None:
    """Return the days from the last known row to the first new one, at least 1: an hour more is not worth a word."""
    return max(1.0, (update["day"][0] - update["last"]) / 86_400) if "last" in update and _has_rows(update) else None


def _largest_user(update: Update) -> float | None:
    return update.get("users", {}).get("largest") if _has_rows(update) else None


def _new_users(update: Update) -> float | None:
    return _share(update.get("users", {}), "new", "day") if _has_rows(update) else None


def _new_items(update: Update) -> float | None:
    return _share(update.get("items", {}), "new", "day") if _has_rows(update) else None


def _late(update: Update) -> float | None:
    return _share(update["rows"], "late", "new") if _has_rows(update) else None


def _known(update: Update) -> float | None:
    return _share(update["rows"], "known", "read")


def _order_gain(update: Update) -> float | None:
    order = update.get("score", {}).get("order")
    return order["markov"] - order["popularity"] if order else None


def _of_lists(name: str) -> Value:
    """Return what reads a figure of the lists, if enough users have one."""

    def read(update: Update) -> float | None:
        lists = update.get("lists", {})
        return lists[name] if lists.get("users", 0) >= FEWEST_USERS else None

    return read


def _share(counts: Mapping[str, int], part: str, whole: str) -> float | None:
    return counts[part] / counts[whole] if part in counts and counts.get(whole) else None


def _usual_percent(usual: Usual) -> str:
    return f"usual are {_percent(usual.median)}, {_percent(usual.low)} to {_percent(usual.high)}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
