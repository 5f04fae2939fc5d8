"""Compare what `bert4rec plan --rows` reckons with real preparations: tasks, files, bytes, memory, seconds.

    python -m benchmarks.prepare_accuracy [--sizes=ROWSxUSERSxITEMS,…] [--workers=2] [--texts] [--folder=DIR]

Each input is a Parquet file with rows of random users, items and times; with --texts ids are texts of 36 characters.
`bert4rec prepare` reads it with default settings, twice. Once in one process with one thread of Polars: seconds are
those of the CPU, which other programs on the machine change little. And once with workers: memory is the proportional
set size, looked at five times a second, the largest of the program itself and of one of its workers. Of each pair of
figures the first is reckoned, the second measured.
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
from bert4rec.prepare.reckon import Log, dataset_of, memory_of, seconds_of_program, stages_of, testable

ROW_GROUP, ID_BYTES = 1 << 20, 36
NAMES = {"shuffle": "shuffle-new"}
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
    written = sum(path.stat().st_size for path in files)
    found[stage] = {"tasks": len(done), "files": len(files), "written": written, "cpu": cpu}
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


def main() -> None:
    """Prepare each input twice, and print what was reckoned and what was measured."""
    options = _options()
    for sizes in options.sizes.split(","):
        n_rows, n_users, n_items = map(int, sizes.split("x"))
        with tempfile.TemporaryDirectory(prefix="bert4rec-", dir=options.folder) as folder:
            path = Path(folder) / "log.parquet"
            users, items = write_input(path, n_rows, n_users, n_items, texts=options.texts)
            log = Log(n_rows, users, items, ID_BYTES if options.texts else 0, testable(n_rows, users))
            print(f"{n_rows:,} rows, {users:,} users, {items:,} items{', ids: texts' * options.texts}", flush=True)
            print("\n".join(_lines(log, measure(path, Path(folder), 1), measure(path, Path(folder), options.workers))))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default=SIZES, help="rows x users x items of each input")
    parser.add_argument("--workers", type=int, default=2, help="workers of the preparation whose memory is measured")
    parser.add_argument("--texts", action="store_true", help="ids are texts of 36 characters")
    parser.add_argument("--folder", help="where the files go for the time being")
    return parser.parse_args()


def _lines(log: Log, alone: dict[str, Any], several: dict[str, Any]) -> Iterator[str]:
    """Yield the reckoned and the measured figures: seconds of a preparation in one process, memory with workers."""
    stages = stages_of(log)
    yield f"  {'':16}{'tasks':>16}{'files':>16}{'MB written':>20}{'seconds of a core':>20}"
    for stage in stages:
        found = alone["stages"][NAMES.get(stage.name, stage.name)]
        pairs = [
            f"{stage.tasks} {found['tasks']}", f"{stage.files} {found['files']}",
            f"{stage.written / 1e6:,.1f} {found['written'] / 1e6:,.1f}", f"{stage.seconds:.2f} {found['cpu']:.2f}",
        ]  # fmt: skip
        yield f"  {stage.name:16}{pairs[0]:>16}{pairs[1]:>16}{pairs[2]:>20}{pairs[3]:>20}"
    yield f"  the program: {seconds_of_program(log):.1f} {alone['own']:.1f} s"
    size, _, n_files = dataset_of(log, stages)
    yield f"  dataset: {size / 1e6:,.1f} {alone['dataset'] / 1e6:,.1f} MB, {n_files} {alone['dataset_files']} files"
    memory = memory_of(log)
    yield f"  memory of a task: {memory.task / 1e6:,.0f} {several['worker'] / 1e6:,.0f} MB"
    yield f"  memory of the program: {memory.program / 1e6:,.0f} {several['driver'] / 1e6:,.0f} MB"


def write_input(
    path: Path, n_rows: int, n_users: int, n_items: int, *, texts: bool, row_group: int = ROW_GROUP
) -> tuple[int, int]:
    """Write random interactions as a Parquet file; return the numbers of users and items that have some."""
    rng, columns = np.random.default_rng(1), dict[str, pl.Series]()
    for name, n in (("user", n_users), ("item", n_items)):
        ids = pl.int_range(n, eager=True)
        if texts:
            ids = pl.Series([str(uuid.UUID(bytes=rng.bytes(16))) for _ in range(n)])
        columns[name] = ids.gather(rng.integers(0, n, n_rows))
    frame = pl.DataFrame({**columns, "time": rng.integers(1_600_000_000, 1_700_000_000, n_rows)})
    frame.write_parquet(path, row_group_size=row_group)
    return frame["user"].n_unique(), frame["item"].n_unique()


def measure(path: Path, folder: Path, n_workers: int, *options: str) -> dict[str, Any]:
    """Return what each stage took, the peak bytes of memory of the program and of a worker, and the dataset's size."""
    place = folder / "found.json"
    command = [
        sys.executable, "-c", DRIVER, str(place), str(path), "--config=/dev/null",
        f"--data.dataset_dir={folder / 'dataset'}", f"--preprocessing.workers={n_workers}", *options,
    ]  # fmt: skip
    began, peaks = time.monotonic(), dict[int, int]()
    environment = os.environ | ({"POLARS_MAX_THREADS": "1"} if n_workers == 1 else {})
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
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


if __name__ == "__main__":
    main()
