"""`bert4rec recommend RUN …`: the best next items for histories, in the interactions' own ids."""

import argparse
import logging
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert4rec.config.values import instant
from bert4rec.runtime.console import BAR, NO_BAR, ProgressBar, log_to_terminal
from bert4rec.runtime.errors import DataError, SettingsError
from bert4rec.runtime.installation import importing
from bert4rec.runtime.wording import clock, counted

if TYPE_CHECKING:
    from bert4rec.inference.files.histories import Histories
    from bert4rec.inference.history import History
    from bert4rec.inference.recommender import Recommendation, Recommender

LEFT_OUT = "seen items are left out, since users of these data hardly return to them (--seen=keep lets them come)"
KEPT = "seen items may come, since users of these data return to them (--seen=leave-out leaves them out)"
OF_PACKAGE = "seen items {what}, as this model was exported (--seen=keep|leave-out decides)"

logger = logging.getLogger(__name__)

SUMMARY = "the best next items for histories of items, with the model of a run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The run, whose histories, and what of the results."""
    parser.description = "Recommends the next items for histories, in the items' own ids, with titles where known."
    add_model_arguments(parser)
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument(
        "--items", metavar="ID,ID,…", help="one history, the oldest item first; empty: the most popular items"
    )
    asked.add_argument("--user", metavar="ID", nargs="+", help="users of the dataset, by their own ids")
    asked.add_argument("--all", action="store_true", help="all users of the dataset")
    asked.add_argument(
        "--histories", metavar="FILE", help="histories as JSON lines (- from standard input), CSV or Parquet"
    )
    parser.add_argument(
        "--output", metavar="FILE", type=Path, help=".jsonl, .csv or .parquet (default: to standard output)"
    )
    parser.add_argument(
        "--seen", choices=("leave-out", "keep"), help="items of the history itself (default: as the data suggest)"
    )
    parser.add_argument(
        "--at", metavar="INSTANT", help="recommend for this instant, 2026-01-31T12:00 (UTC) or seconds, with a model "
        'that knows that of the target, model.times = "target" (default: that of the last item of each history)',
    )  # fmt: skip
    parser.add_argument("--allow", metavar="FILE", type=Path, help="recommend only these items, one a line")
    parser.add_argument("--deny", metavar="FILE", type=Path, help="never recommend these items, one a line")


def add_model_arguments(parser: argparse.ArgumentParser, *, top: str = "items to find for each") -> None:
    """The run and its dataset, and how many items are to be found."""
    what = "run folder (its best weights), one of its checkpoints, or a model package"
    parser.add_argument("run_folder", metavar="RUN", type=Path, help=what)
    parser.add_argument("--top", metavar="N", type=int, default=10, help=f"{top} (default: 10)")
    parser.add_argument("--dataset", metavar="FOLDER", type=Path, help="the dataset folder, where it was moved")


def load_model(arguments: argparse.Namespace) -> "Recommender":
    """The model that `add_model_arguments` asks for; warnings go to stderr. Raises `UserError`."""
    with importing():
        from bert4rec.inference.load import load

    if arguments.top < 1:
        raise SettingsError(f"--top={arguments.top}: must be at least 1")
    log_to_terminal(stream="stderr")
    return load(arguments.run_folder, dataset=arguments.dataset)


def run(arguments: argparse.Namespace) -> int:
    """Recommend; the exit status: 0. Raises `UserError`."""
    with importing():
        from bert4rec.inference.files.recommendations import writer

    model = load_model(arguments)
    model.require_histories()
    options: dict[str, Any] = {
        "leave_out_seen": None if arguments.seen is None else arguments.seen == "leave-out",
        "allow": None if arguments.allow is None else _lines(arguments.allow),
        "deny": [] if arguments.deny is None else _lines(arguments.deny),
    }
    total, parts = _histories(arguments, model)
    if arguments.seen is None:
        logger.info(_why(model))
    if arguments.output is None and (arguments.items is not None or arguments.user):
        (asked_for,) = parts
        found_for = model.recommend([items for _, items in asked_for], arguments.top, **options)
        for (user, _), best in zip(asked_for, found_for, strict=True):
            print(as_table(best) if arguments.items is not None else f"{user}\n{as_table(best)}")
        return 0
    with writer(arguments.output) as write, ProgressBar(total or 1, form=BAR if total else NO_BAR) as bar:
        asked: deque[list[Any]] = deque()  # the names of the users whose histories were taken
        done = 0
        for found in model.recommend_in_parts(taken(parts, asked), arguments.top, **options):
            names = asked.popleft()
            write(list(zip(names, found, strict=True)))
            done += len(names)
            if bar.is_due():
                bar.show(done, _figures(bar, done, total))
    if arguments.output is not None:
        logger.info(f"{arguments.output}: recommendations for {counted(done, 'history')}")
    return 0


def taken(parts: "Iterable[Histories]", asked: deque[list[Any]]) -> "Iterator[list[History]]":
    """The histories of each part; the names of its users go to `asked`."""
    for part in parts:
        asked.append([user for user, _ in part])
        yield [items for _, items in part]


def _figures(bar: ProgressBar, done: int, total: int | None) -> str:
    left = f"  {clock(bar.seconds_left(done))} left" if total else ""
    return f"{counted(done, 'history')}  {done / max(bar.seconds, 1e-3):,.0f} a second{left}"


def _why(model: "Recommender") -> str:
    """Which items are left out where nothing was said, and why."""
    if model.is_package:
        return OF_PACKAGE.format(what="are left out" if model.leaves_out_seen else "may come")
    return LEFT_OUT if model.leaves_out_seen else KEPT


def as_table(found: "list[Recommendation]") -> str:
    """Rank, item, score and, where there are titles, title, in columns."""
    items = [str(one.item) for one in found]
    width = max(map(len, items), default=0)
    lines = (
        f"{rank:>4}  {item:<{width}}  {one.score:8.4f}  {one.title}".rstrip()
        for rank, (item, one) in enumerate(zip(items, found, strict=True), 1)
    )
    return "\n".join(lines)


def _histories(arguments: argparse.Namespace, model: "Recommender") -> "tuple[int | None, Iterable[Histories]]":
    """How many they are, where that is known, and the histories."""
    from bert4rec.inference.files.histories import read_file
    from bert4rec.inference.user_histories import UserHistories

    network = model.require_histories()
    timed: dict[str, Any] = {"with_times": network.knows_times, "at": _instant(arguments.at, network.times)}
    if arguments.items is not None:
        return 1, [[(1, [item for item in arguments.items.split(",") if item])]]
    if arguments.histories is not None:
        return None, read_file(arguments.histories, **timed)
    if model.dataset is None:
        raise SettingsError(
            "a model package has no users; name their dataset with --dataset=FOLDER, or give histories with --items or "
            "--histories"
        )
    users = UserHistories(model.dataset, model.ids, **timed)
    return (len(users), users.all()) if arguments.all else (len(arguments.user), [users.of(arguments.user)])


def _instant(text: str | None, times: str) -> int | None:
    """Seconds since 1970."""
    if text is None:
        return None
    if times != "target":
        raise SettingsError(f'--at={text}: this model knows no instant of the target: it has model.times = "{times}"')
    try:
        return instant(text)
    except ValueError:
        raise SettingsError(f"--at={text}: must be a time: 2026-01-31, 2026-01-31T12:00 or seconds") from None


def _lines(path: Path) -> list[str]:
    """What a file of one item a line names."""
    try:
        return [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise DataError(f"{path}: cannot be read: {reason}") from None
