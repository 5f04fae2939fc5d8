"""Measure the cost of item features in training: step time and memory, with and without features, in turns.

    python -m benchmarks.item_features [--items=500000] [--features=100000,50000,…] [--table.key=value …]
    python -m benchmarks.item_features --dataset=data/ml-1m [--table.key=value …]

The first makes random data: 3,000 users, 200 interactions each, and features with one value an item, drawn with the
frequency 1 / number. The second takes a dataset folder that has features. Both train a SASRec, unless settings say
otherwise, by benchmarks/contestant.py, in processes of their own; --processes gives their number. The table has medians
over the rounds; the ratio is that of the two trainings of a round, which follow each other.

    planned MB           what the plan of the run needs of a process
    peak MB              proportional set size since the start, of the largest process
"""

import argparse
import statistics
import tempfile
from pathlib import Path

import numpy as np
import polars as pl

from benchmarks.large_catalogue import Figures, train
from bert4rec.__main__ import main as bert4rec

SIZES = [100_000, 50_000, 20_000, 10_000, 5_000, 1_000, 100, 10]
USERS, LENGTH = 3000, 200
COLUMNS = ("ms a step", "peak MB", "planned MB")


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=500_000)
    parser.add_argument("--features", default=",".join(map(str, SIZES)), help="numbers of values")
    parser.add_argument("--dataset", type=Path)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="of timed steps, for each training")
    options, settings = parser.parse_known_args()
    measured: dict[bool, list[Figures]] = {True: [], False: []}
    with tempfile.TemporaryDirectory(prefix="bert4rec-") as folder:
        place = Path(folder)
        dataset = options.dataset or _prepare(place, options.items, [int(n) for n in options.features.split(",")])
        usual = [f"--data.dataset_dir={dataset}", f"--run.dir={place}", "--model.kind=sasrec", "--device=cpu"]
        for _ in range(options.rounds):
            for has_features in measured:
                chosen = [*usual, f"--model.item_features={str(has_features).lower()}", *settings]
                figures = train(place / "figures.json", options.processes, options.seconds, chosen)
                measured[has_features].append(figures)
                print("with features" if has_features else "without", _cells([figures]), flush=True)
    print(f"\n|  | {' | '.join(COLUMNS)} |\n|---|---:|---:|---:|")
    for has_features, rounds in measured.items():
        print(f"| {'with features' if has_features else 'without'} | {' | '.join(_cells(rounds))} |")
    pairs = zip(measured[True], measured[False], strict=True)
    ratios = [one["step_seconds"] / other["step_seconds"] for one, other in pairs]
    print(f"\na step with features takes {statistics.median(ratios):.3f} times as long ({min(ratios):.3f} to "
          f"{max(ratios):.3f})")  # fmt: skip


def _cells(rounds: list[Figures]) -> list[str]:
    scales = {"step_seconds": 1e3, "peak_memory": 1e-6, "planned_memory": 1e-6}
    return [f"{statistics.median(times[key] for times in rounds) * scale:,.1f}" for key, scale in scales.items()]


def _prepare(place: Path, n_items: int, sizes: list[int]) -> Path:
    """Make random data with features of these numbers of values; return the dataset folder."""
    draw = np.random.default_rng(5)
    values = {f"feature{n}": np.minimum(n, n ** draw.random(n_items)).astype(np.int64) for n in sizes}
    columns = {name: pl.Series(column).cast(pl.String) for name, column in values.items()}
    pl.DataFrame({"item": np.arange(n_items), **columns}).write_parquet(place / "items.parquet")
    rows = {"user": np.arange(USERS * LENGTH) // LENGTH, "item": draw.integers(0, n_items, USERS * LENGTH)}
    pl.DataFrame(rows).write_parquet(place / "log.parquet")
    settings = {
        "data.source": "table", "data.path": place / "log.parquet", "data.items_path": place / "items.parquet",
        "data.dataset_dir": place / "dataset",
    }  # fmt: skip
    assert bert4rec(["prepare", *(f"--{key}={value}" for key, value in settings.items())]) == 0
    return place / "dataset"


if __name__ == "__main__":
    main()
