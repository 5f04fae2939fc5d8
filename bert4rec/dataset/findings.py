"""Put what stands out in a log into sentences, each with the option that deals with it."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from bert4rec.dataset.hidden import what_to_hide
from bert4rec.runtime.errors import pluralize

REPEATS_FROM, DUPLICATES_FROM, TIED_FROM = 0.05, 0.001, 0.05  # shares of all rows; the last of the targets, too
RARE_FROM, GONE_FROM, NEW_FROM, SEASONAL_FROM = 0.3, 0.1, 0.05, 0.05  # shares of all items
COPIED_FROM = 0.2  # share of the targets whose item is in their input
DAMAGED_FROM = 0.05  # share of all rows that makes figures doubtful
LEAST_LOG_ROWS = 1000  # of fewer rows, most items have few anyway
RARE_ITEM_ROWS = 5  # rows of a rare item
USES_TIMES = "`bert4rec train … --model.times=history` uses the times"
LARGE_USER, HEAVY_USERS, DUPLICATES = "one large user", "heavy users", "duplicates"  # may be damage


class Finding(NamedTuple):
    """A remarkable fact of a log: a `name`, a sentence, and whether it makes figures doubtful until it is mended."""

    name: str
    text: str
    is_damage: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {self.text}"


def findings(metadata: Mapping[str, Any]) -> list[Finding]:
    """Return what stands out in the log of a dataset; [] for generated data.

    `metadata` is that of the dataset folder; `log` in it has the numbers, as `prepare.survey` counts them.
    """
    log = metadata.get("log")
    if not log:
        return []
    users = [*_user_findings(log, metadata), *_target_findings(log, metadata)]
    rows = [*_order_findings(log, metadata), *_row_findings(log, metadata)]
    is_long = metadata["rows"] >= LEAST_LOG_ROWS
    items = _item_findings(log, log.get("items_with_rows", metadata["items"])) if is_long else ()
    return [*users, *rows, *items, *_column_findings(log)]


def _order_findings(log: Mapping[str, Any], metadata: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield what only the file orders, and what to type."""
    settings, option = metadata["preprocessing"], next(iter(log["order_options"]), "")
    for name, n in log.get("unordered", {}).items():
        text = f"{pluralize(n, 'row')} without a value in {name}; they come first among the rows of one user and time"
        yield Finding("no order", text)
    targets, row_share = log["tied_targets"], log["tied"] / metadata["rows"]
    target_share = targets["users"] / max(1, targets["of"])
    if max(row_share, target_share) < TIED_FROM:
        return
    equal = " and ".join(name for name in ("time" * metadata["has_times"], metadata["order"].get("then", "")) if name)
    what = f"{_percent(row_share)} of the rows have the {equal or metadata['order']['column']} of the user's row before"
    if targets["of"]:
        what += f", {_percent(target_share)} of the test targets that of the item before"
    if settings.get("ties") == "shuffle":
        yield Finding("ties", f"{what}; their order is random (preprocessing.ties = shuffle)")
        return
    advice = ["--preprocessing.ties=shuffle makes it random"]
    if settings["split"] == "leave_one_out" and metadata["has_times"]:
        advice.append("--preprocessing.split=leave_last_basket predicts the next basket")
    if metadata["source"] == "table":
        advice.append(f"{option} orders them" if option else "--order=COLUMN names a column that orders them")
    yield Finding("ties", f"{what}; their order is that of the file: {', '.join(advice)}")


def _user_findings(log: Mapping[str, Any], metadata: Mapping[str, Any]) -> Iterator[Finding]:
    if n := metadata.get("guests", 0):
        n_rows = metadata["rows_read"]
        text = f"{n:,} of {n_rows:,} rows ({_percent(n / n_rows)}) have no user and are left out; "
        yield Finding("guests", f"{text}--user=COLUMN makes another column the user, such as a session or an order")
    for what, twins in log.get("case_twins", {}).items():
        first, second = twins["example"]
        text = f"{twins['n']:,} {what} differ from another in letter case alone, such as {first} and {second}"
        yield Finding("letter case", f"{text}; if they are the same, write them in one case")
    if one := log.get("largest_user"):
        share, limit = _percent(one["rows"] / metadata["rows"]), one["others_at_most"]
        text = (
            f"user {one['user']} has {one['rows']:,} of {metadata['rows']:,} rows ({share}), perhaps all guests or a "
            f"robot; --preprocessing.max_user_interactions={limit} leaves it out"
        )
        yield Finding(LARGE_USER, text, is_damage=True)


def _target_findings(log: Mapping[str, Any], metadata: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the share of targets whose item is in the input of their prediction, and what to type."""
    counted = log.get("copies")
    if not counted or counted["targets"] < COPIED_FROM * max(1, counted["of"]):
        return
    shares = {name: _percent(n / counted["of"]) for name, n in counted.items()}
    text = (
        f"{shares['since_last']} of the targets are of an item that the user's input has since the target before, "
        f"{shares['in_visit']} in the same visit; a model then learns to copy"
    )
    option = f"--preprocessing.hide_before_target={what_to_hide(counted, metadata['preprocessing'])}"
    yield Finding("answers in the input", f"{text}; {option} hides these events")


def _row_findings(log: Mapping[str, Any], metadata: Mapping[str, Any]) -> Iterator[Finding]:
    n_rows = metadata["rows"]
    once = "--preprocessing.repeats=first_in_a_row keeps the first"
    if (share := log["duplicates"] / n_rows) >= DUPLICATES_FROM:
        text = f"{_percent(share, 1)} of the rows repeat the row before (user, item and time); {once}"
        yield Finding(DUPLICATES, text, share >= DAMAGED_FROM)
    if (share := (log["repeats_in_a_row"] - log["duplicates"]) / n_rows) >= REPEATS_FROM:
        what = "item and kind of event" if metadata.get("events") else "item"
        yield Finding("repeats", f"{_percent(share)} of the rows have the same {what} as the row before; {once}")
    if log["has_dates_only"]:
        yield Finding("times", "dates without a time of day")
    heavy = log["heavy_users"]
    if heavy and (heavy["users"] > 1 or "largest_user" not in log):
        n, limit, share = heavy["users"], heavy["limit"], heavy["rows"] / n_rows
        text = (
            f"{pluralize(n, 'user')} {'has' if n == 1 else 'have'} more than {limit:,} rows each ({_percent(share)} of "
            f"all), perhaps robots; --preprocessing.max_user_interactions={limit} leaves them out"
        )
        yield Finding(HEAVY_USERS, text, share >= DAMAGED_FROM)


def _item_findings(log: Mapping[str, Any], n_items: int) -> Iterator[Finding]:
    since = datetime.fromtimestamp(log["recent_from"], UTC).date().isoformat()
    rare = f"have fewer than {RARE_ITEM_ROWS} rows and are hardly learnt"
    seasonal = f"have most of their rows in four months of the year; {USES_TIMES}"
    stock = "`bert4rec recommend … --allow=FILE` recommends only what is in stock"
    for key, name, least, text in (
        ("rare_items", "rare items", RARE_FROM, f"{rare}; --min-item-interactions={RARE_ITEM_ROWS} leaves them out"),
        ("gone_items", "gone items", GONE_FROM, f"have no row since {since}; {stock}"),
        ("new_items", "new items", NEW_FROM, f"appear only since {since}; prepare again often (`bert4rec extend`)"),
        ("seasonal_items", "season", SEASONAL_FROM, seasonal),
    ):
        if (share := log[key] / n_items) >= least:
            yield Finding(name, f"{_percent(share)} of the items {text}")
    if shift := log.get("shift"):
        yield Finding("shift", f"{_shift_text(shift)}; {USES_TIMES}")


def _shift_text(shift: Mapping[str, Any]) -> str:
    """Return what has moved since the last weeks began."""
    if "popular" in shift:
        named = {"the tenth of the items with most rows": shift["popular"]}
    else:
        named = {f"{shift['column']} {value}": shares for value, shares in shift["values"].items()}
    moved = [
        f"{name} {'rises' if since > before else 'falls'} from {_percent(before)} to {_percent(since)}"
        for name, (before, since) in named.items()
    ]
    day = datetime.fromtimestamp(shift["since"], UTC).date().isoformat()
    return f"{', '.join(moved)} of the rows since {day}"


def _column_findings(log: Mapping[str, Any]) -> Iterator[Finding]:
    for name, values in log["events"].items():
        kinds = ", ".join(f"{value} {_percent(share)}" for value, share in values.items())
        text = f"{name} has {kinds}; all are treated alike; --data.event_column={name} distinguishes them"
        yield Finding("events", text)
    for name in log["sessions"]:
        yield Finding("sessions", f"{name}; --user={name} makes each session a history of its own")


def _percent(share: float, digits: int = 0) -> str:
    return f"{100 * share:.{digits}f} %"
