"""The share of targets within the first 1, 2, 3, 5, 10, … places: HR@k at every size of a list."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bert4rec.dataset.ranks import LEFT_OUT
from bert4rec.evaluation.metrics import MISSED
from bert4rec.evaluation.ranker import Ranks

STEPS = (1, 2, 3, 5, 7)  # of each power of ten


def hits_by_rank(ranks: Mapping[str, Ranks], protocol: str = "full") -> dict[str, Any]:
    """Return `ks`, up to the worst rank, and the shares of users by the names of `ranks`; {} without any.

    >>> hits_by_rank({"test": {"full": np.array([1, 4, 12, MISSED])}})
    {'ks': [1, 2, 3, 5, 7, 10, 20], 'test': [0.25, 0.25, 0.25, 0.5, 0.5, 0.5, 0.75]}
    """
    found = {name: of_name[protocol] for name, of_name in ranks.items() if protocol in of_name}
    worst = max((int(values.max(initial=0)) for values in found.values()), default=0)
    powers = range(len(str(worst)) + 1)
    ks = [step * 10**power for power in powers for step in STEPS]
    ks = ks[: int(np.searchsorted(ks, worst)) + 1]
    return {"ks": ks, **{name: _shares(values, ks) for name, values in found.items()}} if worst else {}


def _shares(ranks: np.ndarray, ks: list[int]) -> list[float]:
    users = ranks[ranks != LEFT_OUT]
    found = np.sort(users[users != MISSED])
    return [float(np.searchsorted(found, k, side="right") / len(users)) for k in ks]
