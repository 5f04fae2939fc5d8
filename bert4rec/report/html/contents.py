"""What a run folder says, read for its page."""

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
    """A run's files; what an older run, or one of a model without training, does not have is empty.

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
    """Of the finished run in `folder`. Raises `OSError` or `ValueError` where there is none."""
    report = json.loads((folder / REPORT).read_text())
    has_records = (folder / METRICS).exists()
    return Contents(
        name=folder.absolute().name,
        report=report,
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
    """The checkpoints but for the best whose test stands in a folder of `bert4rec evaluate` in the run's."""
    found = set()
    for path in folder.glob(f"*/{REPORT}"):
        try:
            evaluated = json.loads(path.read_text())
            if "test" in evaluated:
                found.add(Path(evaluated["evaluation"]["weights"]["checkpoint"]).name)
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return len(found - {BEST, (folder / CHECKPOINTS / BEST).resolve().name})
