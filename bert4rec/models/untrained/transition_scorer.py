"""Scores by what has followed a user's last items: a Markov chain, or a graph of item transitions."""

import numpy as np
import torch
from torch import Tensor

from bert4rec.dataset.columns import Indices, Ints
from bert4rec.dataset.reader import Rows
from bert4rec.dataset.schema import FIRST_ITEM_ID
from bert4rec.models.untrained.transitions import Floats, Transitions
from bert4rec.runtime.collectives import Partition

NOBODY = -1  # in the place of an item that a short history does not have


class TransitionScorer:
    """Scores an item by the probability that it follows each of a user's last `n_last_items`, added up.

    P(j | i) = (weight of i → j + `smoothing` × share of j) / (weights of i + `smoothing`), where the share is that of
    the training positions, `popularity` [n_items]: an item of which little is known says little but what is popular
    anyhow. The k-th item from the end counts `decay` ** (k - 1). With one last item this is a smoothed Markov chain;
    with several an untrained graph of transitions, after Han et al. 2026, "An Embarrassingly Simple Graph Heuristic
    Reveals Shortcut-Solvable Benchmarks for Sequential Recommendation" (arXiv 2605.07125); theirs looks at one or two
    last items, over several hops, and at features of items. Every process adds up the same numbers in the same order.
    """

    dtype = torch.float64  # so that different sums differ

    def __init__(
        self, transitions: Transitions, popularity: Ints, partition: Partition, *, n_last_items: int, decay: float,
        smoothing: float,
    ) -> None:  # fmt: skip
        matrix = transitions.matrix()
        self._graph = _Sparse(transitions) if matrix is None else _Dense(torch.from_numpy(matrix))
        self.partition = partition
        self._shares = popularity / max(1, popularity.sum())
        self._per_item = 1 / (transitions.totals + smoothing)
        self._of_place, self._smoothing = decay ** np.arange(n_last_items), smoothing
        self.n_items, self.width = len(popularity), n_last_items

    def encode(self, rows: Rows, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the last items, counted from 0, the newest first."""
        last = _last_items(rows, self.width)
        targets = ids.cpu().numpy() - FIRST_ITEM_ID
        factors, of_share = self._factors(last)
        scores = np.zeros(targets.shape)
        for place in range(self.width):
            users = np.flatnonzero(last[:, place] != NOBODY)
            weights = self._graph.weights(last[users, place, None], targets[users])
            scores[users] += factors[users, place, None] * weights
        scores += of_share[:, None] * self._shares[targets]
        return torch.from_numpy(last.astype(np.float64)).to(ids.device), torch.from_numpy(scores).to(ids.device)

    def items(self, ids: Tensor) -> Tensor:
        """Return consecutive items, as they are."""
        return ids

    def scores(self, users: Tensor, items: Tensor) -> Tensor:
        """Return what the graph has between a tile of the catalogue and the last items, and what is popular."""
        last, first = users.cpu().numpy().astype(np.int64), int(items[0]) - FIRST_ITEM_ID
        factors, of_share = self._factors(last)
        scores = self._graph.added(last, factors, first, len(items))
        scores += of_share[:, None] * self._shares[first : first + len(items)]
        return torch.from_numpy(scores).to(users.device)

    def _factors(self, last: Indices) -> tuple[Floats, Floats]:
        """Return the factors of the weights of each last item [B, n], and of the shares of all items [B]."""
        factors = np.where(last != NOBODY, self._of_place * self._per_item[last], 0.0)
        return factors, self._smoothing * factors.sum(1)


class _Sparse:
    """A graph of few of the pairs that there could be, as a sorted list of them."""

    def __init__(self, transitions: Transitions) -> None:
        self._transitions = transitions

    def weights(self, sources: Indices, targets: Indices) -> Floats:
        """Return the weights of pairs of items, arrays that broadcast."""
        return self._transitions.weights(sources, targets)

    def added(self, last: Indices, factors: Floats, first: int, n: int) -> Floats:
        """Return weights from the `last` items [B, P] to `first` … `first` + n - 1, times `factors` [B, P].

        Added up [B, n] in the order of the places.
        """
        rows, places = np.nonzero(last != NOBODY)
        lengths, columns, weights = self._transitions.rows(last[rows, places], first, first + n)
        columns += np.repeat(rows * n, lengths)
        added = weights * np.repeat(factors[rows, places], lengths)
        return np.bincount(columns, added, len(last) * n).astype(np.float64).reshape(len(last), n)


class _Dense:
    """The same, a `matrix` [n_items, n_items] of all pairs."""

    def __init__(self, matrix: Tensor) -> None:
        self._matrix = matrix

    def weights(self, sources: Indices, targets: Indices) -> Floats:
        """Return the same as `_Sparse.weights`."""
        return self._matrix.numpy()[sources, targets].astype(np.float64)

    def added(self, last: Indices, factors: Floats, first: int, n: int) -> Floats:
        """Return the same as `_Sparse.added`; NOBODY is an arbitrary item with factor 0."""
        tile, scores = self._matrix[:, first : first + n], torch.zeros(len(last), n, dtype=torch.float64)
        sources, of_sources = torch.from_numpy(last.T % len(tile)), torch.from_numpy(factors.T[:, :, None])
        for source, factor in zip(sources, of_sources, strict=True):
            scores += tile.index_select(0, source).double().mul_(factor)  # each rounded by itself: no addcmul
        return scores.numpy()


def _last_items(rows: Rows, n: int) -> Indices:
    """Return the last `n` items of each row [B, n], counted from 0, the newest first; NOBODY where there are fewer."""
    before = np.arange(n)
    at = np.maximum(rows.lengths.cumsum()[:, None] - 1 - before, 0)
    items = rows.items[at].astype(np.int64) - FIRST_ITEM_ID if len(rows.items) else np.zeros(at.shape, np.int64)
    return np.where(before < rows.lengths[:, None], items, NOBODY)
