"""A few tested users and what would be recommended to them: the best items of the whole catalogue."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bert4rec.dataset.columns import Ints
from bert4rec.dataset.histories import EvaluationSplit, Rows
from bert4rec.evaluation.metrics import MISSED
from bert4rec.evaluation.scorers import Scorer
from bert4rec.evaluation.tiles import Catalogue
from bert4rec.evaluation.top_k import TopK

N_USERS = 10


@dataclass(frozen=True)
class Example:
    """A `user` (dense id), its `history` and `target` (item ids), the target's `rank`, and the best `items` [k].

    `scores` [k] are those of the items, the best first; `k` is smaller where fewer items are left.
    """

    user: int
    history: Ints
    target: int
    rank: int
    items: Ints
    scores: npt.NDArray[np.float64]


def evenly_ranked_rows(ranks: npt.NDArray[np.integer], n: int = N_USERS) -> npt.NDArray[np.int64]:
    """Return the rows of `n` users: the middle one of each n-th part, from the best rank to the worst.

    So hits and misses stand in the proportion in which the model makes them.

    >>> evenly_ranked_rows(np.array([7, 1, 4, 2, 9, 3]), 3)
    array([3, 2, 4])
    """
    order = np.lexsort((ranks, ranks == MISSED))  # stable
    n = min(n, len(ranks))
    return order[(2 * np.arange(n) + 1) * len(ranks) // (2 * n)]


@torch.no_grad()
def examples(
    scorer: Scorer, split: EvaluationSplit, ranks: npt.NDArray[np.integer], *, k: int, leaves_out_seen: bool,
    device: torch.device,
) -> list[Example]:  # fmt: skip
    """Return some users of `split`, whose targets have `ranks`, and their `k` best items.

    `leaves_out_seen`: none of these is an item that the user has seen. Ties go to the lower id. Every process makes the
    same calls.
    """
    indices = evenly_ranked_rows(ranks)
    rows = split.read(indices)
    assert rows.targets is not None, "an evaluation split has targets"
    best = _best(scorer, rows, k, leaves_out_seen, device)
    scores, ids = best.scores.cpu().numpy(), best.indices.cpu().numpy().astype(np.int32)
    histories = np.split(rows.items, rows.lengths.cumsum()[:-1])
    return [
        Example(user, history, target, rank, items[np.isfinite(of_items)], of_items[np.isfinite(of_items)])
        for user, history, target, rank, items, of_items in zip(
            split.users[indices].tolist(), histories, rows.targets.tolist(), ranks[indices].tolist(), ids, scores,
            strict=True,
        )
    ]  # fmt: skip


def _best(scorer: Scorer, rows: Rows, k: int, leaves_out_seen: bool, device: torch.device) -> TopK:
    """Find the `k` best items of each row; -inf fills the place of missing ones.

    Every process encodes all rows, as there are few, and scores its tiles of the catalogue.
    """
    assert rows.targets is not None, "an evaluation split has targets"
    users, _ = scorer.encode(rows, torch.from_numpy(rows.targets[:, None].astype(np.int64)).to(device))
    users_of_items = np.repeat(np.arange(len(rows.lengths)), rows.lengths)
    seen = torch.from_numpy(users_of_items), torch.from_numpy(rows.items.astype(np.int64))
    best = TopK.nothing(len(rows.lengths), k, dtype=torch.float64, device=device)
    for first, scores in _scores(scorer, users, device):
        if leaves_out_seen:
            scores[_within(seen, first, scores.shape[1])] = -torch.inf
        best.update(slice(None), scores.double(), first)
    return best.of_all(scorer.partition)


def _scores(scorer: Scorer, users: Tensor, device: torch.device) -> Iterator[tuple[int, Tensor]]:
    """Yield the id of the first item and the scores [B, C] of each of this process's tiles, one product each."""
    catalogue = Catalogue(scorer.n_items)
    for tiles in catalogue.lookups(scorer.partition):
        first, last = catalogue.items(tiles)
        items = scorer.items(torch.arange(first, last, device=device))
        for tile in tiles:
            start, stop = catalogue.items(range(tile, tile + 1))
            yield start, scorer.scores(users, items[start - first : stop - first])


def _within(seen: tuple[Tensor, Tensor], first: int, n: int) -> tuple[Tensor, Tensor]:
    """Return rows and columns of those of the items `first` … `first` + n - 1 that are `seen`."""
    users, items = seen
    is_here = (items >= first) & (items < first + n)
    return users[is_here], items[is_here] - first
