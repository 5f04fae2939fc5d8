"""Run the stages of a preparation as tasks: functions from files to files that are each done once.

A task is a pure function `task(folder, *arguments)`: it writes files into the empty `folder`, the same bytes whenever
and wherever it runs, and returns a small dict that JSON can hold. Its folder gets its name when it is complete. So what
has a name is whole, a task that was lost with its process can be started again, and a new driver goes on where an older
one ended.
"""

import json
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, as_completed
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from bert4rec.prepare import shared_work
from bert4rec.prepare.executors import TaskExecutor, ThisProcess
from bert4rec.prepare.shared_work import RESULT, SharedWork
from bert4rec.runtime.arrays import Array
from bert4rec.runtime.errors import pluralize
from bert4rec.runtime.files import link_or_copy
from bert4rec.sources.progress import Progress

MOST_STAGES = 3  # that `slowest` names
N_THREADS = 2  # small tasks that one process runs at a time
Task: TypeAlias = Callable[..., dict[str, Any]]


class Done(NamedTuple):
    """The folder that a task has written, and what it returned."""

    folder: Path
    result: dict[str, Any]


def run_task(task: Task, folder: Path, arguments: Sequence[Any]) -> dict[str, Any]:
    """Return what `task` returns; it runs unless `folder` has its files already."""
    if not (folder / RESULT).is_file():
        attempt = folder.with_name(f"{folder.name}.{uuid.uuid4().hex}")
        attempt.mkdir()
        try:
            text = json.dumps(task(attempt, *arguments))
            (attempt / RESULT).write_text(text, encoding="utf-8")
            with suppress(OSError):  # another attempt may have been as fast
                attempt.rename(folder)
        finally:
            shutil.rmtree(attempt, ignore_errors=True)
    result: dict[str, Any] = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    return result


@dataclass(frozen=True)
class Timed:
    """A task that also returns how many seconds it took: they are in none of its files, which stay the same bytes.

    `shared`: the work in a bucket, if its files are there; then its arguments are packed.
    """

    task: Task
    shared: SharedWork | None = None

    def __call__(self, folder: Path, arguments: Any) -> tuple[float, dict[str, Any]]:
        """Return the seconds of `run_task`, and what it returns."""
        began = time.monotonic()
        if self.shared:
            result = self.shared.run(self.task, folder.name, arguments)
        else:
            result = run_task(self.task, folder, arguments)
        return time.monotonic() - began, result

    @property
    def __name__(self) -> str:
        """Return the name of the task, for messages."""
        return self.task.__name__


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield where to write a file for tasks, which then gets the name `path`.

    A killed driver's tasks, which a cluster ends a moment later, may still read an older one: it must not change.
    """
    unfinished = path.with_name(f"unfinished-{path.name}")
    yield unfinished
    unfinished.replace(path)
    shared_work.send(path)


def saved(path: Path, values: Array) -> Path:
    """Write an array that tasks map, and return its path."""
    with whole_file(path) as unfinished:
        np.save(unfinished, values)
    return path


class Stages:
    """Run tasks by an `executor`, with their files under the folder `work`, or in a bucket, the `shared` work.

    `delivered`: names of files of the dataset that are in the bucket already, with their addresses.
    """

    def __init__(
        self, work: Path, executor: TaskExecutor, progress: Progress, shared: SharedWork | None = None
    ) -> None:
        self.work, self._executor, self._progress, self._shared = work, executor, progress, shared
        self.delivered = dict[str, str]()
        self.seconds = dict[str, list[float]]()  # of each task, by stage

    def folder(self, stage: str, number: int) -> Path:
        """Return the folder of a task of a `stage`."""
        return self.work / f"{stage}-{number:06d}"

    def run(
        self, stage: str, task: Task, arguments: Sequence[tuple[Any, ...]], *, sizes: Sequence[int] = (),
        title: str = "", here: bool = False, are_small: bool = False, reads: Sequence[str] = (),
    ) -> list[Done]:  # fmt: skip
        """Return what `task` has done with each of `arguments`, in their order, and show the progress.

        `sizes` are the units of work of each; without a `title` nothing is shown. A result has its number of `rows`.
        The tasks run in this process if they are to run `here`; of those that `are_small`, a process that is the only
        one runs `N_THREADS` at a time. Of their files, this process `reads` those with names
        that fit one of these patterns.
        """
        futures: dict[Future[tuple[float, dict[str, Any]]], int] = {}
        results: list[dict[str, Any] | None] = [None] * len(arguments)
        seconds = self.seconds[stage] = [0.0] * len(arguments)
        total, done, n_done = sum(sizes), 0, 0
        executor = ThisProcess() if here else self._executor
        threads = executor.threads(N_THREADS) if are_small and isinstance(executor, ThisProcess) else nullcontext()
        with threads, self._progress.stage(title, total) if title else nullcontext() as bar:

            def finish(future: Future[tuple[float, dict[str, Any]]]) -> None:
                nonlocal done, n_done
                number = futures[future]
                seconds[number], result = future.result()
                if self._shared:
                    self._shared.fetch_files(self.folder(stage, number), reads)
                results[number] = result
                n_done += 1
                if bar:
                    done += sizes[number]
                    bar.advance(result["rows"], done, tasks=(n_done, len(arguments)))

            for number, values in enumerate(arguments):
                packed = self._shared.pack(values) if self._shared else values
                future = executor.submit(Timed(task, self._shared), self.folder(stage, number), packed)
                futures[future] = number
                if future.done():  # this process runs it
                    finish(future)
            for future in as_completed([*futures]):
                if results[futures[future]] is None:
                    finish(future)
        return [Done(self.folder(stage, number), result) for number, result in enumerate(results) if result is not None]

    def slowest(self) -> str:
        """Return a line with the slowest task of each of the slowest stages, and how often tasks were repeated.

        "" if this process alone has run them, each once.
        """
        n_repeats, lines = self._executor.n_repeats, list[str]()
        if not isinstance(self._executor, ThisProcess):
            most = {stage: max(seconds) for stage, seconds in self.seconds.items() if seconds}
            for stage in sorted(most, key=lambda stage: -most[stage])[:MOST_STAGES]:
                seconds = self.seconds[stage]
                number, median = seconds.index(most[stage]), sorted(seconds)[len(seconds) // 2]
                lines.append(f"{stage} {number} {most[stage]:.1f} s (median of {len(seconds):,}: {median:.1f} s)")
        slowest = [f"slowest tasks: {', '.join(lines)}"] if lines else []
        return "; ".join(slowest + ([f"{pluralize(n_repeats, 'repeat')} of failed tasks"] if n_repeats else []))

    def remove(self, stage: str, *patterns: str) -> None:
        """Delete the files of a stage with names that fit one of `patterns`; its tasks stay done."""
        if self._shared:
            self._shared.remove(stage, patterns)
        for pattern in patterns:
            for path in self.work.glob(f"{stage}-??????/{pattern}"):
                path.unlink()

    def deliver(self, place: Path, name: str, folder: Path) -> None:
        """Give the dataset that is made in `folder` the file `name` of the task's folder `place`."""
        if self._shared:
            self.delivered[name] = self._shared.address(place / name)
        else:
            link_or_copy(place / name, folder / name)
