"""The records of a run: metrics.jsonl, and what trackers get of it."""

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
    """Appends records to `metrics.jsonl`, and gives their numbers to the `trackers`."""

    def __init__(self, folder: Path, trackers: Sequence[Tracker] = ()) -> None:
        self._is_full = False
        self._file = (folder / METRICS).open("ab+")
        _cut_torn_line(self._file)
        self._trackers = trackers

    def add(self, kind: str, step: int, **values: Any) -> None:
        """One record: its kind ("train", "validation"), the step, and numbers or mappings of numbers."""
        self.add_note(kind, step, **values)
        for tracker in self._trackers:
            tracker.add(step, flat_numbers({kind: values}))

    def add_note(self, kind: str, step: int, **values: Any) -> None:
        """A record that is no measurement, such as "resume"."""
        with self._unless_full():
            self._file.write((json.dumps({"kind": kind, "step": step, **values}) + "\n").encode())
            self._file.flush()  # what the disk does not take stays in the file's buffer, for the next time

    def finish(self, results: Numbers, files: Sequence[Path]) -> None:
        """What came out of the run, for the trackers, and the files that show it."""
        for tracker in self._trackers:
            tracker.finish(results, files)

    def close(self, *, is_finished: bool = True) -> None:
        """Write what is still held back; `is_finished`: whether the run came to its end."""
        with self._unless_full():
            self._file.close()
        for tracker in self._trackers:
            tracker.close(is_finished=is_finished)

    @contextmanager
    def _unless_full(self) -> Iterator[None]:
        """A training does not end since its log cannot be written; said once."""
        try:
            yield
        except OSError as error:
            if not self._is_full:
                logger.info(f"{self._file.name}: {error.strerror}; the training continues, its log may have gaps")
            self._is_full = True


def flat_numbers(values: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """The numbers of nested mappings, by the path to each.

    >>> flat_numbers({"train": {"loss": 0.5, "full": {"HR@1": 1.0}}})
    {'train/loss': 0.5, 'train/full/HR@1': 1.0}
    """
    found: dict[str, float] = {}
    for name, value in values.items():
        found |= flat_numbers(value, f"{prefix}{name}/") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


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
