"""The records of a run: metrics.jsonl, and the numbers that trackers get."""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from bert4rec.checkpoint.run_folder import METRICS
from bert4rec.report.trackers import Numbers, Tracker

logger = logging.getLogger(__name__)


class MetricsLog:
    """Append records to `metrics.jsonl`, and send their numbers to the `trackers`."""

    def __init__(self, folder: Path, trackers: Sequence[Tracker] = ()) -> None:
        self._is_full = False
        self._file = (folder / METRICS).open("ab+")
        _cut_torn_line(self._file)
        self._trackers = trackers

    def add(self, kind: str, step: int, **values: Any) -> None:
        """Write a record: its kind ("train", "validation"), the step, and numbers or mappings of numbers."""
        self.add_note(kind, step, **values)
        for tracker in self._trackers:
            tracker.add(step, flat_numbers({kind: values}))

    def add_note(self, kind: str, step: int, **values: Any) -> None:
        """Write a record that is no measurement, such as "resume"."""
        with self._unless_full():
            self._file.write((json.dumps({"kind": kind, "step": step, **values}) + "\n").encode())
            self._file.flush()  # what a full disk refuses stays in the buffer until the next write

    def finish(self, results: Numbers, files: Sequence[Path]) -> None:
        """Send the results of the run, and the files that show them, to the trackers."""
        for tracker in self._trackers:
            tracker.finish(results, files)

    def close(self, *, is_finished: bool = True) -> None:
        """Write all that is buffered; `is_finished`: whether the run came to its end."""
        with self._unless_full():
            self._file.close()
        for tracker in self._trackers:
            tracker.close(is_finished=is_finished)

    @contextmanager
    def _unless_full(self) -> Iterator[None]:
        """Let a training continue if its log cannot be written, with one message."""
        try:
            yield
        except OSError as error:
            if not self._is_full:
                logger.info(f"{self._file.name}: {error.strerror}; the training continues, its log may have gaps")
            self._is_full = True


def flat_numbers(values: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return the numbers of nested mappings by their paths.

    >>> flat_numbers({"train": {"loss": 0.5, "full": {"HR@1": 1.0}}})
    {'train/loss': 0.5, 'train/full/HR@1': 1.0}
    """
    found: dict[str, float] = {}
    for name, value in values.items():
        found |= flat_numbers(value, f"{prefix}{name}/") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


def _cut_torn_line(file: BinaryIO) -> None:
    """Cut the last line if a process was killed while it wrote it."""
    file.seek(0)
    content = file.read()
    file.truncate(content.rfind(b"\n") + 1)


def read_records(folder: Path, *kinds: str) -> list[dict[str, Any]]:
    """Return the records of some kinds in order, without those of steps that a resumed run repeated."""
    records: list[dict[str, Any]] = []
    for line in (folder / METRICS).read_text().splitlines():
        record = json.loads(line)
        if record["kind"] == "resume":
            records = [earlier for earlier in records if earlier["step"] <= record["step"]]
        records.append(record)
    return [record for record in records if record["kind"] in kinds]
