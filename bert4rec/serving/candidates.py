"""Search for the best of the items that may be recommended, with the prior added to their scores."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from bert4rec.dataset.format import NO_ITEM
from bert4rec.evaluation.batches import chunks
from bert4rec.evaluation.top_k import TileScorer, excluder, scores_dtype, top_k
from bert4rec.models.prior import Prior
from bert4rec.runtime.arrays import Int64s
from bert4rec.serving.rules import Rules, is_within

COPIED = 8  # the vectors are copied if at most one of so many items may be recommended, else scores are masked
FACTOR = 1.5  # items that are looked at for each that is wanted, if a list may have only some of a kind
SPREAD_SCORES = 1 << 22  # of all items, if few of them are wanted


class Queries(NamedTuple):
    """The vectors `hidden` [B, D] of queries, the items that each leaves out, and the last items of its history.

    `seen` has an array of items for each query. `last` [B, n] are those that the prior reads, the newest first; None
    without a prior.
    """

    hidden: Tensor
    seen: Sequence[Int64s]
    last: Tensor | None = None

    def at(self, rows: Tensor) -> "Queries":
        """Return some of the queries."""
        seen = [self.seen[row] for row in rows.tolist()]
        return Queries(self.hidden[rows], seen, None if self.last is None else self.last[rows])


class CandidateSet(NamedTuple):
    """The `vectors` [n, D], among them those of the items that may be recommended, and their `norms` [n, 1] or None.

    They are all vectors, with whether each is `hidden` [n], or None, unless few items may be recommended: then
    `indices` [n] are their numbers, and `places` [V] the place of each item among them, or NO_ITEM. A `TileScorer` of
    all items can replace all vectors. A list has `at_most` items of each of the `groups` [n], if there are any, and at
    most `longest` in all. `limited` [n] is the number below `n_limited` of each group that has more items than that,
    and `n_limited` for any other. The `prior`, if there is one, is added to the scores.
    """

    vectors: Tensor | TileScorer
    norms: Tensor | None
    hidden: Tensor | None
    indices: Tensor | None
    places: Int64s | None
    groups: Int64s | None
    limited: Tensor | None
    at_most: int
    n_limited: int
    longest: int
    prior: Prior | None

    @classmethod
    def of(
        cls, vectors: Tensor | TileScorer, hidden: Tensor | None, rules: Rules, *, norms: Tensor | None = None,
        prior: Prior | None = None,
    ) -> Self:  # fmt: skip
        """Return the items of `vectors` [V, D] that are not `hidden` [V]; with `norms` vectors are divided by them."""
        indices = places = limited = None
        groups, n_limited = rules.groups, 0
        longest = len(vectors) if hidden is None else int((~hidden).sum())
        if isinstance(vectors, Tensor) and hidden is not None and COPIED * longest <= len(vectors):
            indices, places = torch.nonzero(~hidden).flatten(), np.full(len(vectors), NO_ITEM, np.int64)
            places[indices.numpy()] = np.arange(len(indices))
            vectors, norms = vectors[indices], None if norms is None else norms[indices]
            groups, hidden = None if groups is None else groups[indices.numpy()], None
        if groups is not None:
            sizes = np.bincount(
                groups if hidden is None else groups[~hidden.numpy()], minlength=groups.max(initial=0) + 1
            )
            is_limited = sizes > rules.at_most
            n_limited, longest = int(is_limited.sum()), int(np.minimum(sizes, rules.at_most).sum())
            limited = torch.from_numpy(np.where(is_limited, np.cumsum(is_limited) - 1, n_limited)[groups])
        return cls(vectors, norms, hidden, indices, places, groups, limited, rules.at_most, n_limited, longest, prior)

    def best(self, queries: Queries, k: int) -> tuple[Tensor, Tensor]:
        """Return scores and indices [B, at most k] of the best items but the `seen` ones; missing ones score -inf."""
        if self.places is not None:
            seen = [shown[shown != NO_ITEM] for shown in (self.places[items] for items in queries.seen)]
            queries = queries._replace(seen=seen)
        k = min(k, self.longest)
        if self.groups is None or not k:
            adjust = self.adjuster(queries)
            scores, indices = top_k(queries.hidden, self.vectors, k, adjust=adjust, norms=self.norms)
        else:
            scores, indices = self._by_groups(queries, k)
        return scores, indices if self.indices is None else self.indices[indices]

    def adjuster(self, queries: Queries) -> Callable[[Tensor, int], None]:
        """Return a function for `top_k` that adds the prior and sets hidden items, and seen ones of a row, to -inf."""
        seen, last, hidden = queries.seen, queries.last, self.hidden
        lengths = [len(items) for items in seen]
        rows = torch.repeat_interleave(torch.arange(len(seen)), torch.tensor(lengths, dtype=torch.int64))
        exclude_seen = excluder(rows, torch.from_numpy(np.concatenate([*seen, np.empty(0, np.int64)])))

        def adjust(scores: Tensor, first: int) -> None:
            if self.prior is not None and last is not None:
                self._add_prior(self.prior, scores, last, first)
            if hidden is not None:
                scores.masked_fill_(hidden[first : first + scores.shape[1]], -torch.inf)
            exclude_seen(scores, first)

        return adjust

    def _add_prior(self, prior: Prior, scores: Tensor, last: Tensor, first: int) -> None:
        """Add the prior to the `scores` [B, C] of the vectors from `first` on, after the `last` items [B, n]."""
        if self.indices is None:
            prior.add(scores, last, first)
            return
        items = self.indices[first : first + scores.shape[1]]
        start, stop = int(items[0]), int(items[-1]) + 1
        for rows in chunks(len(scores), max(1, SPREAD_SCORES // (stop - start))):
            # In the places of all items, sums are rounded as they are without an allow list.
            everything = scores.new_zeros(rows.stop - rows.start, stop - start)
            everything[:, items - start] = scores[rows]
            prior.add(everything, last[rows], start)
            scores[rows] = everything[:, items - start]

    def _by_groups(self, queries: Queries, k: int) -> tuple[Tensor, Tensor]:
        """Return the best `k` with at most `at_most` of each group.

        A row with fewer among its best `FACTOR` × `k` is searched again without the rest of its full groups. Each
        search fills another group, so that there are at most `k` / `at_most` more.
        """
        assert self.groups is not None
        n, rows = min(int(FACTOR * k), len(self.vectors)), torch.arange(len(queries.hidden))
        scores, indices = torch.zeros(len(rows), n, dtype=scores_dtype(queries.hidden)), rows.new_zeros(len(rows), n)
        within = torch.zeros(len(rows), n, dtype=torch.bool)
        while len(rows):
            some = queries.at(rows)
            adjust = self.adjuster(some)
            if within.any():  # not the first search
                adjust = self._without_full(adjust, indices[rows], within[rows])
            scores[rows], indices[rows] = top_k(some.hidden, self.vectors, n, adjust=adjust, norms=self.norms)
            within[rows] = torch.from_numpy(is_within(self.groups[indices[rows].numpy()], self.at_most))
            is_short = (within[rows].sum(1) < k) & (scores[rows, -1] > -torch.inf)
            rows = rows[is_short] if n < len(self.vectors) else rows[:0]
        chosen = torch.argsort((~within).int(), dim=1, stable=True)[:, :k]
        scores = scores.masked_fill(~within, -torch.inf)
        return scores.gather(1, chosen), indices.gather(1, chosen)

    def _without_full(
        self, adjust: Callable[[Tensor, int], None], indices: Tensor, within: Tensor
    ) -> Callable[[Tensor, int], None]:
        """Return an `adjust` that leaves of each full group only those of the `indices` [B, n] that are `within`."""
        assert self.limited is not None
        n, groups = self.n_limited, self.limited
        taken = torch.zeros(len(indices), n + 1, dtype=torch.int64).scatter_add_(1, groups[indices], within.long())
        is_full = taken >= self.at_most
        is_full[:, n] = False
        kept_rows, places = torch.nonzero(within, as_tuple=True)
        kept = indices[kept_rows, places]

        def exclude_more(scores: Tensor, first: int) -> None:
            adjust(scores, first)
            is_in_tile = (kept >= first) & (kept < first + scores.shape[1])
            here = kept_rows[is_in_tile], kept[is_in_tile] - first
            kept_scores = scores[here]
            scores.masked_fill_(is_full[:, groups[first : first + scores.shape[1]]], -torch.inf)
            scores[here] = kept_scores

        return exclude_more
