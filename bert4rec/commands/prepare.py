"""`bert4rec prepare …`: make a dataset folder from raw interactions."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from bert4rec.api import DOWNLOADED, RAW, make_dataset
from bert4rec.checkpoint.run_folder import CHECKPOINTS, found
from bert4rec.config.help import DATA_OPTIONS, PREPARE_OPTIONS, usual_help
from bert4rec.config.load import (
    NO_FILE,
    Overrides,
    is_of_dataset,
    load_config,
    parse_command_line,
    settings_file,
    take_positional,
)
from bert4rec.config.sources import MOVIELENS
from bert4rec.config.stored import dataset_folder
from bert4rec.config.tables import Config
from bert4rec.runtime.console import log_to_terminal
from bert4rec.runtime.errors import ColumnUnknownError, DataError, SettingsError
from bert4rec.runtime.signals import log_interrupted

SCRIPT = "python preprocessing.py"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--download` and `--replace`; any setting is an option, too."""
    parser.usage = "%(prog)s [INPUT] [--download] [--config=FILE] [--NAME=VALUE …] [--table.key=value …]"
    parser.description = (
        "Makes a dataset folder from INPUT, in one process; if this fails, no folder is written. INPUT: a file, "
        f"folder, pattern or address of interactions, or one of {', '.join(MOVIELENS)}, which is downloaded; default: "
        "data.path and data.source"
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = usual_help(DATA_OPTIONS, parser.prog)
    parser.set_defaults(settings=[], short=PREPARE_OPTIONS)
    sets = f"the set data.source ({', '.join(MOVIELENS)}; default: {DOWNLOADED})"
    parser.add_argument("--download", action="store_true", help=f"fetch {sets} into {RAW}/ first")
    replace = "overwrite a dataset that runs were trained on, or of another input"
    parser.add_argument("--replace", action="store_true", help=replace)


def run(arguments: argparse.Namespace) -> int:
    """Make the dataset folder and print the next command; return 0, or 130 when stopped. Raises `UserError`."""
    log_to_terminal()
    source, words = take_positional(arguments.settings)
    is_set = source in MOVIELENS and not Path(source).exists()
    words = [*_input(source, words, is_set=is_set), *words]
    named, overrides = parse_command_line(words, arguments.short)
    if arguments.replace:
        overrides["data.replace"], overrides.typed["data.replace"] = True, "--replace"
    file = settings_file(named)
    if file is None:
        print(NO_FILE, flush=True)
    try:
        config = _make(file, overrides, download=arguments.download or is_set)
    except ColumnUnknownError as unknown:
        flags = [f"--{name}" for name in ("download", "replace") if getattr(arguments, name)]
        typed = [*arguments.prog.split(), *arguments.settings, *flags]
        raise DataError(unknown.with_command([*typed, *unknown.options])) from None
    except KeyboardInterrupt:
        log_interrupted("stopped: no dataset was written")
        return 130
    others = [typed for name, typed in overrides.typed.items() if not is_of_dataset(name)]
    is_usual = len(others) == len(overrides) and not arguments.download
    is_usual = is_usual and config.data.place == load_config(file, overrides).data.place
    places = ["" if is_usual else config.data.place, "" if named is None else f"--config={named}"]
    if run := _trained_on(config.data.extends):
        print(f"to go on from {run}: {shlex.join(['bert4rec', 'extend', str(run), config.data.place])}")
    print(f"next: {_training(arguments.prog, [*filter(None, places), *others])}")
    return 0


def _trained_on(dataset: str) -> Path | None:
    """Return the run on `dataset` with the newest checkpoint; None without."""
    from bert4rec.dataset.runs import runs_of  # imports Arrow

    runs = runs_of(dataset_folder(dataset)) if dataset else []
    saved = [(steps[-1].stat().st_mtime, run) for run in runs if (steps := found(run / CHECKPOINTS))]
    return max(saved)[1] if saved else None


def _make(file: str | None, overrides: Overrides, *, download: bool) -> Config:
    """Make the dataset; on a terminal, ask for a column that is not recognized."""
    while True:
        try:
            return make_dataset(file, overrides, download=download)
        except ColumnUnknownError as unknown:
            if not (sys.stdin.isatty() and sys.stdout.isatty()):
                raise
            likely = f"likely: {shlex.join(unknown.options)}" + (f"   ({unknown.counts})" if unknown.counts else "")
            column = input(f"{unknown.question}\n{likely}\ntype its name: ").strip()
            if column not in unknown.columns:
                raise
            overrides[f"data.{unknown.field}_column"] = column
            overrides.typed[f"data.{unknown.field}_column"] = f"--{unknown.field}={column}"


def _input(source: str, words: Sequence[str], *, is_set: bool) -> list[str]:
    """Return the setting that names the input. Raises `SettingsError` where `words` name another one."""
    names = ("--data.path", "--path", *(["--data.source"] if is_set else []))
    others = [word for word in words if word.partition("=")[0] in names]
    if source and others:
        raise SettingsError(f"{source} and {others[0]}: both name the input; remove one of them")
    return [f"--data.{'source' if is_set else 'path'}={source}"] if source else []


def _training(prog: str, words: list[str]) -> str:
    """Return the command that trains with `words`, after the program `prog` has prepared."""
    train = ["python", "train.py"] if prog == SCRIPT else [*prog.split()[:-1], "train"]
    return shlex.join([*train, *words])
