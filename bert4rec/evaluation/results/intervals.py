"""Bootstrap confidence intervals over users, and the paired test of a difference.

The percentile bootstrap (Efron and Tibshirani, An Introduction to the Bootstrap, 1993): users are drawn with
replacement, as many as there are, and the figure is computed of each draw. A figure is a mean over users here, so only
how many users have which value counts: how often each value is drawn is multinomial, and a million users cost no more
than some hundred cells of equal values. Ranks above `EXACT` within 2 % of each other share a cell, and so do other
values that are nearer than a thousandth of their range: the mean stays exact, the interval differs in its fourth digit.

The test is the paired permutation test: without a difference between two systems each user's difference is as likely
with the other sign (Smucker et al., A Comparison of Statistical Significance Tests for Information Retrieval, 2007).
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from bert4rec.dataset.ranks import LEFT_OUT
from bert4rec.evaluation.metrics import gains

CONFIDENCE, RESAMPLES, PERMUTATIONS, SEED = 0.95, 1000, 9999, 1
EXACT = 128  # ranks that have cells of their own
RATIO = 1.02  # of the bounds of a cell above
N_CELLS = 1024  # of other values
PERMUTATIONS_AT_ONCE = 1000

Floats: TypeAlias = npt.NDArray[np.float64]
Interval: TypeAlias = list[float]
"""The lower and the upper bound, as JSON has them."""


class Cells(NamedTuple):
    """Hold users of like values: their number, `counts` [C], and the means of their `values` [C, M] of M metrics."""

    counts: npt.NDArray[np.int64]
    values: Floats


class Difference(NamedTuple):
    """Hold a mean difference over users, its interval, and the probability of one as large without a difference."""

    value: float
    low: float
    high: float
    p: float


def rank_intervals(ranks: npt.NDArray[np.integer], ks: Sequence[int]) -> dict[str, Interval]:
    """Return the interval of each metric that `ranking_metrics` computes from the `ranks` [U]."""
    distinct, counts = np.unique(ranks[ranks != LEFT_OUT], return_counts=True)
    of_ranks = dict(gains(distinct, ks))
    values = np.stack([*of_ranks.values()], axis=1)
    return dict(zip(of_ranks, _intervals(_joined(_cells_of_ranks(distinct, ks), counts, values)), strict=True))


def mean_interval(values: Floats) -> Interval:
    """Return the interval of the mean of `values` [U]; NaN is left out."""
    (interval,) = _intervals(_cells_of(values[~np.isnan(values)]))
    return interval


def paired_difference(differences: Floats) -> Difference:
    """Compare two systems by the `differences` [U] of a metric for the same users.

    The p-value is two-sided, of `PERMUTATIONS` random choices of signs and the one that was observed.
    """
    ((low, high),) = _intervals(_cells_of(differences))
    return Difference(float(differences.mean()), low, high, _p_value(differences))


def _intervals(cells: Cells) -> list[Interval]:
    """Return the interval of the mean of each metric, at `CONFIDENCE`."""
    n = int(cells.counts.sum())
    draws = np.random.default_rng(SEED).multinomial(n, cells.counts / n, size=RESAMPLES)
    tail = (1 - CONFIDENCE) / 2
    bounds: list[Interval] = np.quantile(draws @ cells.values / n, [tail, 1 - tail], axis=0).T.tolist()
    return bounds


def _p_value(differences: Floats) -> float:
    sizes = _cells_of(np.abs(differences[differences != 0]))
    observed = abs(differences.sum()) * (1 - 1e-9)  # of other orders of addition
    generator, n_as_large = np.random.default_rng(SEED), 0
    for first in range(0, PERMUTATIONS, PERMUTATIONS_AT_ONCE):
        n = min(PERMUTATIONS_AT_ONCE, PERMUTATIONS - first)
        n_positive = generator.binomial(sizes.counts, 0.5, size=(n, len(sizes.counts)))
        sums = (2 * n_positive - sizes.counts) @ sizes.values[:, 0]
        n_as_large += int((np.abs(sums) >= observed).sum())
    return (1 + n_as_large) / (1 + PERMUTATIONS)


def _cells_of_ranks(ranks: npt.NDArray[np.integer], ks: Sequence[int]) -> npt.NDArray[np.int64]:
    """Return the cell of each of the distinct `ranks`; no cell lies on both sides of a cut-off."""
    largest = int(ranks.max(initial=EXACT))
    n_wide = int(np.ceil(np.log(max(1.0, largest / EXACT)) / np.log(RATIO)))
    bounds = np.concatenate([np.arange(EXACT + 1), EXACT * RATIO ** np.arange(1, n_wide + 1), ks])
    return np.searchsorted(np.unique(bounds), ranks)


def _cells_of(values: Floats) -> Cells:
    """Return cells of `values` [U] of one metric, each a part of their range."""
    if not len(values):
        return Cells(np.zeros(0, np.int64), np.zeros((0, 1)))
    low, width = values.min(), np.ptp(values)
    place = ((values - low) * ((N_CELLS - 1) / width)).astype(np.int64) if width else np.zeros(len(values), np.int64)
    return _joined(place, np.ones(len(values), np.int64), values[:, None])


def _joined(cells: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], values: Floats) -> Cells:
    """Join the users of each of the `cells` [D]: `counts` [D] of them, with `values` [D, M]."""
    _, place = np.unique(cells, return_inverse=True)
    n = np.bincount(place, counts).astype(np.int64)
    sums = [np.bincount(place, counts * column) for column in values.T]
    return Cells(n, np.stack(sums, axis=1) / n[:, None])
