"""`bert4rec train` of SASRec with the prior's transitions in the softmax of the training, too, on one process.

    WEIGHT=0.7 python -m benchmarks.prior_in_training DATASET --model.kind=sasrec …

The logits of a position get `WEIGHT` times what the transitions say, counted without the position itself, so that the
model learns what they do not know. Validation then chooses the weights of all sources as usual. All logits of a batch
are in memory at once.
"""

import os
import sys
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bert4rec.__main__ import main
from bert4rec.dataset.format import NO_ITEM
from bert4rec.feed.batch import Batch
from bert4rec.models.baselines import DECAY, SMOOTHING
from bert4rec.models.prior import TRANSITIONS, Prior, Source, factors_of
from bert4rec.models.ranking_model import RankingModel
from bert4rec.models.transformer import append_ones
from bert4rec.training import run

WEIGHT = float(os.environ.get("WEIGHT", "0.7"))
read_prior, counted = run._prior, list[Prior]()


def prior(*arguments: Any) -> Prior | None:
    """Keep the prior of the run for the loss."""
    counted[:] = [found] if (found := read_prior(*arguments)) else []
    return found


def loss(model: RankingModel, batch: Batch) -> Tensor:
    """Return the sum of the cross-entropies with the transitions added to the logits."""
    queries, part = model.encode_for_catalogue(batch)
    source, targets = counted[0].sources[TRANSITIONS], batch.targets
    added = torch.zeros(len(targets), len(part.vectors), device=targets.device)
    last = last_items(batch, source.kind.n_last)
    source.add(added, last, 0, [1.0])
    columns = targets.clamp(min=0)[:, None]
    assert source.bias is not None, "transitions have biases"
    shares = source.bias[columns]
    lifts = added.gather(1, columns).sub_(shares).expm1_() - own_lifts(source, last)[:, None] / shares.exp()
    added.scatter_(1, columns, lifts.clamp_(min=0).log1p_() + shares)
    logits = append_ones(queries, part.vectors.shape[1]).float() @ part.vectors.float().T
    return F.cross_entropy(logits + WEIGHT * added, targets, ignore_index=NO_ITEM, reduction="sum")


def last_items(batch: Batch, n: int) -> Tensor:
    """Return the last `n` items [M, n] of the input of each position, the newest first."""
    items = batch.items.ids[batch.places]
    firsts = torch.repeat_interleave(batch.lengths.cumsum(0) - batch.lengths, batch.lengths)
    at = torch.arange(len(items), device=items.device)[:, None] - torch.arange(n, device=items.device)
    return torch.where(at >= firsts[:, None], items[at.clamp(min=0)], NO_ITEM)[batch.positions]


def own_lifts(source: Source, last: Tensor) -> Tensor:
    """Return what each position [M] itself has added to the sum for its target, times the share of the target."""
    assert source.masses is not None, "transitions have masses"
    ages = torch.arange(last.shape[1], device=last.device, dtype=torch.float32)
    factors = factors_of(source.kind, last, [1.0], source.masses)
    return (factors * DECAY**ages * source.masses[last.clamp(min=0)] / SMOOTHING).sum(1)


if __name__ == "__main__":
    run._prior = prior
    RankingModel._exact_loss = loss  # type: ignore[method-assign]
    sys.argv.insert(1, "train")
    sys.exit(main())
