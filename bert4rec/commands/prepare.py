"""`bert4rec prepare …`: raw interactions → dataset folder."""

import argparse
import shlex
from typing import get_args

from bert4rec.api import DOWNLOADED, RAW, make_dataset
from bert4rec.config.load import NO_FILE, parse_command_line, settings_file, settings_help
from bert4rec.config.recognition import without_secrets
from bert4rec.config.tables import Source
from bert4rec.runtime.console import log_to_terminal
from bert4rec.runtime.signals import log_interrupted

SUMMARY = "raw interactions → dataset folder"

SCRIPT = "python preprocessing.py"
REPLACE = "--data.replace"
SETS = [source for source in get_args(Source) if source.startswith("ml-")]  # can be downloaded


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--download`; any setting besides."""
    parser.usage = "%(prog)s [--config=FILE] [--download] [--table.key=value …]"
    parser.description = "Makes a dataset folder, by one process, whole or not at all."
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = settings_help()
    parser.set_defaults(settings=[])
    sets = f"the set data.source ({', '.join(SETS)}; default: {DOWNLOADED})"
    parser.add_argument("--download", action="store_true", help=f"fetch {sets} into {RAW}/ first")


def run(arguments: argparse.Namespace) -> int:
    """Make the dataset folder and print the next command; return 0, or 130 when stopped. Raises `UserError`."""
    log_to_terminal()
    words: list[str] = arguments.settings
    named, overrides = parse_command_line(words)
    file = settings_file(named)
    if file is None:
        print(NO_FILE, flush=True)
    try:
        _, source = make_dataset(file, overrides, download=arguments.download)
    except KeyboardInterrupt:
        log_interrupted("stopped: no dataset was written")
        return 130
    settings = _for_training([*words, *([f"--data.source={source}"] if source else [])])
    print(f"next: {_training(arguments.prog, settings)}")
    return 0


def _training(prog: str, settings: list[str]) -> str:
    """Return the command that trains with these settings, by the program `prog`."""
    if prog == SCRIPT:
        train = ["torchx", "run", "-s", "local_cwd", "dist.ddp", "-j", "1x2", "--script", "train.py"]
        return shlex.join([*train, "--", *settings] if settings else train)
    return shlex.join([*prog.split()[:-1], "train", *settings])


def _for_training(settings: list[str]) -> list[str]:
    """Return the settings without `data.replace`, which a run must not repeat, and without secrets in addresses."""
    words, kept = iter(settings), []
    for word in words:
        if word == REPLACE:
            next(words, None)  # its value
        elif not word.startswith(f"{REPLACE}="):
            kept.append(without_secrets(word))
    return kept
