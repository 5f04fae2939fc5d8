"""The network and the item ids of a model package, in plain torch."""

from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file

from bert4rec.checkpoint.package import ITEMS, SETTINGS, WEIGHTS
from bert4rec.dataset.schema import table_rows
from bert4rec.inference.item_ids import ItemIds
from bert4rec.inference.network import Network, make_network
from bert4rec.models.names import TABLE
from bert4rec.runtime.errors import DataError, in_one_line

LONGEST = 200  # characters of an error that torch makes of all weights that are missing


def read_network(folder: Path, settings: dict[str, Any]) -> Network:
    """Read the network of a package with these settings. Raises `DataError`."""
    try:
        tensors = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{folder / WEIGHTS}: cannot be read: {in_one_line(error)[:LONGEST]}") from None
    try:
        network = make_network(tensors, settings["config"]["model"], is_causal=settings["is_causal"])
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        raise DataError(f"{folder}: {WEIGHTS} does not fit {SETTINGS}: {in_one_line(error)[:LONGEST]}") from None
    if len(network.rows) != table_rows(settings["n_items"]):
        raise DataError(f"{folder}: {TABLE} has {len(network.rows):,} rows, not {table_rows(settings['n_items']):,}")
    return network


def read_ids(folder: Path, settings: dict[str, Any]) -> ItemIds:
    """Read the items of a package with these settings. Raises `DataError`."""
    ids = ItemIds.read_lines(folder / ITEMS, are_numbers=settings["item_ids"] == "numbers")
    if len(ids) != settings["n_items"]:
        raise DataError(f"{folder}: {ITEMS} has {len(ids):,} items, not {settings['n_items']:,}")
    return ids
