"""Judge a challenger against the champion on targets that neither has learnt: blessed, refused, or cannot tell.

The difference is the mean over the targets of challenger - champion, in NDCG@10. A user may have several targets, which
resemble each other, so its standard error is clustered by user (Liang and Zeger, Longitudinal Data Analysis Using
Generalized Linear Models, 1986; Cameron and Miller, A Practitioner's Guide to Cluster-Robust Inference, 2015, whose
finite-sample factor is G / (G - 1) for a mean): with the differences d of N targets, of G users,

    error² = G / (G - 1) × Σ over users (Σ over the user's targets (d - mean of d))² / N²

The bounds are one-sided, by Student's t with G - 1 degrees of freedom, as they recommend: with few users the normal
distribution promises too much, with many both are the same. The margin is a share of the champion's mean.

- Worse: the upper bound at 99 % is below -margin. The challenger is refused.
- Not worse: the lower bound at 95 % is above -margin. The challenger is blessed.
- Otherwise the day cannot tell, and the last days are pooled. Each has its own champion and challenger, so this
  measures what the updates give as a procedure. If they are worse, the challenger is refused. If not, the answer is
  "cannot tell", since nothing is proven of this challenger, and it is taken if the data checks have passed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal, TypeAlias

import numpy as np

from bert4rec.runtime.arrays import Float64s, Int64s
from bert4rec.runtime.errors import pluralize

LOSS_MARGIN = 0.02  # of the champion's NDCG@10
REFUSED_AT = 0.99  # at 0.95, up to 17 good models a year of nights are refused, instead of 4 (docs/update.md)
BLESSED_AT = 0.95
FEWEST_USERS = 30  # the mean of fewer is not close to the t distribution, as most differences are 0
POOLED_DAYS = 28  # so that each day of the week weighs the same

Decision: TypeAlias = Literal["blessed", "refused", "cannot tell"]


@dataclass(frozen=True, eq=False)
class Tail:
    """The targets of a day that were kept from training: of each the user, and the NDCG@10 of both models.

    - `users` [N]: the number of the user; equal numbers are the same user, in other tails too.
    - `champion`, `challenger` [N]: the gain of the target, 1 / log2(rank + 1) or 0.

    Raises `ValueError` for arrays of other shapes, and for gains that are not between 0 and 1.
    """

    users: Int64s
    champion: Float64s
    challenger: Float64s

    def __post_init__(self) -> None:
        gains = np.stack([self.champion, self.challenger])
        if self.users.shape != gains.shape[1:] or gains.ndim != 2:
            raise ValueError(f"gains of the shape {gains.shape[1:]} for users of the shape {self.users.shape}")
        if not ((gains >= 0) & (gains <= 1)).all():
            raise ValueError("gains must be between 0 and 1")


@dataclass(frozen=True)
class PairedLoss:
    """The difference of two models on the same targets, in NDCG@10, with its bounds.

    - `n_users`, `n_targets`: how many were compared.
    - `champion`, `challenger`: the means; `difference`: challenger - champion.
    - `low`, `high`: one-sided bounds of the difference, at `BLESSED_AT` and `REFUSED_AT`.
    - `margin`: the loss that does not matter.
    - `least`: the smallest loss that could have been seen: half of the two-sided 95 % interval.

    Fewer than `FEWEST_USERS` users show nothing: the bounds are then -1 and 1, and `least` is 1.
    """

    n_users: int
    n_targets: int
    champion: float
    challenger: float
    difference: float
    low: float
    high: float
    margin: float
    least: float

    @property
    def is_worse(self) -> bool:
        """Whether the loss is larger than the margin, at `REFUSED_AT`."""
        return self.high < -self.margin

    @property
    def is_not_worse(self) -> bool:
        """Whether a loss larger than the margin is ruled out, at `BLESSED_AT`."""
        return self.low > -self.margin


@dataclass(frozen=True)
class Judgement:
    """The decision on a challenger, whether it becomes the champion, and a sentence for people.

    `day` has the figures of the day, `pooled` those of the last `n_days` days together, which are looked at if the day
    cannot tell.
    """

    decision: Decision
    is_taken: bool
    sentence: str
    day: PairedLoss
    pooled: PairedLoss | None = None
    n_days: int = 1

    def figures(self) -> dict[str, Any]:
        """Return the figures in the form of `gate` in `updates.jsonl`; without means if there are no targets."""
        day, pooled = self.day, self.pooled
        means = {"champion": day.champion, "challenger": day.challenger, "difference": day.difference}
        bounds = {"low": day.low, "high": day.high, "margin": day.margin, "least": day.least}
        together = None
        if pooled:
            together = {
                "days": self.n_days, "users": pooled.n_users, "difference": pooled.difference, "low": pooled.low,
                "high": pooled.high, "margin": pooled.margin,
            }  # fmt: skip
        return {"users": day.n_users, **(means if day.n_targets else {}), **bounds, "pooled": together}


def judge(tail: Tail, earlier: Sequence[Tail] = (), *, checks_passed: bool, margin: float = LOSS_MARGIN) -> Judgement:
    """Return the decision on the challenger of a day, by its `tail` and, if that cannot tell, the `earlier` tails.

    `earlier`: tails of the last days, the newest last; `POOLED_DAYS` with this one are used. The tail of a challenger
    that was refused does not belong there: it is dealt with, and would have all later ones refused, too.
    `checks_passed`: whether the data checks found nothing; a blessed challenger is taken in any case. `margin`: the
    loss that does not matter, as a share of the champion's NDCG@10.
    """
    day = paired_loss(tail, margin)
    if day.is_worse:
        return Judgement("refused", False, f"refused: {_loss(day)}", day)
    if day.is_not_worse:
        return Judgement("blessed", True, f"blessed: {_no_loss(day)}", day)
    tails = [one for one in (*earlier[-(POOLED_DAYS - 1) :], tail) if len(one.users)]
    if len(tails) < 2:
        return Judgement("cannot tell", checks_passed, f"{_unclear(day)}; {_taken(checks_passed)}", day)
    pooled, n_days = paired_loss(_joined(tails), margin), len(tails)
    if pooled.is_worse:
        sentence = f"refused: the last {n_days} days together are {_loss(pooled)}"
        return Judgement("refused", False, sentence, day, pooled, n_days)
    known = f"the last {n_days} days together: {_no_loss(pooled) if pooled.is_not_worse else _change(pooled)}"
    sentence = f"{_unclear(day)}; {known}; {_taken(checks_passed)}"
    return Judgement("cannot tell", checks_passed, sentence, day, pooled, n_days)


def paired_loss(tail: Tail, margin: float = LOSS_MARGIN) -> PairedLoss:
    """Return the difference of both models on a tail, with its bounds; `margin` is a share of the champion's mean."""
    n_users, n_targets = len(np.unique(tail.users)), len(tail.users)
    champion, challenger = (float(gains.mean()) if n_targets else 0.0 for gains in (tail.champion, tail.challenger))
    differences = tail.challenger - tail.champion
    difference, loss = float(differences.mean()) if n_targets else 0.0, margin * champion
    if n_users < FEWEST_USERS:
        return PairedLoss(n_users, n_targets, champion, challenger, difference, -1.0, 1.0, loss, 1.0)
    # If no gain differs, the error is 0, and yet up to 3 of as many other users may differ (Hanley and Lippman-Hand, If
    # Nothing Goes Wrong, Is Everything All Right?, 1983). So the least error is that of one user who loses all.
    error = max(clustered_error(differences, tail.users), 1 / n_users)
    refused, blessed, both = (student_quantile(p, n_users - 1) for p in (REFUSED_AT, BLESSED_AT, 0.975))
    low, high = difference - blessed * error, difference + refused * error
    return PairedLoss(n_users, n_targets, champion, challenger, difference, low, high, loss, both * error)


def clustered_error(values: Float64s, users: Int64s) -> float:
    """Return the standard error of the mean of `values` [N], clustered by `users` [N]; at least two users.

    With one value a user it is the usual one:

    >>> round(clustered_error(np.array([0.0, 1.0, 2.0, 3.0]), np.arange(4)), 4)  # 1.291 / 2
    0.6455
    """
    _, places = np.unique(users, return_inverse=True)
    sums = np.bincount(places, values - values.mean())
    n_users = len(sums)
    return float(np.sqrt(n_users / (n_users - 1) * (sums**2).sum()) / len(values))


def student_quantile(p: float, freedom: int) -> float:
    """Return the quantile `p` of Student's t with `freedom` degrees of freedom, to four digits from 8 degrees on.

    The series is 26.7.5 of Abramowitz and Stegun, Handbook of Mathematical Functions, 1964.

    >>> [round(student_quantile(0.99, n), 3) for n in (10, 30, 1000)]
    [2.764, 2.457, 2.33]
    """
    z = NormalDist().inv_cdf(p)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, 1))


def _joined(tails: Sequence[Tail]) -> Tail:
    """Return the tails as one."""
    columns = zip(*((one.users, one.champion, one.challenger) for one in tails), strict=True)
    return Tail(*(np.concatenate(column) for column in columns))


def _loss(pair: PairedLoss) -> str:
    share = f" ({-pair.difference / pair.champion:.0%})".replace("%", " %")
    return f"worse by {-pair.difference:.4f} of NDCG@10{share}, on {_users(pair)}: {_means(pair)}"


def _no_loss(pair: PairedLoss) -> str:
    return f"no loss of more than {pair.margin:.4f} of NDCG@10, on {_users(pair)}: {_means(pair)}"


def _unclear(pair: PairedLoss) -> str:
    if pair.n_users < FEWEST_USERS:
        return f"cannot tell: {_users(pair) if pair.n_users else 'no user'}, and at least {FEWEST_USERS} are needed"
    return f"cannot tell: on {_users(pair)}, no loss below {pair.least:.4f} of NDCG@10 can be seen: {_means(pair)}"


def _change(pair: PairedLoss) -> str:
    if pair.n_users < FEWEST_USERS:
        return f"{_users(pair)}, too few"
    return f"{pair.difference:+.4f} ± {pair.least:.4f}, on {_users(pair)}"


def _users(pair: PairedLoss) -> str:
    return pluralize(pair.n_users, "user")


def _means(pair: PairedLoss) -> str:
    return f"challenger {pair.challenger:.4f}, champion {pair.champion:.4f}"


def _taken(is_taken: bool) -> str:
    return "taken, as the data checks have passed" if is_taken else "not taken, as a data check has failed"
