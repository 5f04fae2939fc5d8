"""Write the log of an invented shop whose goods, customers and habits change: a CSV file a day.

    python -m benchmarks.drifting_shop FOLDER [--days=120] [--seed=1]

Every good belongs to a line of goods. A third of the goods is there on the first day, the others come one by one, and
each is bought less from day to day. Customers come and go. After something of one line they go on to the line that
follows it, stay in it, or take anything. Every day some lines get another one that follows them, so that what was
learnt of the order becomes wrong by and by.
"""

import argparse
import csv
from pathlib import Path

import numpy as np

USERS, GOODS, LINES = 4000, 3000, 60
VISITS = 1200  # of a day
LONGEST_VISIT = 4  # rows
LIFE = 40.0  # days until a good is bought e times less
STAY, GO_ON = 0.3, 0.5  # probabilities of a step; any line otherwise
CHANGES = 1  # lines a day whose successor is drawn again
FIRST_DAY = np.datetime64("2025-01-01")


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--days", type=int, default=120)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    n_rows = write_days(options.folder, options.days, np.random.default_rng(options.seed))
    print(f"{options.folder}: {n_rows:,} rows of {options.days} days")


def write_days(folder: Path, n_days: int, random: np.random.Generator) -> int:
    """Write a file for each day, and return the number of rows."""
    line = random.integers(LINES, size=GOODS)
    line[:LINES] = np.arange(LINES)  # none is empty on the first day
    appeal = random.pareto(1.5, GOODS) + 1
    born = np.where(np.arange(GOODS) < GOODS // 3, -random.exponential(LIFE, GOODS), n_days * random.random(GOODS))
    follows, at = random.integers(LINES, size=LINES), random.integers(LINES, size=USERS)
    first, last = np.sort(random.uniform(-n_days / 2, 1.5 * n_days, (2, USERS)), axis=0)
    eagerness, n_rows = random.pareto(2.0, USERS) + 0.2, 0
    for day in range(n_days):
        for changed in random.integers(LINES, size=CHANGES):
            follows[changed] = random.integers(LINES)
        weights = np.where(born <= day, appeal * np.exp(-(day - born) / LIFE), 0.0)
        goods = [np.flatnonzero((line == one) & (weights > 0)) for one in range(LINES)]
        shares = [weights[members] / weights[members].sum() for members in goods]
        is_there = eagerness * ((first <= day) & (day <= last))
        visitors = random.choice(USERS, VISITS, replace=False, p=is_there / is_there.sum())
        rows = []
        for user, second in zip(visitors, np.sort(random.integers(86_000, size=VISITS)), strict=True):
            for step in range(random.integers(1, LONGEST_VISIT + 1)):
                draw = random.random()
                if draw >= STAY:
                    at[user] = follows[at[user]] if draw < STAY + GO_ON else random.integers(LINES)
                good = random.choice(goods[at[user]], p=shares[at[user]])
                time = (FIRST_DAY + np.timedelta64(day, "D")).astype("datetime64[s]") + int(second + 60 * step)
                rows.append((f"c{user}", f"g{good}", time))
        rows.sort(key=lambda row: row[2])
        n_rows += len(rows)
        with (folder / f"{FIRST_DAY + np.timedelta64(day, 'D')}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("customer", "product", "time"), *rows])
    return n_rows


if __name__ == "__main__":
    main()
