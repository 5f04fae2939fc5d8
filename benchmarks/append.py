"""Measure what it takes to append a day to a large dataset: seconds, peak memory, and the bytes that are written.

    python -m benchmarks.append [--rows=10000000] [--users=500000] [--items=100000] [--folder=DIR]

The log is made up: users and items are drawn at random, a hundred days. It is prepared, and then comes one day after
another, each appended in a new process. Seconds are those of `append` alone; memory is the largest resident set of its
process. Parts are ranges of users. Those with new rows are written, and those whose rows were held out the day before,
since these are for training now; the others are links.
"""

import argparse
import multiprocessing
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

from bert4rec.__main__ import main as bert4rec
from bert4rec.dataset.format import FOLDERS
from bert4rec.prepare.append import append, settings_to_append

DAY, FIRST, DAYS = 86_400, 1_700_006_400, 100


def main() -> None:
    """Prepare the log, append the days, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--users", type=int, default=500_000)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--folder", help="where the files go for the time being")
    options = parser.parse_args()
    random, n_users = np.random.default_rng(1), options.users
    a_day = options.rows // DAYS
    days = [
        ("all users, the first day", a_day, n_users), ("all users", a_day, n_users), ("all users", 1000, n_users),
        ("1,000 neighbours", 1000, 1000), ("the same, the next day", 1000, 1000),
    ]  # fmt: skip
    print("| rows of | new rows | seconds | peak GB | parts written | bytes written | bytes linked |")
    print(f"|---|{'---:|' * 6}")
    with tempfile.TemporaryDirectory(prefix="bert4rec-", dir=options.folder) as folder:
        path, dataset = Path(folder) / "log.parquet", Path(folder) / "data"
        write_rows(path, random, options.rows, n_users, options.items, range(DAYS))
        bert4rec(["prepare", str(path), f"--data.dataset_dir={dataset}", "--config=/dev/null"])
        for number, (title, n_rows, n) in enumerate(days, DAYS):
            write_rows(path, random, n_rows, n, options.items, range(number, number + 1))
            new = Path(folder) / f"data-{number}"
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                seconds, peak = pool.apply(appended, (dataset, path, new))
            files = [file for name in FOLDERS for file in (new / name).glob("*.arrow")]
            written = [file for file in files if file.stat().st_nlink == 1]
            sizes = [sum(file.stat().st_size for file in some) / 1e6 for some in (written, {*files} - {*written})]
            parts = f"{len(written) // len(FOLDERS)} of {len(files) // len(FOLDERS)}"
            figures = f"{seconds:.1f} | {peak:.2f} | {parts} | {sizes[0]:.1f} MB | {sizes[1]:.1f} MB"
            print(f"| {title} | {n_rows:,} | {figures} |", flush=True)
            dataset = new


def write_rows(path: Path, random: np.random.Generator, n_rows: int, n_users: int, n_items: int, days: range) -> None:
    """Write random rows of these `days` as Parquet: a user has the number `n_users`, or a smaller one."""
    times = FIRST + DAY * days.start + np.sort(random.integers(0, DAY * len(days), n_rows))
    columns = {"user": random.integers(0, n_users, n_rows), "item": random.integers(0, n_items, n_rows), "time": times}
    pl.DataFrame(columns).write_parquet(path)


def appended(previous: Path, path: Path, new: Path) -> tuple[float, float]:
    """Append a day, and return the seconds and the peak of memory in GB."""
    began = time.monotonic()
    append(previous, settings_to_append(previous, {"data.path": str(path)}), new, tail=0.25, scored=new / "../scored")
    return time.monotonic() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


if __name__ == "__main__":
    main()
