"""A model package on the disk: a folder with all that recommends, and nothing that runs code when it is opened.

Weights as safetensors, the items' own ids as JSON lines, settings, programs, a card, and a manifest of them all.
"""

import json
from pathlib import Path
from typing import Any

from bert4rec.runtime import manifest
from bert4rec.runtime.errors import DataError

FORMATS = ("safetensors", "vectors", "pt2", "onnx")  # of an export; with the first it is a package
FORMAT, VERSION = "bert4rec model package", 3
SETTINGS, WEIGHTS, ITEMS, CARD = "settings.json", "model.safetensors", "items.jsonl", "README.md"


def is_package(folder: Path) -> bool:
    """Return whether `folder` looks like a model package, whole or not."""
    return (folder / SETTINGS).is_file()


def read_settings(folder: Path) -> dict[str, Any]:
    """Read the settings of a package that is whole and has weights. Raises `DataError`."""
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
        raise DataError(f"{folder}: has version {version} of the format, this program reads {VERSION}; export it again")
    if not (folder / WEIGHTS).is_file():
        raise DataError(f"{folder}: holds no {WEIGHTS}; export it again with --format=safetensors")
    return settings
