"""The baseline that knows items by their features alone: the items most similar to the user's history."""

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bert4rec.dataset.histories import Rows
from bert4rec.dataset.item_features import ItemFeatures
from bert4rec.models.item_features import csr
from bert4rec.runtime.arrays import Int64s
from bert4rec.runtime.collectives import Partition

MAX_COLUMNS = 8192  # of the vectors of users; more values than these share columns
ITEMS_AT_A_TIME = 65_536  # items whose features are read at once
HASH_SEED = 1  # of the columns and signs of the values
ROUNDED_TO = 2.0**24


class ContentScorer:
    """Scores an item by the cosine of its feature vector and the mean feature vector of the user's whole history.

    The vector of an item has for each value its weight × log(number of items / number of items with the value), and for
    missing values 0; beside these are its ready-made vectors. The part of each feature has unit length, and so has the
    whole; a part or an item without any value is 0, and so are its scores. More than `MAX_COLUMNS` values are hashed:
    each value gets one of the columns and a sign, at random but always the same, which keeps cosines on average
    (Weinberger et al. 2009, "Feature Hashing for Large Scale Multitask Learning").

    Numbers of vectors are multiples of 2^-24, so that float64 adds their products without rounding, in any order. Items
    with the same features thus always tie, and every number of processes gives the same scores.
    """

    is_rounded = False
    dtype = torch.float32  # holds multiples of 2^-24 up to 1, and the rounded sums

    def __init__(
        self, features: ItemFeatures, n_items: int, partition: Partition, between: Callable[[], None] = lambda: None
    ) -> None:
        """Count how many items have each value; `between` is called before each part of the catalogue."""
        self._features, self.partition, self.n_items = features, partition, n_items
        n_values = features.sizes.n_values
        self._n_vector = features.sizes.width
        sizes = np.array([bag.n_values for bag in features.bags], np.int64)
        self._feature_numbers = np.repeat(np.arange(len(sizes)), sizes)  # the feature of each value
        counts, self._n_most = np.zeros(n_values, np.int64), 1
        for items in parts(n_items):
            between()
            rows = features.read(items)
            counts += np.bincount(rows.values, minlength=n_values)
            self._n_most = max(self._n_most, int(rows.lengths.max()))
        self._factors = np.log(n_items / np.maximum(counts, 1))
        self._factors[sizes.cumsum() - sizes] = 0.0  # the first value of each feature: missing
        self._n_columns = max(1, min(n_values, MAX_COLUMNS))
        self._columns, self._signs = np.arange(n_values), np.ones(n_values)
        if n_values > MAX_COLUMNS:
            generator = np.random.default_rng(HASH_SEED)
            self._columns = generator.integers(0, MAX_COLUMNS, n_values)
            self._signs = generator.choice([-1.0, 1.0], n_values)
        self.width = self._n_columns + self._n_vector

    def encode(self, rows: Rows, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the vectors [B, width] of the users of `rows`, and the scores [B, n] of the items `ids` [B, n]."""
        n_users = len(rows.lengths)
        history, places = np.unique(rows.items, return_inverse=True)
        columns, weights, vectors = self._split(self.items(torch.from_numpy(history.astype(np.int64))))
        users = torch.repeat_interleave(torch.arange(n_users), torch.from_numpy(rows.lengths))
        at = torch.from_numpy(places)
        cells = (users[:, None] * self._n_columns + columns[at]).flatten()
        sums = torch.bincount(cells, weights[at].flatten(), minlength=n_users * self._n_columns)
        ends = torch.from_numpy(rows.lengths).cumsum(0)
        vector_sums = F.embedding_bag(at, vectors, F.pad(ends, (1, -1)), mode="sum")
        known = F.normalize(torch.cat([sums.view(n_users, -1), vector_sums], 1))
        known = (torch.round(known * ROUNDED_TO) / ROUNDED_TO).to(ids.device)
        return known.float(), self._score_pairs(known, self._split(self.items(ids.flatten())), ids.shape[1])

    def items(self, ids: Tensor) -> Tensor:
        """Return the items `ids` [C], one a row: columns of values, as many numbers in them, ready-made vectors."""
        items = ids.cpu().numpy()
        rows = self._features.read(items)
        indices = np.repeat(np.arange(len(items)), rows.lengths)
        numbers = rows.weights * self._factors[rows.values]
        vectors = rows.vectors.astype(np.float64)
        # The squared length of each part: a part for each feature.
        cells = indices * len(self._features.bags) + self._feature_numbers[rows.values]
        n_cells = len(items) * len(self._features.bags)
        squares = np.bincount(cells, numbers**2, minlength=n_cells)
        bounds = np.cumsum([0, *self._features.vector_widths.values()])
        vector_squares = [np.square(vectors[:, first:last]).sum(1) for first, last in itertools.pairwise(bounds)]
        n_parts = (squares.reshape(len(items), len(self._features.bags)) > 0).sum(1) + sum(
            (part > 0).astype(int) for part in vector_squares
        )
        whole = np.sqrt(np.maximum(n_parts, 1))
        numbers /= np.sqrt(np.where(squares > 0, squares, 1))[cells] * whole[indices]
        for (first, last), square in zip(itertools.pairwise(bounds), vector_squares, strict=True):
            vectors[:, first:last] /= (np.sqrt(np.where(square > 0, square, 1)) * whole)[:, None]
        packed = np.zeros((len(items), 2 * self._n_most + self._n_vector), np.float32)
        places = np.arange(len(indices)) - np.repeat(rows.lengths.cumsum() - rows.lengths, rows.lengths)
        packed[indices, places] = self._columns[rows.values]
        packed[indices, self._n_most + places] = np.round(numbers * self._signs[rows.values] * ROUNDED_TO) / ROUNDED_TO
        packed[:, 2 * self._n_most :] = np.round(vectors * ROUNDED_TO) / ROUNDED_TO
        return torch.from_numpy(packed).to(ids.device)

    def scores(self, users: Tensor, items: Tensor, first: int, tile: int) -> Tensor:
        """Return the scores [B, C] of users [B, width] for items [C, …]."""
        columns, weights, vectors = self._split(items)
        has_number = weights != 0
        rows = torch.arange(len(items), device=items.device)[:, None].expand_as(columns)[has_number]
        matrix = csr(rows, columns[has_number], weights[has_number], (len(items), self._n_columns))
        known = users.double().T.contiguous()
        scores = torch.sparse.mm(matrix, known[: self._n_columns])
        scores += vectors @ known[self._n_columns :]
        return scores.T.float()

    def _score_pairs(self, users: Tensor, items: tuple[Tensor, Tensor, Tensor], n: int) -> Tensor:
        """Return the scores [B, n] of users [B, width] for `n` items each, the same as those of `scores`."""
        columns, weights, vectors = (values.view(len(users), n, -1) for values in items)
        user_values = users[:, : self._n_columns].gather(1, columns.flatten(1)).view_as(weights)
        return ((user_values * weights).sum(2) + (users[:, None, self._n_columns :] * vectors).sum(2)).float()

    def _split(self, items: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the columns, their numbers and the ready-made vectors of packed `items`."""
        columns, weights, vectors = items.split([self._n_most, self._n_most, self._n_vector], 1)
        return columns.long(), weights.double(), vectors.double()


def n_parts(n_items: int) -> int:
    """Return the number of parts of a catalogue."""
    return -(-n_items // ITEMS_AT_A_TIME)


def parts(n_items: int) -> Iterator[Int64s]:
    """Yield the items of a catalogue, some at a time."""
    for first in range(0, n_items, ITEMS_AT_A_TIME):
        yield np.arange(first, min(first + ITEMS_AT_A_TIME, n_items))
