"""Kinds of events: what a model gains that reads views but learns to predict purchases.

    python -m benchmarks.events [--users=1000] [--folder=events] [--model.kind=sasrec …]

The log is invented: a user views many items at random, popular ones more often, and purchases a few; after each
purchase, the next one is with probability 0.8 the successor of that item in a hidden order. Three trainings see the
same interactions before the held-out purchases, and are evaluated on the same purchases: without kinds of events, with
kinds as input and all of them predicted, and with `preprocessing.target_events = ["purchase"]`. The first two learn
from all interactions alike. Other options go to `bert4rec train`.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from datasets import load_from_disk

import bert4rec
from bert4rec.__main__ import main as command
from bert4rec.config.load import parse_command_line
from bert4rec.dataset.format import HISTORIES

N_ITEMS, N_PURCHASES, N_VIEWS, FOLLOWS = 300, 6, 5, 0.8
START = 1_700_000_000  # seconds before the first interaction


def main() -> None:
    """Make the logs, train, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("events"))
    options, settings = parser.parse_known_args()
    options.folder.mkdir(exist_ok=True)
    overrides = {
        "model.n_layers": 1, "model.embed_dim": 32, "model.dropout": 0.1, "training.per_device_train_batch_size": 32,
        "training.learning_rate": 0.003, "training.n_epochs": 20, "training.eval_every_n_epochs": 5,
        "training.patience": 0, "evaluation.baselines": [],
    }  # fmt: skip
    overrides |= parse_command_line(settings)[1] | {"run.dir": str(options.folder / "runs")}
    whole = make_log(options.users, np.random.default_rng(options.seed))
    target = {"preprocessing.target_events": ["purchase"], "data.event_column": "event"}
    purchases = prepare(options.folder, "purchases", whole, target)
    known = before_targets(whole, purchases)
    print("| training | HR@10 of purchases | NDCG@10 |\n|---|---:|---:|")
    for name, log, changes in (
        ("all alike", known.drop("event"), {"preprocessing.split": "none"}),
        ("kinds as input", known, {"preprocessing.split": "none", "data.event_column": "event"}),
        ("purchases predicted", None, {}),
    ):
        title = name.replace(" ", "-")
        dataset = purchases if log is None else prepare(options.folder, title, log, changes)
        run = bert4rec.train(overrides | {"run.name": title}, dataset=dataset)
        output = options.folder / f"{title}-on-purchases"
        if command(["evaluate", str(run.folder), str(purchases), f"--output={output}"]):
            raise SystemExit(f"{name}: the evaluation failed")
        figures = json.loads((output / "report.json").read_text())["test"]["full"]
        print(f"| {name} | {figures['HR@10']:.4f} | {figures['NDCG@10']:.4f} |", flush=True)


def make_log(n_users: int, draw: np.random.Generator) -> pl.DataFrame:
    """Return `user`, `item`, `time` and `event` of each interaction, in order."""
    successor = draw.permutation(N_ITEMS)
    popularity = 1 / np.arange(10, N_ITEMS + 10)
    rows = []
    for user in range(n_users):
        item, time = int(draw.integers(N_ITEMS)), 0
        for _ in range(N_PURCHASES):
            n_views = 1 + draw.poisson(N_VIEWS - 1)
            for viewed in draw.choice(N_ITEMS, n_views, p=popularity / popularity.sum()):
                rows.append((user, int(viewed), time := time + 1, "view"))
            rows.append((user, item, time := time + 1, "purchase"))
            item = int(successor[item]) if draw.random() < FOLLOWS else int(draw.integers(N_ITEMS))
    log = pl.DataFrame(rows, schema=["user", "item", "time", "event"], orient="row")
    return log.with_columns(pl.col("time") + START)


def prepare(folder: Path, name: str, log: pl.DataFrame, changes: dict[str, Any]) -> Path:
    """Return the dataset of the `log`, prepared with `changes`."""
    file, dataset = folder / f"{name}.csv", folder / name
    log.write_csv(file)
    places = {"data.path": str(file), "data.dataset_dir": str(dataset), "data.replace": True}
    bert4rec.prepare(places | changes)
    return dataset


def before_targets(log: pl.DataFrame, dataset: Path) -> pl.DataFrame:
    """Return the interactions of the `log` that are for training in the `dataset`."""
    users = pl.read_parquet(dataset / "users/*.parquet").select("user", "original")
    n_train = load_from_disk(str(dataset / HISTORIES)).to_polars().select("user", "n_train")
    ends = n_train.join(users, on="user").select(user="original", end="n_train")
    return log.join(ends, on="user", maintain_order="left").filter(pl.col("time") <= START + pl.col("end")).drop("end")


if __name__ == "__main__":
    main()
