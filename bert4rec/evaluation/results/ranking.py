"""The ranks and lists of one model on a split, their metrics, and the comparison with the strongest baseline."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bert4rec.dataset.ranks import LEFT_OUT
from bert4rec.evaluation.lists import Lists
from bert4rec.evaluation.metrics import gains
from bert4rec.evaluation.ranker import Metrics, Ranks, to_metrics
from bert4rec.evaluation.results.intervals import Interval, mean_interval, paired_difference, rank_intervals

COMPARED_AT = 10  # NDCG@10 decides which baseline is the strongest, and whether the model is better


@dataclass(frozen=True)
class Ranking:
    """Hold the ranks of the targets, and the lists of the best items if the full catalogue was ranked.

    Its figures are known on the first process.
    """

    ranks: Ranks
    lists: Lists | None = None

    def metrics(self, ks: Sequence[int]) -> Metrics:
        """Return protocol → metric → value at the cut-offs `ks`."""
        metrics = to_metrics(self.ranks, ks)
        if self.lists and "full" in metrics:
            metrics["full"] |= self.lists.metrics()
        return metrics

    def intervals(self, ks: Sequence[int]) -> dict[str, dict[str, Interval]]:
        """Return protocol → metric → interval, of all metrics that are means over users."""
        ranked = {name: values for name, values in self.ranks.items() if (values != LEFT_OUT).any()}
        intervals = {name: rank_intervals(values, ks) for name, values in ranked.items()}
        if self.lists and "full" in intervals:
            of_users = self.lists.of_users()
            intervals["full"] |= {name: mean_interval(v) for name, v in of_users.items() if not np.isnan(v).all()}
        return intervals

    def ndcg_of_users(self, protocol: str) -> npt.NDArray[np.float64]:
        """Return the NDCG@10 of each user who has a part in `protocol`."""
        ranks = self.ranks[protocol]
        return dict(gains(ranks[ranks != LEFT_OUT], [COMPARED_AT]))[f"NDCG@{COMPARED_AT}"]


def strongest_baseline(model: Ranking, baselines: Mapping[str, Ranking]) -> dict[str, Any]:
    """Return the `kind` of the baseline with the highest NDCG@10 and how the model differs from it, user by user.

    By the full catalogue where that was ranked: `protocol`, `metric`, `difference` (positive: the model is better), its
    95 % `interval` and `p`, as `paired_difference` has them. {} where there are no baselines or no users.
    """
    ranked = [name for name, ranks in model.ranks.items() if (ranks != LEFT_OUT).any()]
    if not baselines or not ranked:
        return {}
    protocol = "full" if "full" in ranked else ranked[0]
    by_kind = {kind: ranking.ndcg_of_users(protocol) for kind, ranking in baselines.items()}
    kind = max(by_kind, key=lambda name: by_kind[name].mean())
    value, low, high, p = paired_difference(model.ndcg_of_users(protocol) - by_kind[kind])
    metric = f"NDCG@{COMPARED_AT}"
    return {"kind": kind, "protocol": protocol, "metric": metric, "difference": value, "interval": [low, high], "p": p}
