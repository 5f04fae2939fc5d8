"""Generate interactions with a structure to learn, with an oracle that ranks by the true probabilities; and noise.

Items are split over clusters. A user has a cycle of a few clusters. At each step the user stays in the cluster, or goes
on to the next cluster of the cycle, or takes one item of any cluster. No item is taken twice. So the next item depends
on the order of the history: on the last cluster, and on the cycle seen before.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from bert4rec.dataset.format import outranks
from bert4rec.runtime.arrays import Float64s, Int64s
from bert4rec.runtime.errors import DataError
from bert4rec.sources.progress import BadRows

MIN_LENGTH = 5  # interactions of the shortest user
TASTE = 3  # clusters in a user's cycle
STAY, NEXT, EXCURSION = 0.8, 0.15, 0.05  # probabilities of a step
ITEM_EXPONENT = 1.5  # exponent of the Zipf weights within a cluster
CLUSTER_EXPONENT = 0.5  # exponent of the Zipf popularity of clusters
LENGTH_SPREAD = 0.6  # sigma of the log-normal lengths
SMALLEST_CLUSTER = 32  # items
SYNTHETIC_BLOCK_USERS = 4096  # users generated at once; changing it changes the data
FIRST_TIME, START_DAYS = 1_000_000_000, 365  # the first time in seconds, and the days over which users begin
CELLS_AT_ONCE = 1 << 22  # users × items scored at once
MAX_CELLS = 1 << 32  # users × items (about a minute); above, the oracle's ranks are left out


@dataclass(frozen=True)
class Oracle:
    """The parameters of the synthetic rows that determine the last item of every user.

    `cluster` and `weight` of each item, in the order of the original ids (1, 2, …). `current` and `following`: each
    user's cluster before the last step and the next one of the cycle, in the order of the original ids. `popularity` of
    each cluster.
    """

    cluster: Int64s
    weight: Float64s
    current: Int64s
    following: Int64s
    popularity: Float64s

    def scores(self, users: Int64s, history: Int64s, offsets: Int64s) -> Float64s:
        """Return the exact probability of every item being next, (users, items); -1 for items in the history.

        `users` count from 0. The items (from 0) of the i-th user are `history[offsets[i]:offsets[i + 1]]`.
        """
        each, n_clusters = np.arange(len(users)), len(self.popularity)
        rows = np.repeat(each, np.diff(offsets))
        step = np.tile(EXCURSION * self.popularity, (len(users), 1))
        step[each, self.current[users]] += STAY
        step[each, self.following[users]] += NEXT
        total = np.bincount(self.cluster, self.weight, n_clusters)
        cell = rows * n_clusters + self.cluster[history]
        left = total - np.bincount(cell, self.weight[history], len(users) * n_clusters).reshape(-1, n_clusters)
        per_weight = step / np.maximum(left, 1e-12)
        scores = per_weight[:, self.cluster] * self.weight
        scores[rows, history] = -1.0
        return scores


def structured(*, n_users: int, n_items: int, n_rows: int, seed: int) -> tuple[pl.DataFrame, Oracle]:
    """Return about `n_rows` rows `user`, `item` (from 1), `time`, sorted by user and time, and their oracle.

    Raises `DataError` if the counts do not fit together.
    """
    rng = np.random.default_rng([seed, 0])
    lengths = _lengths(rng, n_users=n_users, n_items=n_items, n_rows=n_rows)
    n_clusters = max(1, n_items // _cluster_size(n_users=n_users, n_items=n_items, n_rows=n_rows))
    place = rng.permutation(n_items)  # item → its place; cluster and rank follow from it
    cluster, weight = place % n_clusters, _zipf(place // n_clusters, ITEM_EXPONENT)
    popularity = _zipf(np.arange(n_clusters), CLUSTER_EXPONENT)
    popularity /= popularity.sum()
    members = np.argsort(place)
    frames, ends = [], []
    for block, first in enumerate(range(0, n_users, SYNTHETIC_BLOCK_USERS)):
        part = lengths[first : first + SYNTHETIC_BLOCK_USERS]
        rng = np.random.default_rng([seed, 1, block])
        taste = _tastes(rng, len(part), popularity)
        visited, end = _walk(rng, part, taste, popularity)
        users = np.repeat(np.arange(len(part)), part)
        items = members[_draw(rng, users, visited, n_clusters, n_items)]
        frames.append(_rows(rng, users + first, items, part))
        ends.append(end)
    current, following = np.concatenate(ends, axis=1)
    return pl.concat(frames), Oracle(cluster, weight, current, following, popularity)


def noise(*, n_users: int, n_items: int, n_rows: int, seed: int) -> tuple[pl.DataFrame, None]:
    """Return about `n_rows` rows `user`, `item` (from 1), `time`: uniform items, nothing to learn."""
    rng = np.random.default_rng([seed, 0])
    lengths = _lengths(rng, n_users=n_users, n_items=n_items, n_rows=n_rows)
    users = np.repeat(np.arange(n_users), lengths)
    return _rows(rng, users, rng.integers(0, n_items, len(users)), lengths), None


def _zipf(rank: Int64s, exponent: float) -> Float64s:
    """Return weights that fall with the rank (from 0)."""
    return np.power(1.0 + rank, -exponent)


def _cluster_size(*, n_users: int, n_items: int, n_rows: int) -> int:
    """Return the number of items of a cluster: as many as the longest history, so that no cluster runs out of items."""
    return min(n_items, max(SMALLEST_CLUSTER, 3 * n_rows // n_users))


def _lengths(rng: np.random.Generator, *, n_users: int, n_items: int, n_rows: int) -> Int64s:
    """Return the number of interactions of each user: heavy-tailed, at least `MIN_LENGTH`, about `n_rows` in total."""
    mean, limit = n_rows / n_users, n_items // 2
    if not MIN_LENGTH <= mean <= limit:
        raise DataError(
            f"data.n_rows = {n_rows}: {mean:.1f} interactions a user; with data.n_users = {n_users} and data.n_items = "
            f"{n_items} it must be from {MIN_LENGTH * n_users} to {limit * n_users}"
        )
    tail = rng.lognormal(sigma=LENGTH_SPREAD, size=n_users)
    lengths = MIN_LENGTH + np.rint(tail / tail.mean() * (mean - MIN_LENGTH)).astype(np.int64)
    return lengths.clip(max=_cluster_size(n_users=n_users, n_items=n_items, n_rows=n_rows))


def _tastes(rng: np.random.Generator, n_users: int, popularity: Float64s) -> Int64s:
    """Return distinct clusters of each user, drawn by popularity, (users, at most `TASTE`)."""
    # an exponential race: the first arrivals are a draw without replacement in proportion to the rates
    arrival = rng.standard_exponential((n_users, len(popularity))) / popularity
    return np.argsort(arrival, axis=1)[:, :TASTE]


def _walk(rng: np.random.Generator, lengths: Int64s, taste: Int64s, popularity: Float64s) -> tuple[Int64s, Int64s]:
    """Return the cluster of each interaction, user by user; and the current and next cluster before each last one."""
    users, cycle = np.repeat(np.arange(len(lengths)), lengths), taste.shape[1]
    ends = np.cumsum(lengths)
    kind = rng.random(len(users))
    kind[ends - lengths] = 0.0  # the first step is in the first cluster of the cycle
    moves = ((kind >= STAY) & (kind < STAY + NEXT)).cumsum()
    place = (moves - moves[ends - lengths][users]) % cycle
    visited = taste[users, place]
    excursion = kind >= STAY + NEXT
    visited[excursion] = rng.choice(len(popularity), excursion.sum(), p=popularity)
    each, before = np.arange(len(lengths)), place[ends - 2]
    return visited, np.stack([taste[each, before], taste[each, (before + 1) % cycle]])


def _draw(rng: np.random.Generator, users: Int64s, visited: Int64s, n_clusters: int, n_items: int) -> Int64s:
    """Return the place of each item: a user's j-th visit to a cluster takes the j-th item of a random order.

    Gumbel keys give this order, so an unseen item is taken with a probability in proportion to its weight.
    """
    pairs, pair, counts = np.unique(users * n_clusters + visited, return_inverse=True, return_counts=True)
    largest = -(-n_items // n_clusters)
    ranks = np.arange(largest)
    keys = rng.gumbel(size=(len(pairs), largest)) - ITEM_EXPONENT * np.log1p(ranks)
    # the clusters with a number of n_items % n_clusters or more are one item shorter
    keys[ranks * n_clusters + (pairs % n_clusters)[:, None] >= n_items] = -np.inf
    order = np.argsort(-keys, axis=1)
    by_pair = np.argsort(pair, kind="stable")
    visit = np.empty(len(users), np.int64)
    visit[by_pair] = np.arange(len(users)) - np.repeat(np.cumsum(counts) - counts, counts)
    return order[pair, visit] * n_clusters + visited


def _rows(rng: np.random.Generator, users: Int64s, items: Int64s, lengths: Int64s) -> pl.DataFrame:
    """Return rows with increasing times: a user starts on a random day, and continues about every hour."""
    gaps = 1 + rng.exponential(3600, len(users)).astype(np.int64)
    gaps[np.cumsum(lengths) - lengths] += rng.integers(0, START_DAYS * 86400, len(lengths))
    time = gaps.cumsum()
    start = np.concatenate([[0], time[np.cumsum(lengths)[:-1] - 1]])
    time = FIRST_TIME + time - np.repeat(start, lengths)
    return pl.DataFrame({"user": users + 1, "item": items + 1, "time": time})


GENERATORS: dict[str, Callable[..., tuple[pl.DataFrame, Oracle | None]]] = {"synthetic": structured, "random": noise}


class GeneratedSource:
    """Generated rows as a source: in memory, in one part, without bad rows."""

    order: Mapping[str, Any] = {"by": "time", "column": None, "newest_first": False}

    def __init__(self, source: str, *, n_users: int, n_items: int, n_rows: int, seed: int) -> None:
        self._rows, self.oracle = GENERATORS[source](n_users=n_users, n_items=n_items, n_rows=n_rows, seed=seed)
        self.bad, self.n_bytes = BadRows(), len(self._rows)

    def __iter__(self) -> Iterator[tuple[pl.DataFrame, int]]:
        yield self._rows, len(self._rows)

    def check(self, n_users: int) -> None:
        """Do nothing: generated rows have no problem."""

    def item_titles(self, path: str, dtype: pl.DataType) -> None:
        """Return None: generated items have no titles."""


def oracle_ranks(
    oracle: Oracle, test: pl.DataFrame, *, users: pl.DataFrame, items: pl.DataFrame
) -> pl.DataFrame | None:
    """Return `user`, `full`, `popular`, `uniform` (Int32): the rank (1 = best) of each target of `test`, in its order.

    `full` ranks among all unseen items of the catalogue, `popular` and `uniform` among the user's sampled negatives
    (null for a user without negatives); ties go to the lower item id. `users`, `items`: dense and original ids. Returns
    None if users × items are too many to score.
    """
    if len(test) * len(items) > MAX_CELLS:
        return None
    slices = test.iter_slices(max(1, CELLS_AT_ONCE // len(items)))
    return pl.concat(_ranks(oracle, part, users=users, items=items) for part in slices)


def _ranks(oracle: Oracle, test: pl.DataFrame, *, users: pl.DataFrame, items: pl.DataFrame) -> pl.DataFrame:
    original = items["original"].to_numpy() - 1  # dense id → original id - 1
    lengths = test["items"].list.len().to_numpy().astype(np.int64)
    history = original[test["items"].explode(empty_as_null=False).to_numpy()]
    numbers = users["original"].gather(test["user"]).to_numpy() - 1
    scores = oracle.scores(numbers, history, np.concatenate([[0], np.cumsum(lengths)]))[:, original]
    target = test["target"].to_numpy()
    own = scores[np.arange(len(test)), target]  # seen items have a score below every other
    full = pl.Series("full", 1 + outranks(scores, np.arange(len(items)), own, target).sum(axis=1), dtype=pl.Int32)
    ranks = {name: _ranks_among(test[f"{name}_negatives"], scores, own, target) for name in ("popular", "uniform")}
    return pl.DataFrame([test["user"], full]).with_columns(**ranks)


def _ranks_among(negatives: pl.Series, scores: Float64s, own: Float64s, target: Int64s) -> pl.Series:
    """Return the rank of each target, with score `own`, among the `negatives` of its row; null if it has none."""
    rows = np.flatnonzero(negatives.list.len().to_numpy())
    drawn = negatives.explode(empty_as_null=False).to_numpy()
    drawn = drawn.reshape(len(rows), len(drawn) // max(1, len(rows)))
    candidates = np.take_along_axis(scores[rows], drawn, axis=1)
    ranks = pl.Series(1 + outranks(candidates, drawn, own[rows], target[rows]).sum(axis=1), dtype=pl.Int32)
    return pl.Series([None] * len(negatives), dtype=pl.Int32).scatter(rows, ranks)
