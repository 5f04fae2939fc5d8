"""Recommendations for histories in the items' own ids, beside a loop that scores, masks and takes the best."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import torch

from benchmarks.bench.timing import OURS, Case, timed
from benchmarks.recommend import random_network
from bert4rec.serving.histories import ItemIds
from bert4rec.serving.network import Network
from bert4rec.serving.recommender import Recommender

MEAN_LENGTH, K, BATCH = 20, 10, 256
TOP_K = "plain, topk of all scores"


@contextmanager
def recommending_case(n_histories: int, n_items: int) -> Iterator[Case]:
    """The ten best of `n_items` for histories in memory, as lists in memory; a random model."""
    names = [f"item-{number}" for number in range(n_items)]
    network, histories = random_network(n_items), random_histories(n_histories, names)
    recommender = Recommender(network, ItemIds(pa.array(names)))
    contestants = {
        OURS: timed(lambda: recommender.recommend(histories, K)),
        TOP_K: timed(lambda: plain_recommend(network, names, histories)),
    }
    yield Case("recommend", f"{n_histories:,} histories, {n_items:,} items", "histories", n_histories, contestants)


def random_histories(n: int, names: Sequence[str]) -> list[list[str]]:
    """Of one to twice the mean length, items uniformly."""
    draw = random.Random(1)
    return [draw.choices(names, k=draw.randint(1, 2 * MEAN_LENGTH - 1)) for _ in range(n)]


@torch.no_grad()
def plain_recommend(
    network: Network, names: Sequence[str], histories: Sequence[Sequence[str]]
) -> list[list[tuple[str, float]]]:
    """The best items of each history, and their scores."""
    numbers = {name: number for number, name in enumerate(names)}
    results = []
    for first in range(0, len(histories), BATCH):
        asked = [[numbers[name] for name in history] for history in histories[first : first + BATCH]]
        recent = [torch.tensor(history[-network.max_len :]) for history in asked]
        hidden = network(torch.cat(recent), torch.tensor([len(history) for history in recent]))
        scores = hidden @ network.item_vectors.T
        for row, history in enumerate(asked):
            scores[row, history] = -torch.inf
        values, found = scores.topk(K)
        for row_values, items in zip(values.tolist(), found.tolist(), strict=True):
            results.append([(names[item], value) for item, value in zip(items, row_values, strict=True)])
    return results
