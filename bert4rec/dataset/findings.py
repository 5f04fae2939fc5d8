"""Put what stands out in a log into sentences, each with the option that deals with it."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

REPEATS_FROM, DUPLICATES_FROM = 0.05, 0.001  # shares of all rows
RARE_FROM, GONE_FROM, NEW_FROM, SEASONAL_FROM = 0.3, 0.1, 0.05, 0.05  # shares of all items
FEW = 5  # rows of a rare item


def findings(metadata: Mapping[str, Any]) -> list[str]:
    """Return what stands out in the log of a dataset, a sentence each; [] for generated data.

    `metadata` is that of the dataset folder; `log` in it has the numbers, as `prepare.survey` counts them.
    """
    log = metadata.get("log")
    return [*_of_rows(log, metadata), *_of_items(log, metadata), *_of_columns(log)] if log else []


def _of_rows(log: Mapping[str, Any], metadata: Mapping[str, Any]) -> Iterator[str]:
    rows = metadata["rows"]
    once = "--preprocessing.repeats=first_in_a_row keeps the first"
    if (share := log["duplicates"] / rows) >= DUPLICATES_FROM:
        yield f"duplicates: {share:.1%} of the rows repeat the row before (user, item and time); {once}"
    if (share := (log["repeats_in_a_row"] - log["duplicates"]) / rows) >= REPEATS_FROM:
        yield f"repeats: {share:.0%} of the rows have the same item as the row before; {once}"
    if log["has_dates_only"]:
        yield "times: dates without a time of day; rows of one day keep the order of the file"
    if bots := log["heavy_users"]:
        most, share = bots["limit"], bots["rows"] / rows
        yield (
            f"heavy users: {_n(bots['users'], 'user has', 'users have')} more than {most:,} rows each ({share:.0%} of "
            f"all), perhaps robots; --preprocessing.max_user_interactions={most} leaves them out"
        )


def _of_items(log: Mapping[str, Any], metadata: Mapping[str, Any]) -> Iterator[str]:
    items = metadata["items"]
    if (share := log["rare_items"] / items) >= RARE_FROM:
        yield (
            f"rare items: {share:.0%} of the items have fewer than {FEW} rows and are hardly learnt; "
            f"--min-item-interactions={FEW} leaves them out"
        )
    if (share := log["gone_items"] / items) >= GONE_FROM:
        since = datetime.fromtimestamp(log["recent_from"], UTC).date().isoformat()
        yield (
            f"gone items: {share:.0%} of the items have no row since {since}; `bert4rec recommend … --allow=FILE` "
            "recommends only what is in stock"
        )
    if (share := log["new_items"] / items) >= NEW_FROM:
        since = datetime.fromtimestamp(log["recent_from"], UTC).date().isoformat()
        yield f"new items: {share:.0%} of the items appear only since {since}; prepare again often (`bert4rec extend`)"
    if (share := log["seasonal_items"] / items) >= SEASONAL_FROM:
        yield (
            f"season: {share:.0%} of the items have most of their rows in four months of the year; "
            "`bert4rec train … --model.times=history` uses the times"
        )


def _of_columns(log: Mapping[str, Any]) -> Iterator[str]:
    for name, values in log["events"].items():
        kinds = ", ".join(f"{value} {share:.0%}" for value, share in values.items())
        yield f"events: {name} has {kinds}; all count alike: for one kind only, filter the file first"
    for name in log["sessions"]:
        yield f"sessions: {name}; --user={name} makes each session a history of its own"
    if prices := log["prices"]:
        yield f"not used: {', '.join(prices)} ({'a price' if len(prices) == 1 else 'prices'} or amounts)"


def _n(count: int, one: str, several: str) -> str:
    return f"{count:,} {one if count == 1 else several}"
