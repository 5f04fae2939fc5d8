"""Confidence intervals over users, and the paired test of a difference.

HR@k is a proportion: its interval is the score interval (Wilson, Probable Inference, the Law of Succession, and
Statistical Inference, 1927), which is wide enough for few hits, too. All other intervals are percentile bootstrap
intervals (Efron and Tibshirani, An Introduction to the Bootstrap, 1993): users are drawn with replacement, as many as
there are, and the metric is computed for each draw. Each metric is a mean over users and depends only on the number of
users with each value, which is multinomial in a draw. So a million users cost no more than a few hundred cells of equal
values. Ranks above `EXACT_RANKS` within 2 % of each other share a cell, and so do other values within a thousandth of
their range: the mean stays exact, the interval differs in its fourth digit.

If users may have several targets, users are drawn with all of theirs, and the mean over targets is computed.

The test is the paired permutation test: if two systems do not differ, each user's difference is equally likely with the
opposite sign (Smucker et al., A Comparison of Statistical Significance Tests for Information Retrieval, 2007).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from bert4rec.dataset.format import LEFT_OUT
from bert4rec.evaluation.metrics import MISSED, Lists, gains
from bert4rec.evaluation.ranker import Metrics, Ranks, to_metrics
from bert4rec.runtime.arrays import Bools, Float64s, Int64s, Integers

CONFIDENCE, RESAMPLES, PERMUTATIONS, SEED = 0.95, 1000, 9999, 1
Z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
EXACT_RANKS = 128  # up to this rank, each rank has its own cell
RATIO = 1.02  # ratio of the bounds of a cell of greater ranks
N_CELLS = 1024  # number of cells of other values
PERMUTATIONS_AT_ONCE = 1000

Interval: TypeAlias = list[float]
"""The lower and the upper bound; a list, for JSON."""

TIED_APART_FROM = 0.2  # share of tied targets from which the other users are compared alone
COMPARED_AT = 10  # NDCG@10 decides which baseline is the strongest, and whether the model is better
CELL_STEPS = (1, 2, 3, 5, 7)  # of each power of ten


class Cells(NamedTuple):
    """Cells of users with similar values: `counts` [C] of users, and mean `values` [C, M] of M metrics."""

    counts: Int64s
    values: Float64s


class Difference(NamedTuple):
    """A mean difference over users, the bounds of its interval, and its p-value."""

    value: float
    low: float
    high: float
    p: float


def about_intervals() -> dict[str, Any]:
    """Return the confidence of all intervals and the number of draws, for a report."""
    return {"confidence": CONFIDENCE, "resamples": RESAMPLES}


def rank_intervals(ranks: Integers, ks: Sequence[int], users: Integers | None = None) -> dict[str, Interval]:
    """Return the interval of each metric that `ranking_metrics` computes from the `ranks` [U].

    `users` [U] are those of the targets, if a user may have several.
    """
    if users is not None:
        is_ranked = ranks != LEFT_OUT
        values = dict(gains(ranks[is_ranked], ks))
        found = _intervals_by_user(np.stack([*values.values()], axis=1), users[is_ranked])
        return dict(zip(values, found, strict=True))
    distinct, counts = np.unique(ranks[ranks != LEFT_OUT], return_counts=True)
    metric_values = dict(gains(distinct, ks))
    others = {name: values for name, values in metric_values.items() if not name.startswith("HR@")}
    cells = _joined(_cells_of_ranks(distinct, ks), counts, np.stack([*others.values()], axis=1))
    drawn = dict(zip(others, _intervals(cells), strict=True))
    n = int(counts.sum())
    return {
        name: drawn[name] if name in drawn else share_interval(int(values @ counts), n)
        for name, values in metric_values.items()
    }


def share_interval(n_hits: int, n: int) -> Interval:
    """Return the interval of a share, `n_hits` of `n` users, by Wilson's score.

    >>> [round(bound, 4) for bound in share_interval(0, 100)]
    [0.0, 0.037]
    """
    share, z2 = n_hits / n, Z**2 / n
    middle, margin = share + z2 / 2, Z * (share * (1 - share) / n + z2 / (4 * n)) ** 0.5
    # At 0 and 1 the bound is the share itself; the formula misses it by rounding.
    low = 0.0 if n_hits == 0 else (middle - margin) / (1 + z2)
    return [low, 1.0 if n_hits == n else (middle + margin) / (1 + z2)]


def mean_interval(values: Float64s, users: Integers | None = None) -> Interval:
    """Return the interval of the mean of `values` [U] without NaN; `users` as for `rank_intervals`."""
    is_there = ~np.isnan(values)
    if users is not None:
        (interval,) = _intervals_by_user(values[is_there, None], users[is_there])
    else:
        (interval,) = _intervals(_cells_of(values[is_there]))
    return interval


def paired_difference(differences: Float64s, users: Integers | None = None) -> Difference:
    """Return the mean of the `differences` [U] of a metric between two systems, its interval and its p-value.

    The p-value is two-sided, from `PERMUTATIONS` random choices of signs and the observed one. `users` as for
    `rank_intervals`: all differences of a user have one sign.
    """
    (low, high), by_user = mean_interval(differences, users), differences
    if users is not None:
        names, place = np.unique(users, return_inverse=True)
        by_user = np.zeros(len(names))
        np.add.at(by_user, place, differences)
    return Difference(float(differences.mean()), low, high, _p_value(by_user))


def _intervals(cells: Cells) -> list[Interval]:
    """Return the interval of the mean of each metric, at `CONFIDENCE`."""
    n = int(cells.counts.sum())
    draws = np.random.default_rng(SEED).multinomial(n, cells.counts / n, size=RESAMPLES)
    return _bounds(draws @ cells.values / n)


def _intervals_by_user(values: Float64s, users: Integers) -> list[Interval]:
    """Return the interval of the mean of each column of `values` [U, M], if the `users` [U] may have several rows."""
    _, place = np.unique(users, return_inverse=True)
    sums = np.stack([np.bincount(place, column) for column in (*values.T, np.ones(len(values)))], axis=1)
    generator, shares = np.random.default_rng(SEED), np.full(len(sums), 1 / len(sums))
    drawn = np.stack([generator.multinomial(len(sums), shares) @ sums for _ in range(RESAMPLES)])
    return _bounds(drawn[:, :-1] / drawn[:, -1:])


def _bounds(means: Float64s) -> list[Interval]:
    """Return the interval of each column of `means` [draws, M], at `CONFIDENCE`."""
    tail = (1 - CONFIDENCE) / 2
    bounds: list[Interval] = np.quantile(means, [tail, 1 - tail], axis=0).T.tolist()
    return bounds


def _p_value(differences: Float64s) -> float:
    sizes = _cells_of(np.abs(differences[differences != 0]))
    observed = abs(differences.sum()) * (1 - 1e-9)  # tolerance for other orders of addition
    generator, n_as_large = np.random.default_rng(SEED), 0
    for first in range(0, PERMUTATIONS, PERMUTATIONS_AT_ONCE):
        n = min(PERMUTATIONS_AT_ONCE, PERMUTATIONS - first)
        n_positive = generator.binomial(sizes.counts, 0.5, size=(n, len(sizes.counts)))
        sums = (2 * n_positive - sizes.counts) @ sizes.values[:, 0]
        n_as_large += int((np.abs(sums) >= observed).sum())
    return (1 + n_as_large) / (1 + PERMUTATIONS)


def _cells_of_ranks(ranks: Integers, ks: Sequence[int]) -> Int64s:
    """Return the cell of each of the distinct `ranks`; no cell crosses a cut-off of `ks`."""
    largest = int(ranks.max(initial=EXACT_RANKS))
    n_wide = int(np.ceil(np.log(max(1.0, largest / EXACT_RANKS)) / np.log(RATIO)))
    bounds = np.concatenate([np.arange(EXACT_RANKS + 1), EXACT_RANKS * RATIO ** np.arange(1, n_wide + 1), ks])
    return np.searchsorted(np.unique(bounds), ranks)


def _cells_of(values: Float64s) -> Cells:
    """Return cells of the `values` [U] of one metric, which divide their range evenly."""
    if not len(values):
        return Cells(np.zeros(0, np.int64), np.zeros((0, 1)))
    low, width = values.min(), np.ptp(values)
    place = ((values - low) * ((N_CELLS - 1) / width)).astype(np.int64) if width else np.zeros(len(values), np.int64)
    return _joined(place, np.ones(len(values), np.int64), values[:, None])


def _joined(cells: Int64s, counts: Int64s, values: Float64s) -> Cells:
    """Return `counts` [D] and `values` [D, M] joined by their `cells` [D]."""
    _, place = np.unique(cells, return_inverse=True)
    n = np.bincount(place, counts).astype(np.int64)
    sums = [np.bincount(place, counts * column) for column in values.T]
    return Cells(n, np.stack(sums, axis=1) / n[:, None])


@dataclass(frozen=True)
class Ranking:
    """The ranks of the targets, and the lists of the best items if the full catalogue was ranked.

    `orderless` is the same ranking after histories in random order, if it was made. `users` [U] are those of the
    targets, if a user may have several.
    Metrics and intervals are available on rank zero only.
    """

    ranks: Ranks
    lists: Lists | None = None
    orderless: "Ranking | None" = None
    users: Integers | None = None

    def select(self, chosen: Bools) -> "Ranking":
        """Return the ranks of the `chosen` [U] targets, without the lists."""
        users = None if self.users is None else self.users[chosen]
        return Ranking({name: ranks[chosen] for name, ranks in self.ranks.items()}, users=users)

    def metrics(self, ks: Sequence[int]) -> Metrics:
        """Return protocol → metric → value at the cut-offs `ks`."""
        metrics = to_metrics(self.ranks, ks)
        if self.lists and "full" in metrics:
            metrics["full"] |= self.lists.metrics()
        return metrics

    def intervals(self, ks: Sequence[int]) -> dict[str, dict[str, Interval]]:
        """Return protocol → metric → interval, of all metrics that are means over users."""
        ranked = {name: values for name, values in self.ranks.items() if (values != LEFT_OUT).any()}
        intervals = {name: rank_intervals(values, ks, self.users) for name, values in ranked.items()}
        if self.lists and "full" in intervals:
            by_metric = {name: v for name, v in self.lists.user_values().items() if not np.isnan(v).all()}
            intervals["full"] |= {name: mean_interval(v, self.users) for name, v in by_metric.items()}
        return intervals

    def ndcg_of_users(self, protocol: str) -> Float64s:
        """Return the NDCG@10 of each user of `protocol`, without users who are LEFT_OUT."""
        ranks = self.ranks[protocol]
        return dict(gains(ranks[ranks != LEFT_OUT], [COMPARED_AT]))[f"NDCG@{COMPARED_AT}"]

    def difference_from(self, other: "Ranking", protocol: str) -> dict[str, Any]:
        """Return by how much NDCG@10 is higher than that of `other`, by `paired_difference`."""
        users = None if self.users is None else self.users[self.ranks[protocol] != LEFT_OUT]
        differences = self.ndcg_of_users(protocol) - other.ndcg_of_users(protocol)
        value, low, high, p = paired_difference(differences, users)
        return {"difference": value, "interval": [low, high], "p": p}


def strongest_baseline(model: Ranking, baselines: Mapping[str, Ranking]) -> dict[str, Any]:
    """Return the `kind` of the baseline with the highest NDCG@10, and the paired difference of the model from it.

    The keys are `kind`, `protocol` ("full" if it was ranked, else the first), `metric`, `difference` (positive: the
    model is better), its 95 % `interval` and `p`, by `paired_difference`. {} without baselines or users.
    """
    ranked = [name for name, ranks in model.ranks.items() if (ranks != LEFT_OUT).any()]
    if not baselines or not ranked:
        return {}
    protocol = "full" if "full" in ranked else ranked[0]
    by_kind = {kind: ranking.ndcg_of_users(protocol) for kind, ranking in baselines.items()}
    kind = max(by_kind, key=lambda name: by_kind[name].mean())
    facts = {"kind": kind, "protocol": protocol, "metric": f"NDCG@{COMPARED_AT}"}
    return facts | model.difference_from(baselines[kind], protocol)


def untied_comparison(model: Ranking, baselines: Mapping[str, Ranking], is_tied: Bools) -> dict[str, Any]:
    """Return the comparison by `strongest_baseline` of the users whose target is not tied with the item before it.

    `is_tied` [U] says it of all users. The further keys are the numbers `users`, `tied` and `of`. The result is {} if
    fewer than `TIED_APART_FROM` of the users are tied.
    """
    if is_tied.mean() < TIED_APART_FROM:
        return {}
    others = {kind: ranking.select(~is_tied) for kind, ranking in baselines.items()}
    counts = {"users": int((~is_tied).sum()), "tied": int(is_tied.sum()), "of": len(is_tied)}
    return counts | strongest_baseline(model.select(~is_tied), others)


def hits_by_rank(ranks: Mapping[str, Ranks]) -> dict[str, Any]:
    """Return cut-offs `ks` up to the worst rank in the full catalogue, and by name the share of users with a hit.

    The result is {} without such ranks.

    >>> hits_by_rank({"test": {"full": np.array([1, 4, 12, MISSED])}})
    {'ks': [1, 2, 3, 5, 7, 10, 20], 'test': [0.25, 0.25, 0.25, 0.5, 0.5, 0.5, 0.75]}
    """
    ranks_by_name = {name: values["full"] for name, values in ranks.items() if "full" in values}
    worst = max((int(values.max(initial=0)) for values in ranks_by_name.values()), default=0)
    powers = range(len(str(worst)) + 1)
    ks = [step * 10**power for power in powers for step in CELL_STEPS]
    ks = ks[: int(np.searchsorted(ks, worst)) + 1]
    return {"ks": ks, **{name: _shares(values, ks) for name, values in ranks_by_name.items()}} if worst else {}


def _shares(ranks: np.ndarray, ks: list[int]) -> list[float]:
    users = ranks[ranks != LEFT_OUT]
    hits = np.sort(users[users != MISSED])
    return [float(np.searchsorted(hits, k, side="right") / len(users)) for k in ks]
