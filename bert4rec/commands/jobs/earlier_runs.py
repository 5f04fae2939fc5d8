"""Runs of an earlier benchmark that need not be made again: with the same settings, dataset and processes."""

import json
from pathlib import Path
from typing import Any

from bert4rec.checkpoint.run_folder import CHECKPOINTS, CONFIG, ENVIRONMENT, METADATA, REPORT, found, runs
from bert4rec.config.load import load_config
from bert4rec.config.tables import Config
from bert4rec.runtime.errors import UserError

AUTO = "auto"  # decided by the program, and the same for the same


def earlier_run(config: Config, *, fingerprint: str, n_processes: int) -> Path | None:
    """The run of that name in its folder that is finished, else the newest one that can be resumed.

    Others with the same name, of other settings or another dataset, stay as they are.
    """
    same = [
        run
        for run in reversed(runs(Path(config.run.dir), config.run_name))
        if _fingerprint(run) == fingerprint and _processes(run) == n_processes and _has_settings(run, config)
    ]
    return next((run for run in same if is_finished(run)), same[0] if same else None)


def is_finished(run: Path) -> bool:
    """Whether the run has its report."""
    return (run / REPORT).is_file()


def _fingerprint(run: Path) -> str:
    """Of the dataset that it was trained on; "" where there is neither a report nor a checkpoint."""
    if is_finished(run):
        return str(_read(run / REPORT).get("dataset", {}).get("fingerprint", ""))
    checkpoints = found(run / CHECKPOINTS)
    return str(_read(checkpoints[-1] / METADATA).get("fingerprint", "")) if checkpoints else ""


def _processes(run: Path) -> int:
    return int(_read(run / ENVIRONMENT).get("world_size", 0))


def _has_settings(run: Path, config: Config) -> bool:
    """Whether it was made with these settings, but for where data and runs stand."""
    try:
        saved = load_config(run / CONFIG).model_dump(mode="json")
    except UserError:
        return False
    tables = config.model_dump(mode="json")
    return all(
        value in (AUTO, saved[table][key])
        for table, values in tables.items()
        for key, value in values.items()
        if table not in ("data", "run")
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
