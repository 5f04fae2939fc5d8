"""From scores to ranks, and from ranks to HR@k, NDCG@k and MRR."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bert4rec.dataset.ranks import LEFT_OUT

MISSED = 0  # in the place of a rank: the target is never recommended, however long the list
LARGEST = 1e15  # the product of two vectors of such numbers is still finite


def count_ahead(scores: Tensor, first: Tensor, target_scores: Tensor, targets: Tensor) -> Tensor:
    """How many [B] of the candidates `first`, `first` + 1, …, with `scores` [B, n], come before each target.

    The same order as `is_ahead`, in one pass over the scores: among lower ids a tie is as good as a better score.
    `scores` [1, n] are those of all rows, and only sorted.
    """
    n = scores.shape[1]
    just_below = target_scores.nextafter(target_scores.new_tensor(-torch.inf))
    limits = torch.where(targets >= first + n, just_below, target_scores)
    if len(scores) == 1:
        ahead = n - torch.searchsorted(scores[0].sort().values, limits, right=True, out_int32=True)
    else:
        ahead = (scores > limits[:, None]).sum(1, dtype=torch.int32)
    # Where the target is among the candidates, ties with those before it are still to be counted.
    rows = ((targets >= first) & (targets < first + n)).nonzero().squeeze(1)
    tied = scores.expand(len(targets), n)[rows] == target_scores[rows, None]
    is_lower = torch.arange(n, device=scores.device) < (targets[rows] - first)[:, None]
    return ahead.index_add_(0, rows, (tied & is_lower).sum(1, dtype=torch.int32))


def is_finite(values: Tensor) -> bool:
    """Whether all are numbers, and not too large: else scores would compare as worse than any."""
    return not values.numel() or bool(values.abs().amax() < LARGEST)


def ranking_metrics(ranks: npt.NDArray[np.integer], ks: Sequence[int]) -> dict[str, float]:
    """`users`, `HR@k`, `NDCG@k` for each k, and `MRR`, the means over users whose targets have `ranks` [U].

    MISSED gives 0 in each of them; who is LEFT_OUT does not count as a user. With one relevant item a user, HR@k is
    Recall@k and the ideal DCG is 1.

    >>> ranking_metrics(np.array([1, 3, MISSED, LEFT_OUT, MISSED]), [1, 5])
    {'users': 4, 'HR@1': 0.25, 'HR@5': 0.5, 'NDCG@1': 0.25, 'NDCG@5': 0.375, 'MRR': 0.3333333333333333}
    """
    count = int((ranks != LEFT_OUT).sum())
    found = ranks[(ranks != LEFT_OUT) & (ranks != MISSED)].astype(np.float64)
    gains = 1.0 / np.log2(found + 1.0)
    hits = {f"HR@{k}": float((found <= k).sum() / count) for k in ks}
    ndcgs = {f"NDCG@{k}": float(gains[found <= k].sum() / count) for k in ks}
    return {"users": count, **hits, **ndcgs, "MRR": float((1.0 / found).sum() / count)}
