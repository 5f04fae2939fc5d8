"""An invented shop for `evaluation.seen_items`: people come back to 20 of its items, and to no other.

    python -m benchmarks.refills > refills.csv

Each of 3,000 users has two of the 20 refills, one in four purchases, and one of five tastes for all others, none of
which it takes twice.
"""

import numpy as np

USERS, ITEMS, REFILLS, TASTES = 3000, 300, 20, 5
DAY, START = 86_400, 1_700_000_000
STEP, SPREAD, GIVE_UP = 7, 1.3, 0.05


def main() -> None:
    """Print the log."""
    draw = np.random.default_rng(1)
    print("user,item,time")
    for user in range(USERS):
        taste, refills, seen = draw.integers(TASTES), draw.choice(REFILLS, 2, replace=False), set[int]()
        for day in range(draw.integers(6, 25)):
            if draw.random() < 0.25:
                item = int(draw.choice(refills))
            elif (found := other(draw, int(taste), seen)) is None:
                continue
            else:
                item = found
            print(f"u{user},i{item},{START + user * 10 + day * DAY}")


def other(draw: np.random.Generator, taste: int, seen: set[int]) -> int | None:
    """Return an item that is no refill and not among the `seen`, and add it there; None if all draws were."""
    while True:
        step = draw.zipf(SPREAD) * STEP + taste * (ITEMS - REFILLS) // TASTES
        item = REFILLS + int(step % (ITEMS - REFILLS))
        if item not in seen:
            seen.add(item)
            return item
        if draw.random() < GIVE_UP:
            return None


if __name__ == "__main__":
    main()
