"""Ranks of the test targets for the oracle that knows how the synthetic rows were made: the best a model can do."""

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bert4rec.prepare.synthetic import Oracle
from bert4rec.vocabulary import FIRST_ITEM_ID

CELLS_AT_ONCE = 1 << 22  # users × items scored at once
MAX_CELLS = 1 << 32  # above (about a minute) the oracle is left out


def oracle_ranks(
    oracle: Oracle, test: pl.DataFrame, *, users: pl.DataFrame, items: pl.DataFrame
) -> pl.DataFrame | None:
    """`user`, `full`, `popular`, `uniform` (Int32): the rank (1 = best) of each target of `test`, in its order.

    Among all unseen items of the catalogue, or the user's popular or uniform negatives; ties go to the lower item id.
    `users`, `items`: dense and original ids. None where users × items are too many to score.
    """
    if len(test) * len(items) > MAX_CELLS:
        return None
    at_once = max(1, CELLS_AT_ONCE // len(items))
    parts = [
        _ranks(oracle, test.slice(first, at_once), users=users, items=items) for first in range(0, len(test), at_once)
    ]
    return pl.concat(parts)


def _ranks(oracle: Oracle, test: pl.DataFrame, *, users: pl.DataFrame, items: pl.DataFrame) -> pl.DataFrame:
    original = items["original"].to_numpy() - 1  # of the dense item ids in turn
    lengths = test["items"].list.len().to_numpy().astype(np.int64)
    history = original[test["items"].explode(empty_as_null=False).to_numpy() - FIRST_ITEM_ID]
    numbers = users["original"].gather(test["user"]).to_numpy() - 1
    scores = oracle.scores(numbers, history, np.concatenate([[0], np.cumsum(lengths)]))[:, original]
    target = test["target"].to_numpy()[:, None] - FIRST_ITEM_ID
    ranks = {"full": _rank(scores, target, np.arange(len(items))[None, :])}
    for name in ("popular", "uniform"):
        negatives = (
            test[f"{name}_negatives"].explode(empty_as_null=False).to_numpy().reshape(len(test), -1) - FIRST_ITEM_ID
        )
        ranks[name] = _rank(np.take_along_axis(scores, negatives, axis=1), target, negatives, scores)
    return pl.DataFrame([test["user"], *[pl.Series(name, rank, dtype=pl.Int32) for name, rank in ranks.items()]])


def _rank(
    candidates: NDArray[np.float64], target: NDArray[np.int64], ids: NDArray[np.int64],
    scores: NDArray[np.float64] | None = None,
) -> NDArray[np.int64]:  # fmt: skip
    """1 + the number of candidates before the target; seen items have a score below every other."""
    own = np.take_along_axis(candidates if scores is None else scores, target, axis=1)
    before = (candidates > own) | ((candidates == own) & (ids < target))
    rank: NDArray[np.int64] = 1 + before.sum(axis=1)
    return rank
