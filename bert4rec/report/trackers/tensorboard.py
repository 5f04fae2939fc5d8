"""TensorBoard: event files in the run folder, `tensorboard --logdir=runs`."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert4rec.report.trackers.tracker import Numbers


class TensorBoard:
    """Events in `folder`, and at the end the `settings` (name → value) with the results, for its tab HPARAMS.

    A run that is resumed after step `purge_from` has its later steps once more: TensorBoard shows the last ones.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], *, purge_from: int = 0) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # TensorBoard reads files in the order of their names, which begin with the second.
        while any(folder.glob(f"events.out.tfevents.{int(time.time())}.*")):
            time.sleep(0.01)
        self._settings = {name: _plain(value) for name, value in settings.items()}
        self._events = SummaryWriter(str(folder), purge_step=purge_from + 1 if purge_from else None)

    def add(self, step: int, numbers: Numbers) -> None:
        """Scalars."""
        for name, number in numbers.items():
            self._events.add_scalar(name, number, step)

    def finish(self, results: Numbers, files: Sequence[Path]) -> None:
        """The settings and the results; files are there already."""
        self._events.add_hparams(self._settings, dict(results), run_name=".")

    def close(self, *, is_finished: bool) -> None:
        """Write what is still held back."""
        self._events.close()


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str) else str(value)
