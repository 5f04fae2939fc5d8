"""New items: what a model with item features recommends of items that nobody has taken before.

    python -m benchmarks.cold_items LOG ITEMS [--share=0.1] [--seed=1] [--folder=cold] [--model=sasrec …]

LOG is a CSV file with user, item and time, or lines of a user and all its items; ITEMS a file of item features. A
random set of items is taken out of all histories, except where it is the last item of a history, so that about `share`
of the test targets are items that the model has never seen. The folder gets the log, its dataset with the features, and
two runs: with features and with ids alone. Printed are HR@10 and NDCG@10 over the whole catalogue of the cold, the warm
and all targets, with standard errors. Other options go to `bert4rec train`.
"""

import argparse
import math
from pathlib import Path

import numpy as np
import polars as pl

import bert4rec
from bert4rec.config.load import parse_command_line
from bert4rec.dataset.reader import open_dataset


def main() -> None:
    """Make the log, train, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("log", type=Path)
    parser.add_argument("items", type=Path)
    parser.add_argument("--share", type=float, default=0.1, help="of the test targets, which are new items")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("cold"))
    options, settings = parser.parse_known_args()
    options.folder.mkdir(exist_ok=True)
    file = options.folder / "log.csv"
    without_new_items(read_log(options.log), options.share, options.seed).write_csv(file)
    folder = options.folder / "data"
    bert4rec.prepare({
        "data.path": str(file), "data.items_path": str(options.items), "data.dataset_dir": str(folder),
        "preprocessing.validation_users": "all", "data.replace": True,
    })  # fmt: skip
    overrides = parse_command_line(settings)[1]
    popularity = open_dataset(folder).popularity
    print(
        "| | cold HR@10 | NDCG@10 | warm HR@10 | NDCG@10 | all HR@10 | NDCG@10 |\n|---|---:|---:|---:|---:|---:|---:|"
    )
    for name, changes in (("with features", {}), ("ids alone", {"model.item_features": False})):
        changes |= {"run.dir": str(options.folder / "runs"), "run.name": name.replace(" ", "-")}
        run = bert4rec.train(overrides | changes, dataset=folder)
        print(line(name, pl.read_parquet(run.folder / "ranks-test.parquet"), popularity), flush=True)


def line(name: str, ranks: pl.DataFrame, popularity: np.ndarray) -> str:
    """Return the line of the table for the `ranks` of a run."""
    rank, is_cold = ranks["full"].to_numpy(), popularity[ranks["target"].to_numpy()] == 0
    hit = (rank > 0) & (rank <= 10)
    gain = np.where(hit, 1 / np.log2(np.maximum(rank, 1) + 1), 0.0)
    cells = [
        f"{values[group].mean():.4f} ± {values[group].std() / math.sqrt(max(1, group.sum())):.4f}"
        for group in (is_cold, ~is_cold, np.ones(len(rank), bool))
        for values in (hit.astype(float), gain)
    ]
    return f"| {name} ({is_cold.sum():,} of {len(rank):,} cold) | {' | '.join(cells)} |"


def without_new_items(log: pl.DataFrame, share: float, seed: int) -> pl.DataFrame:
    """Return the `log` in which new items stand only at the end of a history, as the targets of the test."""
    user, item = log.columns[:2]
    time = next(name for name in log.columns if name.startswith("time"))
    log = log.select(user=user, item=item, time=time).sort("user", "time", maintain_order=True)
    log = log.with_columns(is_last=pl.int_range(pl.len()).over("user") == pl.len().over("user") - 1)
    targets = log.filter("is_last")["item"].value_counts().sort("item").sample(fraction=1, shuffle=True, seed=seed)
    new = targets.filter(pl.col("count").cum_sum() <= share * len(log.filter("is_last")))["item"]
    return log.filter(pl.col("is_last") | ~pl.col("item").is_in(new.implode())).drop("is_last")


def read_log(path: Path) -> pl.DataFrame:
    """Return `user`, `item` and `time` of each interaction, in order."""
    if path.suffix == ".csv":
        return pl.read_csv(path)
    lines = [line.split() for line in path.read_text().splitlines()]
    rows = [(line[0], item, time) for line in lines for time, item in enumerate(line[1:])]
    return pl.DataFrame(rows, schema=["user", "item", "time"], orient="row")


if __name__ == "__main__":
    main()
