"""From scores to ranks, and from ranks to HR@k, NDCG@k and MRR."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bert4rec.dataset.format import LEFT_OUT

MISSED = 0  # in the place of a rank: the target is never recommended, however long the list
LARGEST = 1e15  # the product of two vectors of such numbers is still finite


def count_outranking(scores: Tensor, first: int, target_scores: Tensor, targets: Tensor) -> Tensor:
    """Return how many [B] of the candidates `first`, `first` + 1, …, with `scores` [B, n], outrank each target.

    The same order as `outranks`, in one pass over the scores: among lower ids a tie is as good as a better score.
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
    """Return whether all values are finite and not too large; scores of others would compare as worse than any."""
    return not values.numel() or bool(values.abs().amax() < LARGEST)


def ranking_metrics(ranks: npt.NDArray[np.integer], ks: Sequence[int]) -> dict[str, float]:
    """Return `users`, and the means `HR@k`, `NDCG@k` and `MRR` over users whose targets have `ranks` [U].

    MISSED gives 0 in each of them; who is LEFT_OUT does not count as a user. With one relevant item a user, HR@k is
    Recall@k and the ideal DCG is 1.

    >>> ranking_metrics(np.array([1, 3, MISSED, LEFT_OUT, MISSED]), [1, 5])
    {'users': 4, 'HR@1': 0.25, 'HR@5': 0.5, 'NDCG@1': 0.25, 'NDCG@5': 0.375, 'MRR': 0.3333333333333333}
    """
    counted = ranks[ranks != LEFT_OUT]
    means = {name: float(values[values > 0].sum() / len(counted)) for name, values in gains(counted, ks)}
    return {"users": len(counted), **means}


def gains(ranks: npt.NDArray[np.integer], ks: Sequence[int]) -> Iterator[tuple[str, npt.NDArray[np.float64]]]:
    """Yield each metric and its value for each user [U], by the rank [U] of the target, or MISSED.

    >>> [(name, values.tolist()) for name, values in gains(np.array([1, 3, MISSED]), [2])]
    [('HR@2', [1.0, 0.0, 0.0]), ('NDCG@2', [1.0, 0.0, 0.0]), ('MRR', [1.0, 0.3333333333333333, 0.0])]
    """
    is_found = ranks != MISSED
    safe = np.where(is_found, ranks, 1).astype(np.float64)
    yield from ((f"HR@{k}", (is_found & (ranks <= k)).astype(np.float64)) for k in ks)
    discounted = np.where(is_found, 1.0 / np.log2(safe + 1.0), 0.0)
    yield from ((f"NDCG@{k}", np.where(ranks <= k, discounted, 0.0)) for k in ks)
    yield "MRR", np.where(is_found, 1.0 / safe, 0.0)
