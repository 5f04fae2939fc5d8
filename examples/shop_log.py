"""Write `log.csv`, the log of docs/tutorial.md: `python examples/shop_log.py`.

An invented shop sells courses of 20 lessons, which go round: lesson 1 follows lesson 20. A customer joins three of them
anywhere and takes a lesson of each in turn, so the last purchase alone does not tell the next one.
"""

import csv
import random
from datetime import datetime, timedelta
from pathlib import Path

COURSES = (
    "Archery", "Baking", "Brewing", "Carving", "Climbing", "Drawing",
    "Gardening", "Juggling", "Knitting", "Pottery", "Sailing", "Sewing",
)  # fmt: skip
N_CUSTOMERS, N_LESSONS = 1_000, 20
FIRST, MINUTES = datetime(2026, 1, 1), 180 * 24 * 60


def write(path: Path) -> None:
    """Write the rows in the order of their times."""
    draw = random.Random(1)
    rows = []
    for customer in range(1, N_CUSTOMERS + 1):
        courses, steps = draw.sample(range(len(COURSES)), 3), [draw.randrange(N_LESSONS) for _ in range(3)]
        for turn, minute in enumerate(sorted(draw.sample(range(MINUTES), draw.randint(10, 30)))):
            course, step = courses[turn % 3], steps[turn % 3]
            if draw.random() < 0.05:  # a present
                course, step = draw.randrange(len(COURSES)), draw.randrange(N_LESSONS)
            else:
                steps[turn % 3] += draw.choice((1, 1, 1, 1, 2))
            lesson = step % N_LESSONS + 1
            at, sku = FIRST + timedelta(minutes=minute), f"SKU-{course * N_LESSONS + lesson}"
            price = round((20 + lesson) * draw.uniform(0.8, 1), 2)
            rows.append((at.isoformat(), f"c-{customer}", sku, f"{COURSES[course]}, lesson {lesson}", price))
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(("at", "customer", "sku", "title", "price"))
        table.writerows(sorted(rows))


if __name__ == "__main__":
    write(Path("log.csv"))
