"""The records of a run: metrics.jsonl and TensorBoard's events."""

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from torch.utils.tensorboard import SummaryWriter

from bert4rec.checkpoint.run_folder import METRICS

logger = logging.getLogger(__name__)


class MetricsLog:
    """Appends records to `metrics.jsonl` and their numbers to TensorBoard.

    A run that is resumed after step `purge_from` has its later steps once more: TensorBoard shows the last ones.
    """

    def __init__(self, folder: Path, *, purge_from: int = 0) -> None:
        self._is_full = False
        self._file = (folder / METRICS).open("ab+")
        _cut_torn_line(self._file)
        self._events = SummaryWriter(str(folder), purge_step=purge_from + 1 if purge_from else None)

    def add(self, kind: str, step: int, **values: Any) -> None:
        """One record: its kind ("train", "validation"), the step, and numbers or mappings of numbers."""
        self.add_note(kind, step, **values)
        for name, value in values.items():
            numbers = value.items() if isinstance(value, Mapping) else [("", value)]
            for key, number in numbers:
                with self._unless_full():
                    self._events.add_scalar(f"{kind}/{name}{'/' if key else ''}{key}", number, step)

    def add_note(self, kind: str, step: int, **values: Any) -> None:
        """A record that is no measurement, such as "resume"."""
        with self._unless_full():
            self._file.write((json.dumps({"kind": kind, "step": step, **values}) + "\n").encode())
            self._file.flush()  # what the disk does not take stays in the file's buffer, for the next time

    def close(self) -> None:
        """Write what is still held back."""
        with self._unless_full():
            self._file.close()
        with self._unless_full():
            self._events.close()

    @contextmanager
    def _unless_full(self) -> Iterator[None]:
        """A training does not end since its log cannot be written; said once."""
        try:
            yield
        except OSError as error:
            if not self._is_full:
                logger.info(f"{self._file.name}: {error.strerror}; the training continues, its log may have gaps")
            self._is_full = True


def _cut_torn_line(file: BinaryIO) -> None:
    """Cut what a process wrote that was killed in the middle of a line."""
    file.seek(0)
    content = file.read()
    file.truncate(content.rfind(b"\n") + 1)


def read_records(folder: Path, *kinds: str) -> list[dict[str, Any]]:
    """The records of some kinds from a run's `metrics.jsonl`, in order; not those of steps that were made once more."""
    records: list[dict[str, Any]] = []
    for line in (folder / METRICS).read_text().splitlines():
        record = json.loads(line)
        if record["kind"] == "resume":
            records = [earlier for earlier in records if earlier["step"] <= record["step"]]
        records.append(record)
    return [record for record in records if record["kind"] in kinds]
