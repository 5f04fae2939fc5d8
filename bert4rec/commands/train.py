"""`bert4rec train …`: train on a dataset folder and write a run folder, in one process or in those of a launcher."""

import argparse
import logging

from bert4rec.checkpoint.run_settings import load_run_settings
from bert4rec.commands import launched
from bert4rec.config.help import SHORT_OPTIONS, usual_help
from bert4rec.config.kinds import KINDS
from bert4rec.config.load import parse_command_line, take_positional
from bert4rec.config.tables import Config
from bert4rec.feed.fork_server import start_ahead
from bert4rec.runtime.console import log_to_terminal
from bert4rec.runtime.startup import importing

logger = logging.getLogger("bert4rec")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the help; any setting is an option."""
    parser.usage = "%(prog)s [DATASET] [--config=FILE] [--NAME=VALUE …] [--table.key=value …]"
    parser.description = (
        "Trains, validates, tests, and writes a report; under torchrun or torchx on many processes. DATASET: a folder "
        "that `bert4rec prepare` has made (default: the one that [data] names)."
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = usual_help(SHORT_OPTIONS, parser.prog)
    parser.set_defaults(settings=[])


def run(arguments: argparse.Namespace) -> int:
    """Train; return the exit status of `launched.run`."""
    return launched.run(lambda: _settings(arguments.settings), _train, resumes=True)


def _settings(argv: list[str]) -> Config | None:
    """Return the settings of the training; None for a finished run."""
    log_to_terminal(is_shown=launched.is_rank_zero(), outlives_reader=True)
    dataset, options = take_positional(argv)
    settings = load_run_settings(*parse_command_line(options), dataset=dataset, looks_around=True)
    for note in settings.notes:
        logger.info(note)
    if settings.finished:
        return None
    if settings.config.training.num_workers and KINDS[settings.config.model.kind].is_trained:
        start_ahead()  # while this process imports torch
    return settings.config


def _train(config: Config) -> None:
    with importing():
        from bert4rec.training.run import run as run_training  # imports torch, after the libraries are quiet

    run_training(config)
