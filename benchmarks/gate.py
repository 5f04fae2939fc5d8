"""Count what the gate of `bert4rec update` decides about challengers that equal the champion or are worse by a share.

    python -m benchmarks.gate RANKS RANKS [--users=500,2000,10000] [--losses=0,0.02,0.05,0.1] [--nights=2000]

RANKS: `ranks-test.parquet` of two trainings of one model with different seeds, on the same users. A night draws users
with replacement, each with one target. Champion and challenger are the two seeds, exchanged at random for each user: so
they are equal in the mean, and differ as two trainings differ. A challenger that is worse by a share misses a hit with
that probability: its rank becomes worse than 10, and its mean NDCG@10 falls by just that share.

Printed for each number of users and loss: the share of nights that are refused, blessed and unclear, by `judge` of
`bert4rec/update/gate.py`; the share that would be refused at 95 %; how many nights of a year either is; and the
smallest loss that can be seen, in the mean. In the second table, unclear nights are pooled with those before them,
which have the same loss and other users.
"""

import argparse
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from bert4rec.evaluation.metrics import gains
from bert4rec.runtime.arrays import Float64s
from bert4rec.update.gate import POOLED_DAYS, Tail, judge

NIGHTS_OF_A_YEAR = 365
SEED = 1


class Nights:
    """Nights of users whose gains are drawn from those of two trainings."""

    def __init__(self, first: Float64s, second: Float64s) -> None:
        self._gains, self._generator = np.stack([first, second]), np.random.default_rng(SEED)

    def draw(self, n_users: int, loss: float) -> Tail:
        """Return the tail of a night with a challenger that is worse by the share `loss`."""
        generator = self._generator
        drawn, first = generator.integers(0, self._gains.shape[1], n_users), generator.integers(0, 2, n_users)
        challenger = np.where(generator.random(n_users) < loss, 0.0, self._gains[1 - first, drawn])
        # Each draw gets its own number: the same user drawn again counts as another user with the same gains.
        users = generator.integers(0, 2**62, n_users)
        return Tail(users, self._gains[first, drawn], challenger)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ranks", type=Path, nargs=2, metavar="RANKS")
    parser.add_argument("--users", default="500,2000,10000")
    parser.add_argument("--losses", default="0,0.02,0.05,0.1")
    parser.add_argument("--nights", type=int, default=2000)
    options = parser.parse_args()
    first, second = (_gains(path) for path in options.ranks)
    deviation = float((second - first).std())
    print(f"{len(first):,} users, NDCG@10 {first.mean():.4f} and {second.mean():.4f}, standard deviation of the")
    print(f"difference {deviation:.3f}, {options.nights:,} nights\n")
    cells = [(int(n), float(loss)) for n in options.users.split(",") for loss in options.losses.split(",")]
    nights = Nights(first, second)
    print(
        "| users | challenger | refused | blessed | cannot tell | refused at 95 % | a year, at 99 % | at 95 % | least |"
    )
    print("|---:|---|---:|---:|---:|---:|---:|---:|---:|")
    for n_users, loss in cells:
        print(_row(nights, n_users, loss, options.nights), flush=True)
    print(f"\n| users a day | challenger | refused by the day | by {POOLED_DAYS} days | blessed | cannot tell |")
    print("|---:|---|---:|---:|---:|---:|")
    for n_users, loss in cells:
        print(_row_of_days(nights, n_users, loss, options.nights), flush=True)


def _gains(path: Path) -> Float64s:
    """Return the NDCG@10 of each user, by the rank in the full catalogue."""
    ranks = pq.read_table(path)["full"].to_numpy()
    return dict(gains(ranks, [10]))["NDCG@10"]


def _row(nights: Nights, n_users: int, loss: float, n_nights: int) -> str:
    decisions: Counter[str] = Counter()
    n_refused, least = 0, 0.0
    for _ in range(n_nights):
        found = judge(nights.draw(n_users, loss), checks_passed=True)
        decisions[found.decision] += 1
        # By symmetry, the upper bound at 95 % is as far from the difference as the lower one.
        n_refused += 2 * found.day.difference - found.day.low < -found.day.margin
        least += found.day.least / n_nights
    shares = [decisions[name] / n_nights for name in ("refused", "blessed", "cannot tell")] + [n_refused / n_nights]
    years = (f"{NIGHTS_OF_A_YEAR * share:.0f}" for share in (shares[0], shares[3]))
    return f"| {n_users:,} | {_name(loss)} | {' | '.join([*map(_percent, shares), *years])} | {least:.4f} |"


def _row_of_days(nights: Nights, n_users: int, loss: float, n_nights: int) -> str:
    decisions: Counter[tuple[str, bool]] = Counter()
    for _ in range(n_nights):
        *earlier, tail = (nights.draw(n_users, loss) for _ in range(POOLED_DAYS))
        found = judge(tail, earlier, checks_passed=True)
        decisions[found.decision, found.pooled is not None] += 1
    cases = [("refused", False), ("refused", True), ("blessed", False), ("cannot tell", True)]
    return f"| {n_users:,} | {_name(loss)} | {' | '.join(_percent(decisions[case] / n_nights) for case in cases)} |"


def _name(loss: float) -> str:
    return f"{100 * loss:g} % worse" if loss else "equal"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


if __name__ == "__main__":
    main()
