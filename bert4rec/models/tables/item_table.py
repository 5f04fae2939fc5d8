"""The item table: one owner of lookups, candidates, head and biases."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from bert4rec.feed.batch import Lookup
from bert4rec.models.tables.table import DenseShard, Table

# An item's bias stands behind its vector, in the same row of the same table: one lookup brings both, and the score is
# one product with a hidden state that ends in a 1. fbgemm wants widths in multiples of 4, so three columns stay zero.
BIAS_COLUMNS = 4


class CataloguePart(NamedTuple):
    """Hold this process's part of the catalogue: `vectors` [V, D] of items from `first` on, counted from 0.

    `is_averaged`: whether the gradient of the vectors is to be divided by the number of processes, as is done elsewhere
    with replicated ones.
    """

    vectors: Tensor
    first: int
    is_averaged: bool


class ItemTable(Table):
    """Vectors [d] of `n_items` items for sequences, and vectors [D] with their biases for scores.

    `head` "tied" scores through the candidate feature of the table itself, "linear" through a layer of its own; D is d
    and, where there is a bias, its columns. An item's id is its row.
    """

    def __init__(
        self, n_items: int, embed_dim: int, *, head: str, output_bias: bool, device: torch.device | str = "meta"
    ) -> None:
        tied = head == "tied"
        width = embed_dim + (BIAS_COLUMNS if tied else 1) * output_bias
        super().__init__(
            "item", n_rows=n_items, width=width if tied else embed_dim,
            features=["item", "candidate"] if tied else ["item"], n_initialized=embed_dim, device=device,
        )  # fmt: skip
        self.n_items, self.embed_dim, self.width = n_items, embed_dim, width
        self.head = None if tied else nn.Linear(embed_dim, n_items, output_bias, device)

    def lookups(self, items: Lookup, candidates: Lookup | None = None) -> dict[str, Lookup]:
        """Return the ids of `look_up_items`; without `candidates` those of `look_up_catalogue` for a shard."""
        return {"item": items} | ({"candidate": candidates} if candidates is not None and self.head is None else {})

    def look_up_items(self, items: Lookup, candidates: Lookup) -> tuple[Tensor, Tensor]:
        """Return vectors [U, d] of the `items` of sequences, and [C, D] of the `candidates`.

        One lookup serves both: on a sharded table each is a round of messages.
        """
        found = self.look_up(self.lookups(items, candidates))
        vectors = found["item"][:, : self.embed_dim]
        return vectors, found["candidate"] if self.head is None else self._of_head(candidates.ids)

    def look_up_catalogue(self, items: Lookup) -> tuple[Tensor, CataloguePart]:
        """Return vectors of `items`, and this process's part of the catalogue: its shard, or else an even part."""
        if self.dense_shard is not None and self.head is None:
            found = self.look_up(self.lookups(items))["item"]
            return found[:, : self.embed_dim], self._own_rows(self.dense_shard)
        share = self.partition.of(self.n_items)
        ids = torch.arange(share.start, share.stop, device=items.ids.device)
        vectors, candidates = self.look_up_items(items, Lookup.of(ids))
        return vectors, CataloguePart(candidates, share.start, is_averaged=False)

    def catalogue(self, device: torch.device) -> CataloguePart:
        """Return this process's part of the catalogue alone."""
        if self.dense_shard is not None and self.head is None:
            return self._own_rows(self.dense_shard)
        share = self.partition.of(self.n_items)
        ids = torch.arange(share.start, share.stop, device=device)
        return CataloguePart(self.candidates(Lookup.of(ids)), share.start, is_averaged=False)

    def _own_rows(self, shard: DenseShard) -> CataloguePart:
        return CataloguePart(shard.weight, shard.first, is_averaged=True)

    def candidates(self, items: Lookup) -> Tensor:
        """Return vectors [C, D] of the `items`."""
        return self.look_up({"candidate": items})["candidate"] if self.head is None else self._of_head(items.ids)

    def _of_head(self, ids: Tensor) -> Tensor:
        assert self.head is not None
        vectors = self.head.weight.index_select(0, ids)
        if self.width == self.embed_dim:
            return vectors
        return torch.cat([vectors, self.head.bias.index_select(0, ids)[:, None]], dim=1)
