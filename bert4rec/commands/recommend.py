"""`bert4rec recommend RUN …`: recommend the next items for histories, in their original ids."""

import argparse
import csv
import logging
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import tee
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert4rec.config.kinds import SEEN
from bert4rec.config.load import Overrides, load_config, parse_command_line
from bert4rec.config.tables import Data, Preprocessing, instant
from bert4rec.runtime.console import BAR, NO_BAR, ProgressBar, log_to_terminal, visible
from bert4rec.runtime.errors import ArgumentError, DataError, SettingsError, format_duration, join_names, pluralize
from bert4rec.runtime.startup import importing, threads_of_process

if TYPE_CHECKING:
    from bert4rec.serving.histories import Histories, History, ItemIds
    from bert4rec.serving.recommender import Recommendation, Recommendations, Recommender
    from bert4rec.serving.rules import Rules

COLUMN_SETTINGS = ("data.user_column", "data.item_column", "data.time_column")
FILE_SETTINGS = (
    *COLUMN_SETTINGS, "data.order_column", "data.event_column", "data.time_format", "data.separator", "data.has_header",
)  # fmt: skip
ABOUT_SEEN = {
    True: "are left out", False: "may be recommended",
    "by_item": "are left out, but those that people take again may be recommended",
}  # fmt: skip
MOST_UNKNOWN = 0.5  # largest share of unknown items in a file of --allow or --deny

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the run, the histories and the choice of results."""
    parser.description = "Recommends the next items for histories, by original id, with titles if known."
    parser.epilog = (
        f"--table.key=value: how the file of --histories is read, as in a preparation: {', '.join(FILE_SETTINGS)}"
    )
    parser.set_defaults(settings=[])
    add_model_arguments(parser)
    add_seen_argument(parser)
    add_query = parser.add_mutually_exclusive_group(required=True).add_argument
    quoted = "--items='\"Rook, Knight\",Plain'; empty: popular items"
    add_query("--items", metavar="ID,ID,…", help=f"one history, the oldest item first, as CSV writes it: {quoted}")
    add_query("--user", metavar="ID", nargs="+", help="users of the dataset, by their own ids")
    add_query("--all", action="store_true", help="all users of the dataset")
    add_query(
        "--for-item", metavar="ID", help="the users of the dataset whom the model gives the largest share of this item "
        "(log softmax over all items), without those who have it; --top says how many",
    )  # fmt: skip
    add_query(
        "--histories", metavar="FILE", help="histories as JSON lines (- from standard input), CSV or Parquet, or a "
        "file like the one that was prepared; rows are taken in the order of their times",
    )  # fmt: skip
    add = parser.add_argument
    add("-o", "--output", metavar="FILE", type=Path, help=".jsonl, .csv or .parquet (default: to standard output)")
    add(
        "--at", metavar="INSTANT", help="recommend for this instant, 2026-01-31T12:00 (UTC) or seconds, with a model "
        'whose input has the time, model.times = "target", or which hides events, preprocessing.hide_before_target '
        "(default: that of the last item of each history; for hidden events: now); with --items, for any model with "
        "times, the time of these items (default: now)",
    )  # fmt: skip
    add("--allow", metavar="FILE", type=Path, help="recommend only these items: one a line, or a column")
    add("--deny", metavar="FILE", type=Path, help="never recommend these items: one a line, or a column")
    add_rule_arguments(parser)
    unknown = (
        "accept users of --user who are not in the dataset (they get popular items), and a file of --allow or "
        "--deny although the model does not know most of its items"
    )
    add("--allow-unknown", action="store_true", help=unknown)


def add_model_arguments(parser: argparse.ArgumentParser, *, top: str = "items to find for each") -> None:
    """Add the run, its dataset and the number of items to find."""
    what = "run folder (its best weights), one of its checkpoints, a models folder (its champion), or a model package"
    parser.add_argument("run_folder", metavar="RUN", type=Path, help=what)
    parser.add_argument("--top", metavar="N", type=int, default=10, help=f"{top} (default: 10)")
    parser.add_argument("--dataset", metavar="FOLDER", help="the folder or address of the dataset, if it was moved")


def add_seen_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--seen`: whether items of the history are recommended."""
    about = "items of the history itself; by-item: keep those that people take again (default: as in the evaluation of "
    about += "the run)"
    parser.add_argument("--seen", choices=SEEN, help=about)


def add_rule_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `read_rules`."""
    add = parser.add_argument
    add(
        "--where", metavar="CONDITION", help="recommend only items that fulfil it: SQL over the columns of the items, "
        "such as \"in_stock and category <> 'books'\"",
    )  # fmt: skip
    add("--at-most", metavar="N", type=int, help="in each list at most N items with the same value of --per")
    add("--per", metavar="COLUMN", help="column of the items that --at-most counts")


def load_model(arguments: argparse.Namespace) -> "Recommender":
    """Load the model of `add_model_arguments`; warnings go to stderr. Raises `UserError`."""
    with importing():
        import torch

        from bert4rec.api import load

    if n_threads := threads_of_process(1):
        torch.set_num_threads(n_threads)
    if arguments.top < 1:
        raise SettingsError(f"--top={arguments.top}: must be at least 1")
    log_to_terminal(stream="stderr")
    return load(arguments.run_folder, dataset=arguments.dataset)


def run(arguments: argparse.Namespace) -> int:
    """Recommend and return the exit status 0. Raises `UserError`."""
    with importing():
        from bert4rec.commands.history_files import check_ending

    check_ending(arguments.output)
    _refuse_own_input(arguments)
    _refuse_with_item(arguments)
    overrides = _overrides(arguments)
    model = load_model(arguments)
    data = _data(overrides, model)
    options: dict[str, Any] = {
        "rules": read_rules(arguments, model),
        "leave_out_seen": None if arguments.seen is None else SEEN[arguments.seen],
        "allow": None if arguments.allow is None else _items("--allow", arguments, model.ids, data),
        "deny": [] if arguments.deny is None else _items("--deny", arguments, model.ids, data),
    }
    total, parts = _histories(arguments, model, data, is_named=bool(overrides.keys() & {*COLUMN_SETTINGS}))
    if arguments.for_item is not None:
        return _users_for_item(arguments, model, parts)
    if arguments.seen is None:
        what = ABOUT_SEEN[model.leaves_out_seen]
        origin = "this model was exported" if model.is_package else "in the evaluation of this run"
        logger.info(f"seen items {what}, as {origin} (--seen={'|'.join(SEEN)} decides)")
    parts, read = tee(parts)
    lists = model.recommend_in_parts(([history for _, history in part] for part in read), arguments.top, **options)
    pairs = zip(parts, lists, strict=True)
    unanswered = _Unanswered()
    answered = (unanswered.count([(user, best) for (user, _), best in zip(*pair, strict=True)]) for pair in pairs)
    if arguments.output is None and (arguments.items is not None or arguments.user):
        (rows,) = answered
        for user, best in rows:
            print(as_table(best) if arguments.items is not None else f"{visible(str(user), keep='')}\n{as_table(best)}")
    else:
        _write_all(arguments.output, answered, total)
    leaves_out = model.leaves_out_seen if arguments.seen is None else SEEN[arguments.seen]
    unanswered.warn(is_user=arguments.items is None, leaves_out_seen=bool(leaves_out))
    return 0


def _refuse_own_input(arguments: argparse.Namespace) -> None:
    """Raise `SettingsError` if the output would replace a file that is read."""
    for name in ("histories", "allow", "deny"):
        path = getattr(arguments, name)
        if path and arguments.output and Path(path).resolve() == arguments.output.resolve():
            raise SettingsError(f"--output={arguments.output}: is the file of --{name}; choose another name")


def _write_all(
    path: Path | None, answered: "Iterable[Sequence[tuple[Any, Recommendations]]]", total: int | None
) -> None:
    """Write the recommendations of the users, `total` if known."""
    from bert4rec.commands.history_files import writer

    is_new, done = path is None or not path.exists(), 0
    with writer(path) as write, ProgressBar(total or 1, form=BAR if total else NO_BAR) as bar:
        for rows in answered:
            write(rows)
            done += len(rows)
            if bar.is_due():
                left = f"  {format_duration(bar.seconds_left(done))} left" if total else ""
                speed = f"{done / max(bar.seconds, 1e-3):,.0f} a second"
                bar.show(done, f"{pluralize(done, 'history')}  {speed}{left}")
    if path is not None:
        logger.info(f"{path}: recommendations for {pluralize(done, 'history')}{_replaced(is_new=is_new)}")


def _replaced(*, is_new: bool) -> str:
    return "" if is_new else "; the file of before is replaced"


class _Unanswered:
    """Count the users who get no recommendation, for one warning that names the first ones."""

    def __init__(self) -> None:
        self._n, self._total, self._first = 0, 0, list[Any]()

    def count(self, rows: "list[tuple[Any, Recommendations]]") -> "list[tuple[Any, Recommendations]]":
        """Return `rows` after counting them."""
        users = [user for user, best in rows if not best]
        self._n, self._total = self._n + len(users), self._total + len(rows)
        self._first = [*self._first, *users][:4]
        return rows

    def warn(self, *, is_user: bool, leaves_out_seen: bool) -> None:
        """Warn if there is a history without a recommendation; with `is_user` the histories have the names of users."""
        if not self._n:
            return
        named, advice = f" ({join_names(self._first)})" if is_user else "", "relax --allow, --deny or --where"
        advice = f"--seen=keep recommends seen items, too; or {advice}" if leaves_out_seen else advice
        logger.warning(
            f"{self._n:,} of {pluralize(self._total, 'user' if is_user else 'history')} without a recommendation, "
            f"since no item is left for them{named}; {advice}"
        )


def _refuse_with_item(arguments: argparse.Namespace) -> None:
    """Raise `SettingsError` for an option that says nothing about the users of --for-item."""
    if arguments.for_item is None:
        return
    for name in ("allow", "deny", "where", "at_most", "per"):
        if getattr(arguments, name) is not None:
            option = f"--{name.replace('_', '-')}"
            raise SettingsError(f"{option}: limits the items of lists; with --for-item there is one item; remove it")


def _users_for_item(arguments: argparse.Namespace, model: "Recommender", parts: "Iterable[Histories]") -> int:
    """Print or write the users for the item of --for-item, and return the exit status 0."""
    from bert4rec.commands.history_files import USER_COLUMNS, writer

    item, path, leaves_out = arguments.for_item, arguments.output, SEEN[arguments.seen or "leave-out"]
    users = model.users_for(item, arguments.top, histories=parts, leave_out_seen=leaves_out)
    if path is None:
        width = max((len(str(one.user)) for one in users), default=0)
        for rank, one in enumerate(users, 1):
            print(f"{rank:>4}  {one.user!s:<{width}}  {one.score:8.4f}")
    else:
        is_new = not path.exists()
        with writer(path, USER_COLUMNS) as write:
            write([(model.ids.of(model.ids.indices([item]).tolist())[0], users)])
        logger.info(f"{path}: {pluralize(len(users), 'user')} for the item {item}{_replaced(is_new=is_new)}")
    if arguments.seen is None:
        logger.info("users who have the item are left out (--seen=keep keeps them)")
    return 0


def read_rules(arguments: argparse.Namespace, model: "Recommender") -> "Rules":
    """Return the rules of the options. Raises `SettingsError` for a condition or a column that cannot be used."""
    try:
        return model.rules(where=arguments.where, at_most=arguments.at_most, per=arguments.per)
    except ArgumentError as error:
        option, sign, problem = str(error).partition(" = ")
        raise SettingsError(f"--{option.replace('_', '-')}{sign.strip()}{problem}") from None


def as_table(found: "list[Recommendation]") -> str:
    """Return rank, item, score and, if known, title as columns of text."""
    items = [visible(str(one.item), keep="") for one in found]
    width = max(map(len, items), default=0)
    lines = (
        f"{rank:>4}  {item:<{width}}  {one.score:8.4f}  {visible(one.title, keep='')}".rstrip()
        for rank, (item, one) in enumerate(zip(items, found, strict=True), 1)
    )
    return "\n".join(lines)


def _overrides(arguments: argparse.Namespace) -> Overrides:
    """Return the typed settings. Raises `SettingsError` for one that does not say how a file of histories is read."""
    overrides = parse_command_line(arguments.settings)[1]
    for name, typed in overrides.typed.items():
        if name not in FILE_SETTINGS:
            raise SettingsError(
                f"{typed}: is not a setting of `bert4rec recommend`; expected: {', '.join(FILE_SETTINGS)}"
            )
        if arguments.histories is None:
            raise SettingsError(f"{typed}: says how a file of histories is read; name the file with --histories=FILE")
    return overrides


def _data(overrides: Overrides, model: "Recommender") -> Data:
    """Return the settings by which the model's data were read, with the `overrides`."""
    typed = load_config(None, overrides).data
    changes = {name.removeprefix("data."): getattr(typed, name.removeprefix("data.")) for name in overrides}
    return Data.from_saved(model.settings.get("data", {})).model_copy(update=changes)  # a package has no [data]


def _histories(
    arguments: argparse.Namespace, model: "Recommender", data: Data, *, is_named: bool
) -> "tuple[int | None, Iterable[Histories]]":
    """Return the number of histories, or None if it is unknown, and the histories."""
    from bert4rec.commands.history_files import read_histories
    from bert4rec.dataset.hidden import LAST_TARGET
    from bert4rec.sources.interactions import open_histories

    network = model.require_histories()
    if arguments.items is not None:
        return 1, [[(1, _given(split_items(arguments.items), arguments.at, network.times))]]
    at = _instant(arguments.at, network.times, is_used=network.times == "target" or model.hidden is not None)
    timed: dict[str, Any] = {"with_times": model.reads_times, "at": at, "with_events": bool(network.kinds)}
    if model.hidden is not None:
        is_now = at is None and model.hidden.before != LAST_TARGET
        advice = "; hidden as of now, --at=INSTANT names another time" if is_now else ""
        setting = f"preprocessing.hide_before_target = {model.hidden.before}"
        may_lack_times = arguments.histories is not None and not network.knows_times
        whole = "; histories without times are taken whole" if may_lack_times else ""
        logger.info(f"the last events of histories are no input, as in training ({setting}){advice}{whole}")
    if arguments.histories is not None:
        backwards = model.settings.get("preprocessing", {}).get("reverse_file_order", "auto")
        preprocessing = Preprocessing(reverse_file_order=backwards)
        open_rows = partial(open_histories, data=data, preprocessing=preprocessing, is_named=is_named)
        return None, read_histories(arguments.histories, open_rows, may_lack_times=not network.knows_times, **timed)
    users = model.users(**timed)
    if arguments.all or arguments.for_item is not None:
        return len(users), users.all()
    try:
        named = users.of(arguments.user, allow_unknown=arguments.allow_unknown)
    except DataError as error:
        raise DataError(f"--user: {error}; --allow-unknown recommends them popular items") from None
    return len(named), [named]


def split_items(text: str) -> list[str]:
    """Return the items of `--items`: a row of CSV, in which an item with a comma has quotes.

    >>> split_items('"Rook, Knight",Plain,')
    ['Rook, Knight', 'Plain']
    """
    rows = csv.reader([text], skipinitialspace=True, strict=True)
    try:
        return [item for row in rows for item in row if item]
    except csv.Error as error:
        raise SettingsError(f"--items={text}: {error}; expected: items as CSV writes them: 'a,\"b, c\"'") from None


def _given(items: list[str], at: str | None, times: str) -> "History":
    """Return the history of --items; for a model with times it is all of the time --at, by default of now."""
    seconds = _instant(at, times, is_used=times != "none")
    if seconds is not None:
        from bert4rec.serving.histories import TimedHistory

        return TimedHistory(items, [seconds] * len(items), seconds)
    if times != "none":
        logger.info("--items are taken as of now (--at=INSTANT names another time)")
    return items


def _instant(text: str | None, times: str, *, is_used: bool) -> int | None:
    """Return the query time in seconds since 1970, or None. Raises `SettingsError` if it is not `is_used`."""
    if text is None:
        return None
    if not is_used:
        raise SettingsError(f'--at={text}: the model does not use the time of the query: model.times = "{times}"')
    try:
        return instant(text)
    except ValueError:
        raise SettingsError(f"--at={text}: must be a time: 2026-01-31, 2026-01-31T12:00 or seconds") from None


def _items(option: str, arguments: argparse.Namespace, ids: "ItemIds", data: Data) -> list[Any]:
    """Return the items in the file of an `option`. Raises `DataError` if the model does not know enough of them."""
    from bert4rec.dataset.format import NO_ITEM
    from bert4rec.sources.user_tables import read_item_list

    path = arguments.allow if option == "--allow" else arguments.deny
    is_known = lambda items: (ids.indices(items) != NO_ITEM).tolist()  # noqa: E731
    items, column = read_item_list(path, is_known, item_column=data.item_column)
    n_known = int((ids.indices(items) != NO_ITEM).sum())
    named, noun = f"{option}={path}", f"{pluralize(len(items), 'item')}{f' in the column {column}' if column else ''}"
    if not n_known and (items or option == "--allow"):
        raise DataError(
            f"{named}: the model knows none of its {noun}{f', such as {items[0]}' if items else ''}; expected: an item "
            "a line or a table with a column item, in the ids of the interactions"
        )
    if len(items) - n_known > MOST_UNKNOWN * len(items) and not arguments.allow_unknown:
        raise DataError(
            f"{named}: the model knows {n_known:,} of its {noun}, fewer than half; correct the file, or accept it with "
            "--allow-unknown"
        )
    if column:
        logger.info(f"{named}: items from the column {column}")
    return items
