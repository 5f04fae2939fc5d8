"""`bert4rec similar RUN ITEM …`: find the items whose vectors are nearest."""

import argparse

from bert4rec.commands.recommend import add_model_arguments, add_rule_arguments, as_table, load_model, read_rules
from bert4rec.runtime.console import visible


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the run and the items."""
    parser.description = (
        "Finds the items whose vectors have the largest cosine with that of an item; with a model that only counts, "
        "those with the highest scores after it."
    )
    add_model_arguments(parser)
    add_rule_arguments(parser)
    parser.add_argument("items", metavar="ITEM", nargs="+", help="items by their own ids")


def run(arguments: argparse.Namespace) -> int:
    """Print a table for each item, and return the exit status 0. Raises `UserError`."""
    model = load_model(arguments)
    similar = model.similar(arguments.items, arguments.top, rules=read_rules(arguments, model))
    for item, nearest in zip(arguments.items, similar, strict=True):
        (index,) = model.ids.indices([item])
        title = model.ids.titles_of([index])[0]
        print(f"{visible(f'{item} ({title})' if title else item, keep='')}\n{as_table(nearest)}")
    return 0
