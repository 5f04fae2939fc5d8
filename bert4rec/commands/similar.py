"""`bert4rec similar RUN ITEM …`: the items whose vectors are nearest."""

import argparse
from pathlib import Path

from bert4rec.commands.recommend import as_table
from bert4rec.runtime.console import log_to_terminal
from bert4rec.runtime.errors import SettingsError

SUMMARY = "the items most similar to an item, by the vectors that a run has learnt"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The run and the items."""
    parser.description = "Finds the items whose vectors have the largest cosine with that of an item."
    parser.add_argument("run_folder", metavar="RUN", type=Path, help="run folder (its best weights) or a checkpoint")
    parser.add_argument("items", metavar="ITEM", nargs="+", help="items by their own ids")
    parser.add_argument("--top", metavar="N", type=int, default=10, help="items for each item (default: 10)")
    parser.add_argument("--dataset", metavar="FOLDER", type=Path, help="the dataset folder, where it was moved")


def run(arguments: argparse.Namespace) -> int:
    """Print a table for each item; the exit status: 0. Raises `UserError`."""
    from bert4rec.inference.load import load

    if arguments.top < 1:
        raise SettingsError(f"--top={arguments.top}: must be at least 1")
    log_to_terminal(stream="stderr")
    model = load(arguments.run_folder, dataset=arguments.dataset)
    for item, found in zip(arguments.items, model.similar(arguments.items, arguments.top), strict=True):
        (index,) = model.ids.indices([item])
        title = model.ids.titles_of([index])[0]
        print(f"{item}{f' ({title})' if title else ''}\n{as_table(found)}")
    return 0
