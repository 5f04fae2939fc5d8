"""What one contestant has made of the users of a split, and the figures of that."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bert4rec.dataset.ranks import LEFT_OUT
from bert4rec.dataset.reader import Bools
from bert4rec.evaluation.lists import Lists
from bert4rec.evaluation.ranker import Metrics, Ranks, to_metrics, with_unseen
from bert4rec.evaluation.results.intervals import Interval, mean_interval, rank_intervals


@dataclass(frozen=True)
class Ranking:
    """The ranks of the targets, and the lists of the best items where the full catalogue was ranked by scores.

    Its figures are known on the first process.
    """

    ranks: Ranks
    lists: Lists | None = None

    def metrics(self, repeated: Bools, ks: Sequence[int]) -> Metrics:
        """Protocol → metric → value at the cut-offs `ks`; `repeated` [U]: whose target is one that was seen."""
        metrics = to_metrics(with_unseen(self.ranks, repeated), ks)
        if self.lists and "full" in metrics:
            metrics["full"] |= self.lists.metrics()
        return metrics

    def intervals(self, repeated: Bools, ks: Sequence[int]) -> dict[str, dict[str, Interval]]:
        """The same of the intervals of all metrics that are means over users."""
        ranks = with_unseen(self.ranks, repeated)
        intervals = {name: rank_intervals(values, ks) for name, values in ranks.items() if (values != LEFT_OUT).any()}
        if self.lists and "full" in intervals:
            of_users = self.lists.of_users()
            intervals["full"] |= {name: mean_interval(v) for name, v in of_users.items() if not np.isnan(v).all()}
        return intervals
