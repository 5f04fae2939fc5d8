"""Weights & Biases: a run on the disk alone, which `wandb sync` sends where it is wanted."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert4rec.report.trackers.tracker import Numbers

PROJECT = "bert4rec"  # where WANDB_PROJECT names no other
QUIET = {"WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true"}


class WeightsAndBiases:
    """A run named as `folder`, in its folder `wandb`, with the `settings` (name → value) as its configuration.

    Offline, unless WANDB_MODE says otherwise.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            name=folder.name,
            dir=str(folder),
            config=dict(settings),
            mode=os.environ.get("WANDB_MODE") or "offline",
            settings=wandb.Settings(silent=True, console="off", disable_git=True, save_code=False),
        )

    def add(self, step: int, numbers: Numbers) -> None:
        """The numbers with their step: validation and training may stand at the same."""
        self._run.log(dict(numbers), step=step)

    def finish(self, results: Numbers, files: Sequence[Path]) -> None:
        """The results as the run's summary, and the files."""
        self._run.summary.update(dict(results))
        for path in files:
            self._run.save(str(path), base_path=str(path.parent), policy="now")

    def close(self, *, is_finished: bool) -> None:
        """End the run."""
        self._run.finish(exit_code=0 if is_finished else 1)
