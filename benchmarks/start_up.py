"""The start of a training: seconds to the first step and memory, from a dataset and from a thousand times its size.

    python -m benchmarks.start_up [--sequences=20000,20000000] [--workers=0,4] [--rounds=5] [--folder=DIR] [--write]

The datasets differ in nothing but the number of users: each has 31 interactions with 1,000 items, that is 21 windows of
10. Each contestant is a torchrun of two processes on the CPU that train as train.py does, with small batches and a
narrow model, until step 200. Every round starts all contestants in turn; the table gives medians over the rounds.

    process there, settings read, torch there, all imported
                 seconds from the same start until a process has come so far: what lies between are its phases
    to step 1    seconds from the start of torchrun until both processes have made their first step
    PSS          proportional set size at step 200: of pages that several processes map, each has its share
    private      of these, the pages that no other process maps

Of the two processes, and of all their loader workers, the larger one counts. The datasets have just been written: they
are read from the kernel's cache. With --write the table goes to its place in docs/results-archive.md.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import polars as pl

from benchmarks.large_catalogue import ARCHIVE, ROOT, replaced
from bert4rec.config.load import load_config

ITEMS, LENGTH, WINDOW = 1000, 31, 10
WINDOWS = LENGTH - WINDOW  # of a user, one apart: the last interaction is held out
PROCESSES = 2
COLUMNS = {
    "to_start": "process there, s", "to_settings": "settings read, s", "to_torch": "torch there, s",
    "to_imports": "all imported, s", "to_step_1": "to step 1, s",
    "process_pss": "process: PSS MB", "process_private": "private MB",
    "worker_pss": "worker: PSS MB", "worker_private": "private MB",
}  # fmt: skip

Figures: TypeAlias = dict[str, float]


class Contestant(NamedTuple):
    """A training from so many sequences, with so many loader workers for each process."""

    sequences: int
    workers: int


def main() -> None:
    """Measure, print the table, put it into docs/results-archive.md if asked to."""
    options = _options()
    if options.write:
        replaced(ARCHIVE.read_text(), "start-up", "")  # rather now than after minutes
    measured: dict[Contestant, list[Figures]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="bert4rec-", dir=options.folder) as folder:
        settings = {n: prepare(Path(folder) / str(n), n) for n in options.sequences}
        for number in range(1, options.rounds + 1):
            for contestant in (Contestant(n, workers) for workers in options.workers for n in options.sequences):
                figures = measure(contestant, settings[contestant.sequences])
                measured[contestant].append(figures)
                shown = ", ".join(f"{COLUMNS[key]} {value:.1f}" for key, value in figures.items())
                n, workers = contestant
                print(f"round {number}  {n:,} sequences, {workers} workers: {shown}", flush=True)
    text = table(measured)
    print(f"\n{text}")
    if options.write:
        ARCHIVE.write_text(replaced(ARCHIVE.read_text(), "start-up", text))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sequences", type=_counts, default=[20_000, 20_000_000], help="of the datasets, about")
    parser.add_argument("--workers", type=_counts, default=[0, 4], help="loader workers of each process")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", help="where the datasets go for the time being; needs 5 GB for the large one")
    parser.add_argument("--write", action="store_true", help="put the table into docs/results-archive.md")
    return parser.parse_args()


def _counts(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def prepare(folder: Path, n_sequences: int) -> Path:
    """Make a dataset of about `n_sequences` windows in `folder`; the settings file of its trainings."""
    folder.mkdir()
    n_users = max(PROCESSES, round(n_sequences / WINDOWS))
    users = np.repeat(np.arange(n_users, dtype=np.int32), LENGTH)
    items = np.random.default_rng(1).integers(0, ITEMS, len(users), dtype=np.int32)
    pl.DataFrame({"user": users, "item": items}).write_parquet(folder / "log.parquet")
    config = load_config(
        None,
        {
            "data.source": "table", "data.path": str(folder / "log.parquet"),
            "data.dataset_dir": str(folder / "dataset"),
            "training.sliding_step": 1, "preprocessing.validation_users": 100,
            "preprocessing.n_eval_negatives": 10, "model.max_len": WINDOW, "model.embed_dim": 16, "model.ffn_dim": 32,
            "training.per_device_train_batch_size": 64, "parallelism.device": "cpu", "run.dir": str(folder / "runs"),
        },
    )  # fmt: skip
    settings = folder / "config.toml"
    settings.write_text(config.to_toml())
    subprocess.run(
        [sys.executable, "preprocessing.py", f"--config={settings}"], cwd=ROOT, stdout=subprocess.DEVNULL, check=True
    )
    (folder / "log.parquet").unlink()
    return settings


def measure(contestant: Contestant, settings: Path) -> Figures:
    """The figures of one start."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={PROCESSES}", "-m",
            "benchmarks.first_steps", f"{folder}/figures", str(time.time()), f"--config={settings}",
            f"--training.num_workers={contestant.workers}", f"--run.dir={folder}",
        ]  # fmt: skip
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        found = [json.loads(path.read_text()) for path in Path(folder).glob("figures*")]
        if done.returncode or len(found) < PROCESSES:
            raise SystemExit(f"{done.stdout}{done.stderr}\nfailed with status {done.returncode}: {command}")
    return {key: max(figures[key] for figures in found) for key in COLUMNS if key in found[0]}


def table(measured: dict[Contestant, list[Figures]]) -> str:
    """The medians as a Markdown table."""
    names = ["sequences", "workers", *COLUMNS.values()]
    lines = [f"| {' | '.join(names)} |", f"|{'|'.join(['---:'] * len(names))}|"]
    for (sequences, workers), rounds in measured.items():
        medians = [
            f"{statistics.median(figures[key] for figures in rounds):.1f}" if key in rounds[0] else ""
            for key in COLUMNS
        ]
        lines.append(f"| {sequences:,} | {workers} | {' | '.join(medians)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
