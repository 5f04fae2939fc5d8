"""Search for the best items among near ones, which a graph finds, instead of among all: for very large catalogues."""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bert4rec.dataset.format import NO_ITEM
from bert4rec.models.prior import Prior
from bert4rec.runtime.arrays import Int64s
from bert4rec.serving.candidates import Queries

CONNECTIVITY, EFFORT_OF_BUILDING = 16, 128  # of the graph: neighbours of an item, items looked at for each new one
BREADTHS = (256, 512, 1024, 2048, 4096)  # items that are looked at for a query
MOST_OF_PRIOR = 4096  # items that the prior adds to a search
AT_ONCE_SCORED = 64  # queries


class NearestItems:
    """A graph of the item `vectors` [V, D] (HNSW, Malkov and Yashunin 2016), for the largest products with a query.

    Products are made angles by one more dimension, which gives all vectors the same norm (Bachrach et al. 2014). A
    search looks at `breadth` items or more, and at those that the `prior` adds to; these are then scored exactly, so
    that only an item that was not looked at can be missing. Raises `ModuleNotFoundError` without usearch.
    """

    def __init__(self, vectors: Tensor, prior: Prior | None, *, threads: int) -> None:
        from usearch.index import Index

        self._vectors, self._prior, self._threads = vectors, prior, threads
        self.breadth = BREADTHS[0]
        biases = torch.zeros(len(vectors)) if prior is None else prior.biases
        points = torch.cat([vectors, biases[:, None]], 1)
        squares = points.square().sum(1)
        added = (squares.max() - squares).clamp(min=0).sqrt()
        self._index = Index(
            ndim=points.shape[1] + 1, metric="cos", dtype="f16", connectivity=CONNECTIVITY,
            expansion_add=EFFORT_OF_BUILDING, expansion_search=BREADTHS[0],
        )  # fmt: skip
        self._index.add(np.arange(len(vectors)), torch.cat([points, added[:, None]], 1).numpy(), threads=threads)

    def look_at(self, breadth: int) -> None:
        """Look at so many items for each query; more find more of the best, and take longer."""
        self.breadth = breadth
        self._index.expansion_search = breadth  # type: ignore[misc]  # its stub has no setter

    def best(self, queries: Queries, k: int) -> tuple[Tensor, Tensor]:
        """Return scores and indices [B, at most k] of the best items but the seen ones; missing ones score -inf."""
        k = min(k, len(self._vectors))
        found = [self._best(queries.at(rows), k) for rows in torch.arange(len(queries.hidden)).split(AT_ONCE_SCORED)]
        return torch.cat([scores for scores, _ in found]), torch.cat([items for _, items in found])

    def _best(self, queries: Queries, k: int) -> tuple[Tensor, Tensor]:
        n = min(len(self._vectors), max(self.breadth, k + max(map(len, queries.seen))))
        hidden = queries.hidden.float()
        points = F.pad(F.pad(hidden, (0, 1), value=1.0), (0, 1)).numpy()  # times the bias, and the added dimension
        keys = np.asarray(self._index.search(points, n, threads=self._threads).keys, np.int64).reshape(len(points), -1)
        ids = torch.from_numpy(np.sort(self._with_prior(keys, queries), axis=1))
        is_valid = ids != NO_ITEM
        is_valid[:, 1:] &= ids[:, 1:] != ids[:, :-1]
        is_valid &= ~_is_seen(ids.numpy(), queries.seen)
        rows = ids.clamp(min=0)
        scores = torch.einsum("bd,bcd->bc", hidden, self._vectors[rows].float())
        if self._prior is not None and queries.last is not None:
            scores += self._prior.of_pairs(queries.last, rows)
        scores.masked_fill_(~is_valid, -torch.inf)
        best, places = scores.topk(min(k, scores.shape[1]), dim=1)
        return best, rows.gather(1, places)

    def _with_prior(self, keys: Int64s, queries: Queries) -> Int64s:
        """Return the items [B, n] that are near, and those that the prior adds to."""
        if self._prior is None or queries.last is None:
            return keys
        added = [self._prior.targets_of(row)[:MOST_OF_PRIOR] for row in queries.last]
        width = max(map(len, added))
        padded = np.full((len(keys), width), NO_ITEM, np.int64)
        for row, items in enumerate(added):
            padded[row, : len(items)] = items
        return np.concatenate([keys, padded], axis=1)


def _is_seen(ids: Int64s, seen: Sequence[Int64s]) -> Tensor:
    return torch.from_numpy(np.stack([np.isin(row, items) for row, items in zip(ids, seen, strict=True)]))
