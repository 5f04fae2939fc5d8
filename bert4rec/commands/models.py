"""`bert4rec models ACTION MODEL`: list the versions of a model, go back to one, remove old ones, forget."""

import argparse
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from bert4rec.checkpoint.models_folder import (
    CHAMPION,
    PACKAGE,
    PREVIOUS_CHAMPION,
    Version,
    find_version,
    find_versions,
    prune,
    read_aliases,
    read_updates,
    roll_back,
)
from bert4rec.checkpoint.run_folder import REPORT, lock
from bert4rec.config.addresses import without_secrets
from bert4rec.dataset.format import ITEMS, USERS
from bert4rec.runtime.console import log_to_terminal, quiet_libraries
from bert4rec.runtime.errors import SettingsError, format_bytes, join_names, pluralize
from bert4rec.runtime.startup import importing

TEST_METRIC = "NDCG@10"
CHANGING = ("rollback", "prune", "forget")  # actions that no update may run beside
KEEP = 30  # versions that `prune` keeps by default
HEADS = ("version", "alias", "rows", "items", f"test {TEST_METRIC}", "decision", "size")
RIGHT_COLUMNS = ("rows", "items", f"test {TEST_METRIC}", "size")  # columns that are aligned on the right
NOT_KNOWN = "–"


class Answer(NamedTuple):
    """The result of an action: `text` for people, `values` for programs, and the exit status."""

    text: str
    values: Any
    status: int = 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the action, the model and their options."""
    parser.usage = (
        "%(prog)s (list | show | rollback | prune | forget) MODEL [VERSION] [--keep N] "
        "[--user ID] [--users FILE] [--item ID] [--prove] [--json]"
    )
    parser.description = (
        "Versions of a model never change; aliases say what they are. champion: the one that MODEL means wherever a "
        "run is taken; previous: the champion before it; challenger: the newest one that was not taken. "
        "list: all versions, the newest first. show: all that is known of VERSION. rollback: let the previous one be "
        "the champion; a second rollback undoes the first. prune: remove all but the newest N versions and those that "
        "an alias names. forget: remove the rows of users or items from the dataset, and their ids from all files of "
        "all versions; such items are not recommended any more. What versions have learnt from these rows stays in "
        "their weights; these versions are listed. The run that the model was made of, its dataset and the log are "
        "elsewhere and stay as they are."
    )
    add = parser.add_argument
    add("action", metavar="ACTION", choices=ACTIONS, help=", ".join(ACTIONS))
    add("model", metavar="MODEL", type=Path, help="models folder, which `bert4rec update MODEL --from RUN` makes")
    add("version", metavar="VERSION", nargs="?", help=f"with show: a version or an alias (default: {CHAMPION})")
    add("--keep", metavar="N", type=int, help=f"with prune: newest versions to keep (default: {KEEP})")
    add("--user", metavar="ID", action="append", help="with forget: a user, as in the log; may be given several times")
    add("--users", metavar="FILE", type=Path, help="with forget: a file with a user a line")
    add("--item", metavar="ID", action="append", help="with forget: an item, as in the log; may be given several times")
    events = "with forget: where a server keeps events, if not in MODEL/events.db: a file of SQLite or postgresql://…"
    add("--events", metavar="PLACE", default="", help=events)
    prove = "with forget: change nothing, but search every file of MODEL for the ids, and print what was looked at"
    add("--prove", action="store_true", help=f"{prove}; exit status 1 if they are found")
    add("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Do what the action says and print the answer; return its exit status. Raises `UserError`."""
    action, model = arguments.action, arguments.model
    if arguments.version is not None and action != "show":
        raise SettingsError(f"{arguments.version}: unexpected; `bert4rec models show MODEL` alone takes a version")
    if arguments.keep is not None and action != "prune":
        raise SettingsError(f"--keep={arguments.keep}: unexpected; `bert4rec models prune MODEL` alone takes it")
    for option in ("user", "users", "item", "events", "prove"):
        if getattr(arguments, option) and action != "forget":
            raise SettingsError(f"--{option}: unexpected; `bert4rec models forget MODEL` alone takes it")
    read_aliases(model)  # refuses any other folder before it gets a lock
    with lock(model) if action in CHANGING else nullcontext():
        answer = ACTIONS[action](arguments)
        if action in CHANGING and not arguments.prove:
            with importing():
                from bert4rec.update.finish import write_page  # imports Matplotlib

            write_page(model)
    print(json.dumps(answer.values, indent=1) if arguments.json else answer.text)
    return answer.status


def _list(arguments: argparse.Namespace) -> Answer:
    facts = [_facts(version) for version in reversed(find_versions(arguments.model))]
    return Answer(_table(facts), facts)


def _show(arguments: argparse.Namespace) -> Answer:
    version = find_version(arguments.model, arguments.version or CHAMPION)
    facts = _facts(version)
    updates = [line for line in read_updates(arguments.model) if line.get("version") == version.name]
    reasons = [reason for line in updates for reason in line.get("reasons", ())]
    run, package = shlex.quote(facts["folder"]), version.folder / PACKAGE
    rows = {
        "version": version.name,
        "aliases": ", ".join(version.aliases) or "none",
        "continues from": facts["parent"] or "nothing: it is the first",
        "decision": facts["decision"] or NOT_KNOWN,
        "trained on": f"{facts['rows']:,} rows, {facts['users']:,} users, {facts['items']:,} items",
        "until": f"{datetime.fromtimestamp(facts['last_time'], UTC):%Y-%m-%d %H:%M:%S} (UTC)",
        f"test {TEST_METRIC}": _number(facts[TEST_METRIC]),
        "size": format_bytes(facts["bytes"]),
        "run": facts["folder"],
        "package": str(package),
    }
    width = max(map(len, rows))
    lines = [*(f"{name:<{width}}  {value}" for name, value in rows.items()), *reasons]
    lines += ["", "Its figures, and recommendations of this version:", f"  bert4rec report {run}"]
    return Answer("\n".join([*lines, f"  bert4rec recommend {run} --all"]), facts | {"reasons": reasons})


def _roll_back(arguments: argparse.Namespace) -> Answer:
    aliases = roll_back(arguments.model)
    champion, before = aliases[CHAMPION], aliases[PREVIOUS_CHAMPION]
    again = shlex.join(["bert4rec", "models", "rollback", str(arguments.model)])
    text = f"{arguments.model}: the champion is {champion} again, instead of {before}; to undo this:\n  {again}"
    return Answer(text, aliases)


def _prune(arguments: argparse.Namespace) -> Answer:
    keep = KEEP if arguments.keep is None else arguments.keep
    removed = prune(arguments.model, keep=keep)
    left = pluralize(len(find_versions(arguments.model)), "version")
    freed = f", {format_bytes(sum(removed.values()))}" if removed else ""
    text = f"{arguments.model}: {pluralize(len(removed), 'version')} removed{freed}; {left} left"
    return Answer("\n".join([text, *(f"  {name}" for name in removed)]), {"removed": [*removed]})


def _forget(arguments: argparse.Namespace) -> Answer:
    users, items = [*(arguments.user or ()), *_lines(arguments.users)], arguments.item or []
    if not users and not items:
        raise SettingsError("forget: expected --user=ID, --users=FILE with a user a line, or --item=ID")
    if users and items:
        raise SettingsError("forget: users and items at once; forget the users first, then the items")
    if arguments.prove and arguments.events:
        place = without_secrets(arguments.events)
        raise SettingsError(f"--events={place}: --prove searches the files of MODEL alone; remove one of them")
    log_to_terminal(stream="stderr")
    model, table, names = arguments.model, ITEMS if items else USERS, items or users
    return _prove(model, table, names) if arguments.prove else _forget_ids(model, table, names, arguments.events)


def _forget_ids(model: Path, table: str, names: Sequence[str], events: str) -> Answer:
    with importing():
        from bert4rec.update.forget import forget

    with quiet_libraries():
        forgotten = forget(model, table, names, events)
    counted, rows = pluralize(forgotten.n, table[:-1]), pluralize(forgotten.rows, "row")
    rows += f" and {pluralize(forgotten.events, 'event')}" if forgotten.events else ""
    unknown = f"; not in the dataset: {join_names(forgotten.unknown)}" if forgotten.unknown else ""
    lines = [f"{model}: {counted} with {rows} forgotten{unknown}"]
    if forgotten.versions:
        update = f"bert4rec update {shlex.quote(str(model))} --full"
        lines.append("These versions still carry what they have learnt from the rows:")
        lines += [f"  {name}" for name in forgotten.versions]
        lines += ["So does an update that continues from them; one that trains anew is free of it:", f"  {update}"]
    values = {table: forgotten.n, "rows": forgotten.rows, "unknown": forgotten.unknown, "versions": forgotten.versions}
    values["events"] = forgotten.events
    return Answer("\n".join(lines), values)


def _prove(model: Path, table: str, names: Sequence[str]) -> Answer:
    with importing():
        from bert4rec.update.forget import ids_of
        from bert4rec.update.prove import search, table_of

    ids = ids_of(model, table, names)
    looked = search(model, table, ids)
    n_files, found = sum(looked.files.values()), [str(path) for path in looked.found]
    without_id = pluralize(looked.n_forgotten, f"forgotten {table[:-1]}")
    rows = f", and no row of the {without_id}" if looked.n_forgotten else ""
    lines = [f"{model}: {join_names(ids)}: in none of {n_files:,} files{rows}"]
    if found:
        lines = [f"{model}: {join_names(ids)}: found in", *(f"  {path}" for path in found), "Looked at:"]
    values = {"files": looked.files, "values": looked.values, "bytes": looked.sizes, "found": found}
    return Answer("\n".join([*lines, table_of(looked)]), values, status=int(bool(found)))


def _lines(path: Path | None) -> list[str]:
    """Return the lines of a file that are not blank. Raises `SettingsError` if it cannot be read or has none."""
    if path is None:
        return []
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except (OSError, ValueError) as error:
        raise SettingsError(f"--users={path}: cannot be read: {error}") from None
    if not any(lines):
        raise SettingsError(f"--users={path}: is empty; write a user a line")
    return [line for line in lines if line]


ACTIONS: Mapping[str, Callable[[argparse.Namespace], Answer]] = {
    "list": _list, "show": _show, "rollback": _roll_back, "prune": _prune, "forget": _forget,
}  # fmt: skip


def _facts(version: Version) -> dict[str, Any]:
    """Return what is known of a version, with null for what is not."""
    about = dict.fromkeys(("time", "parent", "rows", "users", "items", "last_time", "fingerprint", "decision"))
    about |= version.about
    figures = {TEST_METRIC: _test_figure(version), "bytes": version.n_bytes, "folder": str(version.folder)}
    return {**about, "aliases": [*version.aliases], **figures}


def _test_figure(version: Version) -> float | None:
    try:
        report = json.loads((version.folder / REPORT).read_text(encoding="utf-8"))
        return float(report["test"]["full"][TEST_METRIC])
    except (OSError, ValueError, LookupError, TypeError):  # a log whose split has no test
        return None


def _number(value: float | None) -> str:
    return NOT_KNOWN if value is None else f"{value:.4f}"


def _table(facts: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of versions, a line each."""
    rows = [
        (
            one["time"], ", ".join(one["aliases"]), f"{one['rows']:,}", f"{one['items']:,}", _number(one[TEST_METRIC]),
            one["decision"], format_bytes(one["bytes"]),
        )
        for one in facts
    ]  # fmt: skip
    columns = [*zip(HEADS, *rows, strict=True)]
    widths = [max(map(len, column)) for column in columns]
    cells = (
        [f"{cell:>{width}}" if column[0] in RIGHT_COLUMNS else f"{cell:<{width}}" for cell in column]
        for column, width in zip(columns, widths, strict=True)
    )
    return "\n".join("  ".join(line).rstrip() for line in zip(*cells, strict=True))
