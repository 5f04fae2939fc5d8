"""Preprocessing of a file of Goodreads' shape: seconds, rows a second and peak memory of every stage.

    python -m benchmarks.preprocessing [--rows=2000000,20000000,228648342] [--limits=20-200,5-] [--workers=1,2,ray:2]
                                       [--folder=DIR] [--write]

The file is made up: 261 rows a user in the mean, heavy-tailed (log-normal), as grouped by user, newest first, as the
real one; items by Zipf's law, as many for each row as in Goodreads (2.4 million in the full file). It is written once a
size, 20 bytes a row, and read by preprocessing.py with 100 + 100 negatives. The
first limits keep users of 20 to 200 interactions, a fifth of the rows; the second those of 5 and more, nearly all.

Seconds are those that preprocessing.py says of its stages; the total is that of the whole process, from its start.
Peak memory is the proportional set size of the process and all that it starts, looked at ten times a second: the pages
that they have mapped, not what the kernel keeps of files. The file has just been written: it is read from the kernel's
cache, as far as that holds it.
With --write the table goes to its place in docs/results-archive.md.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from benchmarks.large_catalogue import ARCHIVE, ROOT, replaced

ROWS, ITEMS = 228_648_342, 2_360_650  # of Goodreads
ROWS_PER_USER, SPREAD = 261, 1.35  # mean, and sigma of the logarithm: a fifth of the rows is of users of 20 to 200
USERS_AT_ONCE = 1 << 14
HEADER = "user_id,book_id,is_read,rating,is_reviewed\n"
STAGES = ("read", "shuffle", "order", "split", "write", "checksums")
STAGE_LINE = re.compile(r"\[ *[\d.]+ s\] (\w+) +[\d,]+ rows +([\d.]+) s")  # of prepare/progress.py
SECONDS_BETWEEN_LOOKS = 0.1


class Figures(NamedTuple):
    """What one preparation took: `stages` name → (seconds, peak GB); `total` seconds; `peak` GB; `kept` rows."""

    stages: dict[str, tuple[float, float]]
    total: float
    peak: float
    kept: str


def main() -> None:
    """Measure, print the table, put it into docs/results-archive.md if asked to."""
    options = _options()
    if options.write:
        replaced(ARCHIVE.read_text(), "preprocessing", "")  # rather now than after twenty minutes
    lines = []
    with tempfile.TemporaryDirectory(prefix="bert4rec-", dir=options.folder) as folder:
        for n_rows in options.rows:
            path = Path(folder) / "goodreads_interactions.csv"
            write_goodreads(path, n_rows)
            for limits in options.limits:
                for workers in options.workers:
                    figures = measure(path, Path(folder) / "dataset", *limits, workers)
                    lines.append(_line(n_rows, limits, workers, figures))
                    print(lines[-1], flush=True)
    text = "\n".join([*_heading(), *lines])
    print(f"\n{text}")
    if options.write:
        ARCHIVE.write_text(replaced(ARCHIVE.read_text(), "preprocessing", text))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=_counts, default=[2_000_000, 20_000_000, ROWS], help="sizes of the file")
    parser.add_argument("--limits", type=_limits, default=[(20, 200), (5, 0)], help="interactions of a user, from-to")
    parser.add_argument("--workers", type=lambda text: text.split(","), default=["1", "2"], help="also on Ray: ray:2")
    parser.add_argument("--folder", help="where the files go for the time being; needs 12 GB for the full size")
    parser.add_argument("--write", action="store_true", help="put the table into docs/results-archive.md")
    return parser.parse_args()


def _counts(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _limits(text: str) -> list[tuple[int, int]]:
    pairs = [part.partition("-") for part in text.split(",")]
    return [(int(least), int(most or 0)) for least, _, most in pairs]


def write_goodreads(path: Path, n_rows: int, *, seed: int = 1) -> None:
    """A CSV of about `n_rows` rows of Goodreads' shape."""
    rng = np.random.default_rng(seed)
    n_users, n_items = max(1, round(n_rows / ROWS_PER_USER)), max(100, round(ITEMS * n_rows / ROWS))
    weights = rng.lognormal(sigma=SPREAD, size=n_users)
    lengths = np.maximum(1, np.rint(weights / weights.sum() * n_rows)).astype(np.int64)
    ids = rng.permutation(n_items)  # by popularity
    with path.open("wb") as file:
        file.write(HEADER.encode())
        for first in range(0, n_users, USERS_AT_ONCE):
            part = lengths[first : first + USERS_AT_ONCE]
            n = int(part.sum())
            is_read = rng.integers(0, 2, n)
            rating = is_read * rng.integers(0, 6, n)
            rank = (n_items ** rng.random(n)).astype(np.int64) - 1  # Zipf's law: the logarithm is uniform
            users = np.repeat(np.arange(first, first + len(part)), part)
            frame = pl.DataFrame({"u": users, "i": ids[rank], "r": is_read, "s": rating, "v": rating // 5})
            frame.write_csv(file, include_header=False)


def measure(path: Path, dataset: Path, least: int, most: int, workers: str = "1") -> Figures:
    """The figures of one preparation of the file at `path`, for users of `least` to `most` interactions (0: any)."""
    engine, _, n_workers = workers.rpartition(":")
    command = [
        sys.executable, "preprocessing.py", "--config=/dev/null", "--data.source=goodreads", f"--data.path={path}",
        f"--data.dataset_dir={dataset}",
        f"--preprocessing.min_user_interactions={least}", f"--preprocessing.max_user_interactions={most}",
        f"--preprocessing.engine={engine or 'local'}", f"--preprocessing.workers={n_workers}",
    ]  # fmt: skip
    started = time.monotonic()
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    memory = _Memory(process)
    stages, kept = {}, ""
    assert process.stdout is not None
    for line in process.stdout:
        if found := STAGE_LINE.match(line):
            stages[found[1]] = (float(found[2]), memory.peak_of_stage())
        kept = line.split()[-1] if line.startswith("rows kept") else kept
    if process.wait():
        raise SystemExit(f"failed with status {process.returncode}: {' '.join(command)}")
    return Figures(stages, time.monotonic() - started, memory.peak, kept)


class _Memory:
    """Looks at the memory of a process and its children as long as it lives."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process, self.peak, self._stage = process, 0.0, 0.0
        threading.Thread(target=self._watch, daemon=True).start()

    def peak_of_stage(self) -> float:
        """GB, since the last call."""
        peak, self._stage = self._stage, 0.0
        return peak

    def _watch(self) -> None:
        while self._process.poll() is None:
            now = sum(map(pss, tree(self._process.pid))) / 1e9
            self.peak, self._stage = max(self.peak, now), max(self._stage, now)
            time.sleep(SECONDS_BETWEEN_LOOKS)


def tree(pid: int) -> Iterator[int]:
    yield pid
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split():
                yield from tree(int(child))
    except OSError:
        return  # it has ended


def pss(pid: int) -> int:
    """Bytes; 0 for a process that has ended."""
    try:
        found = re.search(r"^Pss: +(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return 1024 * int(found[1]) if found else 0


def _heading() -> list[str]:
    columns = [
        "rows",
        "users kept of",
        "rows kept",
        "workers",
        *[f"{stage}: s, GB" for stage in STAGES[:-1]],
        "total s",
        "rows/s",
        "peak GB",
    ]
    return [f"| {' | '.join(columns)} |", f"|{'|'.join(['---:'] * len(columns))}|"]


def _line(n_rows: int, limits: tuple[int, int], workers: str, figures: Figures) -> str:
    least, most = limits
    stages = [figures.stages[name] for name in STAGES[:-1]]
    cells = [
        f"{n_rows:,}", f"{least} to {most}" if most else f"{least} and more", figures.kept,
        workers,
        *[f"{seconds:.1f}, {gb:.2f}" for seconds, gb in stages],
        f"{figures.total:.0f}", f"{n_rows / figures.total:,.0f}", f"{figures.peak:.2f}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
