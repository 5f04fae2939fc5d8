"""Transitions that count less the older they are: NDCG@10 of the transition graph for validation users.

    python -m benchmarks.aged_transitions DATASET… [--days=0,20,60,180,365]

A transition counts 2^(-age / half-life); the age is that of its later item at the end of the log, 0 days mean that all
count alike. Items of the history are left out as in a training. The dataset needs times; takes items² × 4 bytes.
"""

import argparse
from pathlib import Path

import numpy as np

from bert4rec.config.resolve import MANY_REPEATS
from bert4rec.dataset.format import NO_ITEM, VALIDATION
from bert4rec.dataset.reader import Dataset, open_dataset
from bert4rec.models.baselines import DECAY, N_LAST_ITEMS, SMOOTHING
from bert4rec.models.prior import last_items
from bert4rec.models.transitions import TrainingHistories
from bert4rec.runtime.arrays import Float32s, Float64s

N_LAST, DAY = N_LAST_ITEMS["transition_graph"], 86_400


def main() -> None:
    """Print a line for each dataset and half-life."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("datasets", type=Path, nargs="+")
    parser.add_argument("--days", default="0,20,60,180,365")
    options = parser.parse_args()
    for folder in options.datasets:
        dataset = open_dataset(folder)
        for days in map(float, options.days.split(",")):
            print(f"{folder} {days:g} days: {ndcg(dataset, *graph(dataset, days * DAY)):.4f}", flush=True)


def graph(dataset: Dataset, half_life: float) -> tuple[Float32s, Float64s]:
    """Return the weights of transitions [V, V], and the share of each item [V]."""
    n, histories = dataset.n_items, TrainingHistories(dataset)
    weights, counts = np.zeros(n * n, np.float32), np.zeros(n)
    end = max(part.times.max() for part in histories.parts() if part.times is not None)
    for part in histories.parts():
        assert part.times is not None, "the dataset has times"
        aged = np.exp2(-(end - part.times) / half_life) if half_life else np.ones(len(part.items))
        counts += np.bincount(part.items, aged, n)
        for distance in range(1, N_LAST + 1):
            inputs = part.ends - distance
            targets = np.flatnonzero((inputs >= 0) & (part.users[inputs] == part.users))
            keys = part.items[inputs[targets]] * n + part.items[targets]
            np.add.at(weights, keys, (aged[targets] * DECAY ** (distance - 1)).astype(np.float32))
    return weights.reshape(n, n), counts / counts.sum()


def ndcg(dataset: Dataset, weights: Float32s, shares: Float64s) -> float:
    """Return the mean NDCG@10 of the validation users."""
    split = dataset.splits[VALIDATION]
    rows, totals = split.read(np.arange(len(split))), weights.sum(1)
    assert rows.targets is not None, "an evaluation split has targets"
    last, scores = last_items(rows.items, rows.lengths, N_LAST), np.zeros((len(split), dataset.n_items), np.float32)
    for place in range(N_LAST):
        users = np.flatnonzero(last[:, place] != NO_ITEM)
        items = last[users, place]
        scores[users] += DECAY**place * (weights[items] + SMOOTHING * shares) / (totals[items, None] + SMOOTHING)
    if dataset.share_of_repeats <= MANY_REPEATS:
        scores[rows.numbers, rows.items] = -1
    ranks = (scores >= scores[np.arange(len(split)), rows.targets][:, None]).sum(1)
    return float(np.where(ranks <= 10, 1 / np.log2(ranks + 1), 0).mean())


if __name__ == "__main__":
    main()
