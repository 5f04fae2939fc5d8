"""The rule by which a target is ranked among candidates, for whoever ranks: a model, a baseline, the oracle."""

from typing import Any

LEFT_OUT = -1  # in the place of a rank: the user has no negatives, and no part in this protocol


def is_ahead(scores: Any, ids: Any, target_scores: Any, targets: Any) -> Any:
    """Which candidates, `scores` [B, n] and `ids` [n] or [B, n], come before targets with `target_scores` [B].

    NumPy's arrays or torch's tensors. Ties go to the lower id: ids are a seeded shuffle of the items, so a tie is
    broken at random but always alike, and who scores all items the same is no better than chance.
    """
    target_scores, targets = target_scores[:, None], targets[:, None]
    return (scores > target_scores) | ((scores == target_scores) & (ids < targets))
