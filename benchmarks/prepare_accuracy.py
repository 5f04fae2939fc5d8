"""What a preparation takes, by the plan of `bert4rec plan --rows` and measured: tasks, files, bytes, memory, seconds.

    python -m benchmarks.prepare_accuracy [--sizes=ROWSxUSERSxITEMS,…] [--workers=2] [--texts] [--folder=DIR]

Each input is a Parquet file with rows of random users, items and times; with --texts ids are texts of 36 characters.
`bert4rec prepare` reads it with default settings. Memory is the proportional set size, looked at 20 times a second: the
largest of the program itself and of one of its workers. Seconds of a task are those of a worker.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks.preprocessing import pss, tree

ROW_GROUP = 1 << 20
SIZES = "4000000x400000x400000,4000000x2000000x100000,4000000x100000x2000000"
SECONDS_BETWEEN_LOOKS = 0.2
DRIVER = """
import json, sys, time
from pathlib import Path
from bert4rec.__main__ import main
from bert4rec.prepare.stages import Stages

run, slowest, found = Stages.run, Stages.slowest, {}

def recorded(stages, stage, task, arguments, **options):
    began = time.process_time()
    done = run(stages, stage, task, arguments, **options)
    cpu = time.process_time() - began
    files = [path for folder, _ in done for path in folder.rglob("*") if path.is_file()]
    found[stage] = {"tasks": len(done), "files": len(files), "written": sum(path.stat().st_size for path in files), "cpu": cpu}
    return done

def ended(stages):
    for stage, about in found.items():
        about["seconds"] = stages.seconds[stage]
    own = time.process_time() - sum(about["cpu"] for about in found.values())
    Path(sys.argv[1]).write_text(json.dumps([own, found]))
    return slowest(stages)

Stages.run, Stages.slowest = recorded, ended
sys.exit(main(["prepare", *sys.argv[2:]]))
"""


def write_input(path: Path, n_rows: int, n_users: int, n_items: int, *, texts: bool, row_group: int = ROW_GROUP) -> tuple[int, int]:
    """Write random interactions as a Parquet file; return the numbers of users and items that have some."""
    rng, columns = np.random.default_rng(1), dict[str, pl.Series]()
    for name, n in (("user", n_users), ("item", n_items)):
        ids = pl.Series([str(uuid.UUID(bytes=rng.bytes(16))) for _ in range(n)]) if texts else pl.int_range(n, eager=True)
        columns[name] = ids.gather(rng.integers(0, n, n_rows))
    frame = pl.DataFrame({**columns, "time": rng.integers(1_600_000_000, 1_700_000_000, n_rows)})
    frame.write_parquet(path, row_group_size=row_group)
    return frame["user"].n_unique(), frame["item"].n_unique()


def measure(path: Path, folder: Path, n_workers: int, *options: str) -> dict[str, Any]:
    """Return what each stage took, the peak memory of the program and of a worker in bytes, and the size of the dataset."""
    place = folder / "found.json"
    command = [sys.executable, "-c", DRIVER, str(place), str(path), "--config=/dev/null",
               f"--data.dataset_dir={folder / 'dataset'}", f"--preprocessing.workers={n_workers}", *options]  # fmt: skip
    began, peaks = time.monotonic(), dict[int, int]()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        for pid in tree(process.pid):
            peaks[pid] = max(peaks.get(pid, 0), pss(pid))
        time.sleep(SECONDS_BETWEEN_LOOKS)
    if process.returncode:
        raise SystemExit(f"failed with status {process.returncode}: {' '.join(command)}")
    files = [path for path in (folder / "dataset").rglob("*") if path.is_file()]
    own, stages = json.loads(place.read_text())
    return {
        "own": own, "stages": stages, "seconds": time.monotonic() - began, "driver": peaks.pop(process.pid),
        "worker": max(peaks.values(), default=0), "dataset": sum(path.stat().st_size for path in files),
        "dataset_files": len(files),
    }  # fmt: skip
