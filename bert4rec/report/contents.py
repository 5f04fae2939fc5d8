"""The files of a finished run, read for its page."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli

from bert4rec.checkpoint.run_folder import BEST, CHECKPOINTS, CONFIG, ENVIRONMENT, EXAMPLES, METRICS, PLAN, REPORT
from bert4rec.report.log import read_records

Settings = Mapping[str, Mapping[str, Any]]
"""Table → key → value."""


@dataclass(frozen=True)
class Contents:
    """The files of a run; those that a run without training lacks are empty.

    `n_evaluated`: how many other checkpoints of the run have been evaluated on the test since.
    """

    name: str
    report: dict[str, Any]
    train: list[dict[str, Any]]
    validations: list[dict[str, Any]]
    settings: Settings
    environment: dict[str, Any]
    plan: str
    examples: dict[str, Any]
    n_evaluated: int


def read_contents(folder: Path) -> Contents:
    """Return the files of the finished run in `folder`. Raises `OSError` or `ValueError` if it has no report."""
    has_records = (folder / METRICS).exists()
    return Contents(
        name=folder.absolute().name,
        report=json.loads((folder / REPORT).read_text()),
        train=read_records(folder, "train") if has_records else [],
        validations=read_records(folder, "validation") if has_records else [],
        settings=tomli.loads(_text(folder / CONFIG)),
        environment=json.loads(_text(folder / ENVIRONMENT) or "{}"),
        plan=_text(folder / PLAN),
        examples=json.loads(_text(folder / EXAMPLES) or "{}"),
        n_evaluated=_n_evaluated(folder),
    )


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _n_evaluated(folder: Path) -> int:
    """Return how many checkpoints, the best aside, `bert4rec evaluate` has tested into folders of the run."""
    found = set()
    for path in folder.glob(f"*/{REPORT}"):
        try:
            evaluated = json.loads(path.read_text())
            if "test" in evaluated:
                found.add(Path(evaluated["evaluation"]["weights"]["checkpoint"]).name)
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return len(found - {BEST, (folder / CHECKPOINTS / BEST).resolve().name})
