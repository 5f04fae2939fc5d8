"""One epoch of matrix factorisation at MovieLens 32M's size, on made-up ratings: pace, and memory of every process.

    python -m benchmarks.matrix_factorization [--rows=32000000] [--users=200948] [--items=87585] [--processes=2]
        [--workers=1] [--batch=16384] [--folder=FOLDER] [-- --table.key=value …]

The ratings are written as Parquet, prepared by `bert4rec prepare` into a dataset folder, and learnt by train.py under
torchrun on the CPU: 52 factors with biases, Adam and weight decay in dense shards. With --folder both stay there and
are used again. While the training runs, the memory of each of its processes is read every second from smaps_rollup:

    PSS      proportional set size: pages that processes share, the mapped dataset among them, count once among them all
    private  pages of that process alone

The table has a line for each tenth of the training: the largest training process and the largest loader process. Loader
processes hold nothing that grows with the rows where their private memory stays the same and is the same with more.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).parent.parent
ROWS_AT_ONCE = 1_000_000
SECONDS_BETWEEN_LOOKS = 1.0
MIB = 2**20


class Look(NamedTuple):
    """The memory of one process at one time, in bytes."""

    seconds: float
    is_loader: bool
    pss: int
    private: int


def main() -> None:
    """Make the data where they are missing, train, print the table."""
    options = _options()
    with tempfile.TemporaryDirectory(prefix="bert4rec-") as temporary:
        folder = Path(options.folder or temporary)
        dataset = _prepare(folder, options)
        looks, seconds = _train(folder, dataset, options)
        print(table(looks, seconds))
        print(_result(newest_run(folder), options))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("rows", 32_000_000), ("users", 200_948), ("items", 87_585), ("processes", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--workers", type=int, default=1, help="loader processes of each training process")
    parser.add_argument("--batch", type=int, default=16_384, help="pairs of a process and step")
    parser.add_argument("--folder", help="where the ratings, the dataset and the run stay")
    parser.add_argument("settings", nargs="*", help="of the training, behind --")
    return parser.parse_args()


def made_up(n_rows: int, n_users: int, n_items: int) -> Iterator[pa.RecordBatch]:
    """Ratings by users of unlike zeal of items of unlike fame; every user and every item has at least one."""
    draw = np.random.default_rng(1)
    user_ends, item_ends = (np.cumsum(draw.pareto(1.5, n) + 0.1) for n in (n_users, n_items))
    user_means, item_means = draw.normal(0, 0.4, n_users), draw.normal(0, 0.5, n_items)
    for first in range(0, n_rows, ROWS_AT_ONCE):
        rows = np.arange(first, min(first + ROWS_AT_ONCE, n_rows))
        users = np.searchsorted(user_ends, draw.random(len(rows)) * user_ends[-1])
        items = np.searchsorted(item_ends, draw.random(len(rows)) * item_ends[-1])
        users = np.where(rows < n_users, rows, users)
        items = np.where(rows < n_items, rows, items)
        taste = 3.5 + user_means[users] + item_means[items] + draw.normal(0, 0.8, len(rows))
        stars = (2 * taste.clip(0.5, 5)).round() / 2
        columns = {"user": users, "item": items, "rating": stars.astype(np.float32), "time": 10**9 + rows}
        yield pa.RecordBatch.from_pydict(columns)


def _prepare(folder: Path, options: argparse.Namespace) -> Path:
    """The dataset folder of as many rows in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{options.rows}-{options.users}-{options.items}"
    ratings, dataset = folder / f"{name}.parquet", folder / name
    if (dataset / "metadata.json").exists():
        return dataset
    batches = made_up(options.rows, options.users, options.items)
    first = next(batches)
    with pq.ParquetWriter(ratings, first.schema) as writer:
        writer.write_batch(first)
        for batch in batches:
            writer.write_batch(batch)
    columns = [f"--data.{kind}_column={kind}" for kind in ("user", "item", "rating", "time")]
    places = ["--data.source=table", f"--data.path={ratings}", f"--data.dataset_dir={dataset}"]
    began = time.monotonic()
    _run([sys.executable, "preprocessing.py", "--config=config.toml", *places, *columns, *_RECIPE])
    print(f"prepared {options.rows:,} ratings in {time.monotonic() - began:,.0f} s", flush=True)
    return dataset


_RECIPE = ["--preprocessing.split=none", "--model.max_len=200"]


def _train(folder: Path, dataset: Path, options: argparse.Namespace) -> tuple[list[Look], float]:
    """Train one epoch; what was seen of its processes, and how long it took."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={options.processes}", "train.py"]
    settings = [
        "--config=config.toml", f"--data.dataset_dir={dataset}", *_RECIPE, "--model.kind=matrix_factorization",
        "--model.embed_dim=52", "--training.loss=mse", "--training.rating_range=[0,5.5]",
        "--training.rating_validation=0.0", "--training.n_epochs=1", f"--training.num_workers={options.workers}",
        f"--training.per_device_train_batch_size={options.batch}", "--training.learning_rate=0.005",
        "--training.lr_schedule=one_cycle", "--parallelism.sparse_optimizer=adam", "--parallelism.device=cpu",
        "--parallelism.sparse_weight_decay=0.01", f"--run.dir={folder / 'runs'}", *options.settings,
    ]  # fmt: skip
    looks: list[Look] = []
    began = time.monotonic()
    with subprocess.Popen([sys.executable, *launcher, *settings], cwd=ROOT) as process:
        while process.poll() is None:
            looks += look(process.pid, time.monotonic() - began)
            time.sleep(SECONDS_BETWEEN_LOOKS)
    if process.returncode:
        raise SystemExit(process.returncode)
    return looks, time.monotonic() - began


def look(launcher: int, seconds: float) -> Iterator[Look]:
    """The memory of the training processes and of their loader processes, as far as these are there."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended meanwhile
            continue
    training = {pid for pid, parent in parents.items() if parent == launcher}
    servers = {pid for pid, parent in parents.items() if parent in training}
    for pid, parent in parents.items():
        if parent == launcher or parent in servers:
            try:
                text = Path(f"/proc/{pid}/smaps_rollup").read_text()
            except OSError:
                continue
            sizes = {name: 1024 * int(kb) for name, kb in re.findall(r"(\w+): +(\d+) kB", text)}
            yield Look(seconds, parent in servers, sizes["Pss"], sizes["Private_Clean"] + sizes["Private_Dirty"])


def table(looks: list[Look], seconds: float) -> str:
    """A line for each tenth of the time: the largest of each kind of process, in MiB."""
    lines = ["| time | training: PSS | private | loader: PSS | private |", "|---:|---:|---:|---:|---:|"]
    for tenth in range(10):
        part = [each for each in looks if tenth <= 10 * each.seconds / seconds < tenth + 1]
        by_kind = [[each for each in part if each.is_loader is is_loader] for is_loader in (False, True)]
        largest = [
            max((getattr(each, what) for each in some), default=0) for some in by_kind for what in ("pss", "private")
        ]
        cells = " | ".join(f"{size / MIB:,.0f}" for size in largest)
        lines.append(f"| {(tenth + 1) * seconds / 10:,.0f} s | {cells} |")
    return "\n".join(lines)


def newest_run(folder: Path) -> Path:
    """The run folder that was made last."""
    return max((folder / "runs").iterdir(), key=lambda path: path.stat().st_mtime)


def _result(run: Path, options: argparse.Namespace) -> str:
    report = json.loads((run / "report.json").read_text())
    training, ratings = report["training"], report["ratings"]
    return (
        f"{options.rows:,} ratings, {options.users:,} users, {options.items:,} items; {options.processes} processes, "
        f"each with {options.workers} loader processes, batches of {options.batch:,}: {training['steps']:,} steps in "
        f"{training['seconds']:,.0f} s, {training['sequences_per_second']:,.0f} pairs/s; RMSE {ratings['RMSE']:.4f} "
        f"(user and item means: {ratings['means_RMSE']:.4f})"
    )


def _run(command: list[str]) -> None:
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stdout)


if __name__ == "__main__":
    main()
