"""A model package: a folder with all that recommends, and nothing that runs code when it is opened.

Weights as safetensors, the items' own ids as JSON lines, settings, programs, a card, and a manifest of them all.
"""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from bert4rec.dataset.schema import table_rows
from bert4rec.inference.item_ids import ItemIds
from bert4rec.inference.network import TABLE, Network, make_network
from bert4rec.runtime import manifest
from bert4rec.runtime.errors import DataError

FORMAT, VERSION = "bert4rec model package", 1
SETTINGS, WEIGHTS, ITEMS, CARD = "settings.json", "model.safetensors", "items.jsonl", "README.md"


def is_package(folder: Path) -> bool:
    """Whether `folder` looks like a model package, whole or not."""
    return (folder / SETTINGS).is_file()


def read_settings(folder: Path) -> dict[str, Any]:
    """Of a package all of whose files are as they were written. Raises `DataError`."""
    if problem := manifest.problem_of(folder):
        raise DataError(f"{folder}: this model package is damaged: {problem}; export it again, or copy it whole")
    try:
        settings: dict[str, Any] = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        form, version = settings["format"], settings["format_version"]
    except (ValueError, KeyError, TypeError):
        form, version = "something else", 0
    if form != FORMAT:
        raise DataError(f"{folder}: is no model package: {SETTINGS} does not say so")
    if version != VERSION:
        raise DataError(f"{folder}: has version {version} of the format, this program reads {VERSION}: update it")
    return settings


def read_network(folder: Path, settings: dict[str, Any]) -> Network:
    """The network of a package with these settings. Raises `DataError`."""
    try:
        network = make_network(read_weights(folder), settings["model"], is_causal=settings["is_causal"])
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        raise DataError(f"{folder}: {WEIGHTS} does not fit {SETTINGS}: {_first_line(error)}") from None
    if len(network.rows) != table_rows(settings["n_items"]):
        raise DataError(f"{folder}: {TABLE} has {len(network.rows):,} rows, not {table_rows(settings['n_items']):,}")
    return network


def read_weights(folder: Path) -> dict[str, Tensor]:
    """By the names of a checkpoint, without "model." before them. Raises `DataError`."""
    if not (folder / WEIGHTS).is_file():
        raise DataError(f"{folder}: holds no {WEIGHTS}; export it again with --format=safetensors")
    try:
        return load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{folder / WEIGHTS}: cannot be read: {_first_line(error)}") from None


def read_ids(folder: Path, settings: dict[str, Any]) -> ItemIds:
    """Of the items of a package with these settings. Raises `DataError`."""
    ids = ItemIds.read_lines(folder / ITEMS, are_numbers=settings["item_ids"] == "numbers")
    if len(ids) != settings["n_items"]:
        raise DataError(f"{folder}: {ITEMS} has {len(ids):,} items, not {settings['n_items']:,}")
    return ids


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
