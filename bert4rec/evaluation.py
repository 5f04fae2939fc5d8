"""Evaluation: every user's held-out item ranked among the whole catalogue and among sampled negatives.

Batches are cut once, whatever the number of processes, and dealt whole to the ranks; the ranks of the targets are
gathered, and only then become metrics. So 1, 2 and 3 processes give exactly the same figures.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from bert4rec.feed.batches import inference_batch
from bert4rec.feed.dataset import Rows, Split
from bert4rec.metrics import ranking_metrics, ranks_among, ranks_in_catalogue
from bert4rec.model import Bert4Rec

Scorer: TypeAlias = Callable[[Rows], Tensor]
"""Rows of an evaluation split → scores [B, n_items]."""

Ranks: TypeAlias = dict[str, npt.NDArray[np.int32]]
"""Protocol → the rank of the target of every row of the split, in its order."""

Metrics: TypeAlias = dict[str, dict[str, float]]
"""Protocol → metric → value."""


def model_scorer(model: Bert4Rec, device: torch.device, max_len: int, precision: str = "fp32") -> Scorer:
    """Scores by `model` (unwrapped, perhaps sharded); the vectors of the catalogue are looked up once, here."""
    model.eval()
    with torch.no_grad():
        vectors, bias = model.output_weights(device)

    @torch.no_grad()
    def score(rows: Rows) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            hidden = model.encode(inference_batch(rows, max_len).to(device))
        # In fp32 always: bf16 has so few digits that many scores would tie.
        return F.linear(hidden.float(), vectors, bias)

    return score


def popularity_scorer(popularity: npt.NDArray[np.int64], device: torch.device) -> Scorer:
    """Every item scores its number of training positions, `popularity` [n_items], for every user."""
    scores = torch.from_numpy(popularity).to(device, torch.float64)  # float32 rounds counts above 2^24
    return lambda rows: scores.expand(len(rows.lengths), -1)


def evaluate(score: Scorer, split: Split, *, protocols: Sequence[str], batch_size: int, device: torch.device) -> Ranks:
    """The ranks that `score` gives the targets of `split`; to be called by every process."""
    world_size = dist.get_world_size()
    ranks = {name: torch.zeros(len(split), dtype=torch.int32, device=device) for name in protocols}
    batches = list(_batches(split, batch_size))
    for first in range(0, len(batches), world_size):
        mine = first + dist.get_rank()
        # A rank without a batch of its own runs another's: the lookups of a sharded table need every process.
        indices = batches[min(mine, len(batches) - 1)]
        rows = split.read(indices)
        scores = score(rows)
        if mine < len(batches):
            where = torch.from_numpy(indices).to(device)
            for name in protocols:
                ranks[name][where] = _ranks(scores, rows, name).int()
    for values in ranks.values():
        dist.all_reduce(values)
    return {name: values.cpu().numpy() for name, values in ranks.items()}


def measure(
    score: Scorer,
    split: Split,
    *,
    protocols: Sequence[str],
    ks: Sequence[int],
    batch_size: int,
    device: torch.device,
) -> Metrics:
    """Protocol → metrics of what `score` says of `split`; {} for a split without users."""
    if not len(split):
        return {}
    ranks = evaluate(score, split, protocols=protocols, batch_size=batch_size, device=device)
    return {name: ranking_metrics(values, ks) for name, values in ranks.items()}


def _batches(split: Split, batch_size: int) -> Iterator[npt.NDArray[np.int64]]:
    """Rows of like length together, so that little is padded."""
    order = np.argsort(split.lengths, kind="stable")
    for first in range(0, len(order), batch_size):
        yield order[first : first + batch_size]


def _ranks(scores: Tensor, rows: Rows, protocol: str) -> Tensor:
    assert rows.targets is not None, "an evaluation split has targets"
    assert rows.negatives is not None, "an evaluation split has negatives"
    targets = _ids(rows.targets, scores.device)
    if protocol != "full":
        return ranks_among(scores, targets, _ids(rows.negatives[protocol], scores.device))
    lengths = torch.from_numpy(rows.lengths).to(scores.device)
    seen_rows = torch.repeat_interleave(torch.arange(len(lengths), device=scores.device), lengths)
    return ranks_in_catalogue(scores, targets, seen_rows, _ids(rows.items, scores.device))


def _ids(values: npt.NDArray[np.int32], device: torch.device) -> Tensor:
    return torch.from_numpy(values.astype(np.int64)).to(device)
