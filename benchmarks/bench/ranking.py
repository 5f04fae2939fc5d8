"""Users ranked over the full catalogue by the ranker, beside scores of all items that are sorted batch by batch."""

import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from benchmarks.bench.timing import OURS, Case, timed
from benchmarks.evaluation_speed import CPU, batches, make_folder, open_folder, random_model
from bert4rec.dataset.held_out import EvaluationSplit
from bert4rec.evaluation.metrics import ranking_metrics
from bert4rec.evaluation.ranker import Ranker
from bert4rec.evaluation.scorers import ModelScorer

BATCH, MAX_LEN, K = 128, 50, 10
SORTED = "plain, argsort"


@contextmanager
def ranking_case(**sizes: int) -> Iterator[Case]:
    """The users of random data of these `sizes`, a random model, HR@10 and NDCG@10 without what users have seen."""
    with tempfile.TemporaryDirectory() as folder:
        dataset = open_folder(make_folder(Path(folder, "dataset"), MAX_LEN, **sizes))
        split = dataset.splits["test"]
        scorer = ModelScorer(random_model(dataset.n_items, MAX_LEN), device=CPU, max_len=MAX_LEN)
        contestants = {
            OURS: timed(lambda: our_metrics(scorer, split)),
            SORTED: timed(lambda: plain_metrics(scorer, split)),
        }
        what = f"{len(split):,} users, {dataset.n_items:,} items"
        yield Case("evaluation", what, "users", len(split), contestants)


def our_metrics(scorer: ModelScorer, split: EvaluationSplit) -> dict[str, float]:
    """By the ranker."""
    ranks = Ranker(scorer, batch_size=BATCH, device=CPU).rank(split, ["full"])
    found = ranking_metrics(ranks["full"], [K])
    return {name: found[name] for name in (f"HR@{K}", f"NDCG@{K}")}


@torch.no_grad()
def plain_metrics(scorer: ModelScorer, split: EvaluationSplit) -> dict[str, float]:
    """By sorting all scores of each user. The forward pass is the ranker's, over users sorted by length."""
    items = scorer.items(torch.arange(scorer.n_items))
    hits, gain = 0, 0.0
    for rows in batches(split, BATCH):
        assert rows.targets is not None
        targets = torch.from_numpy(rows.targets.astype(np.int64))
        hidden, _ = scorer.encode(rows, targets[:, None])
        scores = hidden @ items.T
        for row, history in enumerate(np.split(rows.items, rows.lengths.cumsum()[:-1])):
            scores[row, torch.from_numpy(history.astype(np.int64))] = -torch.inf
        best = scores.argsort(dim=1, descending=True)[:, :K].tolist()
        for target, found in zip(targets.tolist(), best, strict=True):
            if target in found:
                hits += 1
                gain += 1 / math.log2(found.index(target) + 2)
    return {f"HR@{K}": hits / len(split), f"NDCG@{K}": gain / len(split)}
