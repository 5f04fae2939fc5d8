"""From scores to ranks, and from ranks to HR@k, NDCG@k and MRR.

Ties go to the lower item id. Dense ids are a seeded shuffle of the items, so a tie is broken at random but always
alike, and a model that scores all items the same is no better than chance.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bert4rec.errors import DivergenceError
from bert4rec.vocabulary import FIRST_ITEM_ID


def ranks_in_catalogue(scores: Tensor, targets: Tensor, seen_rows: Tensor, seen: Tensor) -> Tensor:
    """The rank [B] (1 = best) of each target among all items that its user has not seen.

    `scores` [B, n_items]; `targets` [B] item ids; the user of row `seen_rows[j]` has seen item `seen[j]` ([S] each).
    The target itself is never filtered.
    """
    ids = torch.arange(FIRST_ITEM_ID, FIRST_ITEM_ID + scores.shape[1], device=scores.device)
    ahead = _is_ahead(scores, ids, targets, _of_items(scores, targets[:, None]))
    ahead[seen_rows, seen - FIRST_ITEM_ID] = False
    return 1 + ahead.sum(1)


def ranks_among(scores: Tensor, targets: Tensor, negatives: Tensor) -> Tensor:
    """The rank [B] of each target among itself and `negatives` [B, n], with `scores` [B, n_items] as above."""
    ahead = _is_ahead(_of_items(scores, negatives), negatives, targets, _of_items(scores, targets[:, None]))
    return 1 + ahead.sum(1)


def _of_items(scores: Tensor, ids: Tensor) -> Tensor:
    return scores.gather(1, ids - FIRST_ITEM_ID)


def _is_ahead(scores: Tensor, ids: Tensor, targets: Tensor, target_scores: Tensor) -> Tensor:
    """Which candidates come before the target.

    Raises `DivergenceError` for a score that is not a number: it would compare as worse than anything.
    """
    if not torch.isfinite(scores).all() or not torch.isfinite(target_scores).all():
        raise DivergenceError(f"the model gives scores that are not finite; {DivergenceError.ADVICE}")
    return (scores > target_scores) | ((scores == target_scores) & (ids < targets[:, None]))


def ranking_metrics(ranks: npt.NDArray[np.integer], ks: Sequence[int]) -> dict[str, float]:
    """`users`, `HR@k`, `NDCG@k` for each k, and `MRR`, the means over users whose targets have `ranks` [U].

    With one relevant item a user, HR@k is Recall@k and the ideal DCG is 1.

    >>> ranking_metrics(np.array([1, 3]), [1, 5])
    {'users': 2, 'HR@1': 0.5, 'HR@5': 1.0, 'NDCG@1': 0.5, 'NDCG@5': 0.75, 'MRR': 0.6666666666666666}
    """
    count, exact = len(ranks), ranks.astype(np.float64)
    gains = 1.0 / np.log2(exact + 1.0)
    hits = {f"HR@{k}": float((exact <= k).sum() / count) for k in ks}
    ndcgs = {f"NDCG@{k}": float(gains[exact <= k].sum() / count) for k in ks}
    return {"users": count, **hits, **ndcgs, "MRR": float((1.0 / exact).sum() / count)}
