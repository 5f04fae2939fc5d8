"""`bert4rec update MODEL …`: make a model that stays current of a run, and update it with new rows."""

import argparse
import shlex
from pathlib import Path

from bert4rec.commands import launched
from bert4rec.config.addresses import without_secrets
from bert4rec.config.help import PREPARE_OPTIONS
from bert4rec.config.load import Overrides, parse_command_line
from bert4rec.runtime.console import log_to_terminal, quiet_libraries
from bert4rec.runtime.errors import SettingsError
from bert4rec.runtime.startup import importing
from bert4rec.serving.events import EVENTS_FILE

OF_A_SERVER = "events"  # as input
OF_THE_MODEL = ("model.", "preprocessing.", "run.")  # settings that the first version has decided
OF_NEW_ROWS = ("data.", "update.tail", "update.overlap_hours")  # settings without a meaning if there are none
OF_GOING_ON = ("update.minutes", "update.replay")  # settings without a meaning in a training anew


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the model, and the run that it is made of or the new rows."""
    parser.usage = (
        "%(prog)s MODEL (--from=RUN | --data=INPUT [--items=FILE] [--accept] [--full] | --full) [--table.key=value …]"
    )
    parser.description = (
        "Once, with --from: makes the folder MODEL of a finished run and its dataset. Then MODEL may be named wherever "
        "a run is taken, and means its champion. Every night, with --data: appends the new rows, which are read as the "
        "first log was, to its dataset; ranks the day with the champion before anything is learnt; trains a challenger "
        "from it; judges both by the end of the day, and makes the challenger the champion unless it is worse. The "
        "last line says blessed, refused, cannot tell, or stopped (by a check of the data). If this is interrupted, "
        "type the same again. On several processes: torchrun --standalone --nproc_per_node=2 -m bert4rec update …"
    )
    parser.epilog = (
        "--table.key=value: settings of [update], [parallelism], [training] and [evaluation]. In --query, {since} is "
        "the time of the last known row, less update.overlap_hours. Exit status: 0 taken, 3 not taken, 2 bad input"
    )
    parser.set_defaults(settings=[])
    parser.add_argument("model", metavar="MODEL", type=Path, help="the models folder, such as models/shop")
    first = "folder of a finished run of a transformer, whose dataset has times"
    parser.add_argument("--from", dest="first", metavar="RUN", type=Path, help=first)
    rows = (
        f"the new rows: a file, folder, pattern, address or database; or {OF_A_SERVER}: those that its server was sent"
    )
    parser.add_argument("--data", metavar="INPUT", default="", help=rows)
    events = f"where its server keeps events, if not in MODEL/{EVENTS_FILE}: a file of SQLite or postgresql://…"
    parser.add_argument("--events", metavar="PLACE", default="", help=events)
    accept = "learn from rows although a check has stopped them as unusual"
    parser.add_argument("--accept", action="store_true", help=accept)
    full = "train anew on all rows, instead of going on; may be typed without new rows"
    parser.add_argument("--full", action="store_true", help=full)


def run(arguments: argparse.Namespace) -> int:
    """Make or update the model; return 0, 3 if an update is not taken, or the status of a failure."""
    if arguments.first:
        if arguments.data or arguments.full or arguments.accept or arguments.settings:
            raise SettingsError("--from: makes the model, and takes nothing else; update it then: --data=INPUT")
        return _make(arguments)
    status = 0

    def update(given: Overrides) -> None:
        nonlocal status
        with importing():
            from bert4rec.update.nightly import Nightly  # imports torch

        options = {"full": arguments.full, "accept": arguments.accept, "events": _events(arguments)}
        outcome = Nightly(arguments.model, given, **options).run()
        status = outcome.status
        if launched.is_rank_zero():
            print(outcome.sentence)

    return launched.run(lambda: _given(arguments), update, resumes=False) or status


def _make(arguments: argparse.Namespace) -> int:
    """Make the models folder, and return the exit status 0. Raises `UserError`."""
    with importing():
        from bert4rec.update.versions import make_first_version

    log_to_terminal(stream="stderr")
    with quiet_libraries():
        version = make_first_version(arguments.model, arguments.first)
    model, about = shlex.quote(str(arguments.model)), version.about
    print(
        f"{arguments.model}: the champion is {version.name}, from {arguments.first}: {about['rows']:,} rows, "
        f"{about['users']:,} users, {about['items']:,} items\n\n"
        f"The next items of all users:\n  bert4rec recommend {model} --all\n"
        f"An update with new rows:\n  bert4rec update {model} --data=INPUT\n"
        f"Its versions:\n  bert4rec models list {model}"
    )
    return 0


def _events(arguments: argparse.Namespace) -> str:
    """Return where the server of the model keeps the events to read; "" if the rows are others."""
    return arguments.events or str(arguments.model / EVENTS_FILE) if arguments.data == OF_A_SERVER else ""


def _given(arguments: argparse.Namespace) -> Overrides:
    """Return the input and the settings of the command line. Raises `SettingsError`."""
    log_to_terminal(is_shown=launched.is_rank_zero(), outlives_reader=True)
    file, overrides = parse_command_line(arguments.settings, PREPARE_OPTIONS)
    if file is not None:
        raise SettingsError(
            "--config: a model has the settings of its first version; override them by --table.key=value"
        )
    typed = {**overrides.typed, **({"data.accept": "--accept"} if arguments.accept else {})}
    for name, text in typed.items():
        if name.startswith(OF_THE_MODEL):
            raise SettingsError(f"{text}: was decided with the first version of {arguments.model}; remove it")
        if arguments.full and name in OF_GOING_ON:
            raise SettingsError(f"{text}: is for an update that goes on from the champion; remove it, or --full")
        if not arguments.data and name.startswith(OF_NEW_ROWS):
            raise SettingsError(f"{text}: is about new rows; name them: --data=INPUT")
    if arguments.events and arguments.data != OF_A_SERVER:
        place = without_secrets(arguments.events)
        raise SettingsError(f"--events={place}: is for the events of a server: --data={OF_A_SERVER}")
    if arguments.data == OF_A_SERVER:
        if not arguments.events and not (arguments.model / EVENTS_FILE).is_file():
            raise SettingsError(
                f"--data={OF_A_SERVER}: there is no {arguments.model / EVENTS_FILE}; name it: --events=PLACE"
            )
    elif arguments.data:
        overrides["data.path"], overrides.typed["data.path"] = arguments.data, f"--data={arguments.data}"
    elif not arguments.full:
        raise SettingsError(
            "--data is missing: name the new rows, make the model: --from=RUN, or train it anew on all rows: --full"
        )
    return overrides
