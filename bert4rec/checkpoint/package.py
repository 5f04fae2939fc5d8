"""Name the files of a model package and read its settings, with the standard library alone."""

import json
from pathlib import Path
from typing import Any

from bert4rec.runtime import files
from bert4rec.runtime.errors import DataError

FORMATS = ("safetensors", "vectors", "pt2", "onnx")  # export formats; the first one makes a model package
FORMAT, VERSION = "bert4rec model package", 6
USUAL_FORMATS = ("safetensors", "pt2")  # unless others are named
SETTINGS, WEIGHTS, ITEM_LINES, MODEL_CARD = "settings.json", "model.safetensors", "items.jsonl", "README.md"
PRIOR = "prior.safetensors"  # what is counted and added to the scores; in runs, too


def is_package(folder: Path) -> bool:
    """Return whether `folder` looks like a model package, even if it is damaged."""
    return (folder / SETTINGS).is_file()


def read_settings(folder: Path) -> dict[str, Any]:
    """Return the settings of a model package. Raises `DataError` if it is damaged or has no weights."""
    if problem := files.problem_of(folder):
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
