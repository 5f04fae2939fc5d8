"""Interactions → windows, held-out items and negatives, as one writes it first: pandas, and a loop over users.

    python -m benchmarks.bench.plain_preparation FILE.csv FOLDER

The file is grouped by user, newest first, as Goodreads has it. For each user of at least five interactions the last one
is for the test, the one before for the validation, the others are cut into windows; the test and the validation have
100 unseen negatives by popularity and 100 uniform ones, if there are as many.
"""

import pickle
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

FEWEST, MAX_LEN, STEP, NEGATIVES = 5, 20, 10, 100


def main(file: str, folder: str) -> None:
    """Write the three parts and the numbers of users and items."""
    frame = pd.read_csv(file)[::-1]
    frame = frame[frame.groupby("user_id")["book_id"].transform("size") >= FEWEST]
    frame["item"], books = pd.factorize(frame["book_id"])
    histories = frame.groupby("user_id", sort=False)["item"].apply(list)
    rng = np.random.default_rng(1)
    train, validation, test = [], [], []
    popularity = np.bincount(frame["item"], minlength=len(books))
    chances = popularity / popularity.sum()
    for history in histories:
        train += windows(history[:-2])
        for n_before, examples in ((len(history) - 2, validation), (len(history) - 1, test)):
            seen, target = history[:n_before], history[n_before]
            popular = negatives(rng, len(books), {*seen, target}, chances)
            uniform = negatives(rng, len(books), {*seen, target})
            examples.append((seen, target, popular, uniform))
    parts = {"train": train, "validation": validation, "test": test, "users": [*histories.index], "items": [*books]}
    Path(folder).mkdir()
    for name, part in parts.items():
        Path(folder, f"{name}.pkl").write_bytes(pickle.dumps(part))


def windows(history: Sequence[int]) -> list[Sequence[int]]:
    """Of at most `MAX_LEN` items, `STEP` apart from the end."""
    found = []
    for end in range(len(history), 0, -STEP):
        found.append(history[max(0, end - MAX_LEN) : end])
        if end <= MAX_LEN:
            break
    return found


def negatives(
    rng: np.random.Generator, n_items: int, known: set[int], chances: "np.ndarray | None" = None
) -> list[int]:
    """Different items that are not `known`; nothing where there are too few."""
    found: dict[int, None] = {}
    if n_items - len(known) < NEGATIVES:
        return []
    while len(found) < NEGATIVES:
        drawn = rng.choice(n_items, NEGATIVES, p=chances)  # uniformly where there are no chances
        found.update(dict.fromkeys(item for item in drawn.tolist() if item not in known))
    return list(found)[:NEGATIVES]


if __name__ == "__main__":
    main(*sys.argv[1:])
