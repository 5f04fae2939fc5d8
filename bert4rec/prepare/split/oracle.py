"""Ranks of the test targets for the oracle that knows how the synthetic rows were made: the best a model can do."""

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bert4rec.dataset.ranks import is_ahead
from bert4rec.dataset.schema import FIRST_ITEM_ID
from bert4rec.prepare.read.synthetic import Oracle

CELLS_AT_ONCE = 1 << 22  # users × items scored at once
MAX_CELLS = 1 << 32  # above (about a minute) the oracle is left out


def oracle_ranks(
    oracle: Oracle, test: pl.DataFrame, *, users: pl.DataFrame, items: pl.DataFrame
) -> pl.DataFrame | None:
    """Return `user`, `full`, `popular`, `uniform` (Int32): the rank (1 = best) of each target of `test`, in its order.

    Among all unseen items of the catalogue, or the user's popular or uniform negatives (null for a user who has none);
    ties go to the lower item id.
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
    target = test["target"].to_numpy() - FIRST_ITEM_ID
    own = scores[np.arange(len(test)), target]  # seen items have a score below every other
    ranks = [pl.Series("full", 1 + is_ahead(scores, np.arange(len(items)), own, target).sum(axis=1), dtype=pl.Int32)]
    for name in ("popular", "uniform"):
        ranks.append(_ranks_among(test[f"{name}_negatives"], scores, own, target).alias(name))
    return pl.DataFrame([test["user"], *ranks])


def _ranks_among(
    negatives: pl.Series, scores: NDArray[np.float64], own: NDArray[np.float64], target: NDArray[np.int64]
) -> pl.Series:
    """Return the rank of each target, of score `own`, among the `negatives` of its row, null where there are none."""
    rows = np.flatnonzero(negatives.list.len().to_numpy())
    drawn = negatives.explode(empty_as_null=False).to_numpy() - FIRST_ITEM_ID
    drawn = drawn.reshape(len(rows), len(drawn) // max(1, len(rows)))
    candidates = np.take_along_axis(scores[rows], drawn, axis=1)
    ranks = pl.Series(1 + is_ahead(candidates, drawn, own[rows], target[rows]).sum(axis=1), dtype=pl.Int32)
    return pl.Series([None] * len(negatives), dtype=pl.Int32).scatter(rows, ranks)
