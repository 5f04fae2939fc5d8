"""The item table: one owner of lookups, candidates, head, biases, and of the ways in which gradients reach its rows."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from bert4rec.dataset.schema import FIRST_ITEM_ID, table_rows
from bert4rec.models.deferred_update import DeferredUpdate
from bert4rec.models.dense_shard import DenseShard
from bert4rec.runtime.collectives import Partition

# An item's bias stands behind its vector, in the same row of the same table: one lookup brings both, and the score is
# one product with a hidden state that ends in a 1. fbgemm wants widths in multiples of 4, so three columns stay zero.
BIAS_COLUMNS = 4
ITEM_TABLE = "item_table"  # how its optimizer state is called in checkpoints
CANDIDATE_ROWS = 64  # rows of a KeyedJaggedTensor that holds candidates alone


class CataloguePart(NamedTuple):
    """What this process scores of the catalogue: `vectors` [V, D] of items from `first` on, counted from 0.

    Where `first` is negative, the rows before the catalogue are none of its items. `is_averaged`: whether the gradient
    of the vectors is to be divided by the number of processes, as is done elsewhere with replicated ones.
    """

    vectors: Tensor
    first: int
    is_averaged: bool


class ItemTable(nn.Module):
    """Vectors [d] of `n_items` items for sequences, and vectors [D] with their biases for scores.

    `head` "tied" scores through the candidate feature of the table itself, "linear" through a layer of its own; D is d
    and, where there is a bias, its columns. Rows belong to ids, so those of the special ids come first.
    """

    def __init__(
        self, n_items: int, embed_dim: int, *, head: str, output_bias: bool, device: torch.device | str = "meta"
    ) -> None:
        super().__init__()
        self.n_items, self.embed_dim = n_items, embed_dim
        tied = head == "tied"
        self.width = embed_dim + (BIAS_COLUMNS if tied else 1) * output_bias
        features = ["item", "candidate"] if tied else ["item"]
        table = EmbeddingConfig(
            name="item", num_embeddings=table_rows(n_items), embedding_dim=self.width if tied else embed_dim,
            feature_names=features,
        )  # fmt: skip
        self.collection = EmbeddingCollection(tables=[table], device=torch.device(device))
        self.head = None if tied else nn.Linear(embed_dim, n_items, output_bias, device)
        # Set from outside, where the rows lie on several processes or are updated in backward:
        self.partition = Partition()  # of the catalogue, to be scored by this process
        self.dense_shard: DenseShard | None = None  # trained as an ordinary parameter
        self.deferred: DeferredUpdate | None = None  # where gradients are to be looked at first

    def look_up(self, items: Tensor, lengths: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor]:
        """Vectors [N, d] of the `items` [N] of sequences with `lengths` [B], and [C, D] of the `candidates` [C].

        One lookup serves both: on a sharded table each is a round of messages.
        """
        looked_up = self.collection(_features(items, lengths, candidates if self.head is None else None))
        vectors = self._held_back(looked_up["item"].values())[:, : self.embed_dim]
        if self.head is not None:
            return vectors, self._of_head(candidates)
        return vectors, self._held_back(looked_up["candidate"].values())

    def look_up_catalogue(self, items: Tensor, lengths: Tensor) -> tuple[Tensor, CataloguePart]:
        """As `look_up`, with this process's part of the catalogue as candidates: its shard, or else an even part."""
        if self.dense_shard is None:
            mine = self.partition.of(self.n_items)
            ids = torch.arange(mine.start, mine.stop, device=items.device) + FIRST_ITEM_ID
            vectors, candidates = self.look_up(items, lengths, ids)
            return vectors, CataloguePart(candidates, mine.start, is_averaged=False)
        with torch.no_grad():
            looked_up = self.collection(_features(items, lengths, items.new_empty(0)))["item"].values()
        vectors = self.dense_shard.connect(looked_up, items)[:, : self.embed_dim]
        return vectors, CataloguePart(self.dense_shard.weight, self.dense_shard.first - FIRST_ITEM_ID, is_averaged=True)

    def candidates(self, ids: Tensor) -> Tensor:
        """Vectors [C, D] of the items `ids` [C]."""
        if self.head is not None:
            return self._of_head(ids)
        features = _features(ids.new_empty(0), ids.new_zeros(CANDIDATE_ROWS), ids)
        vectors: Tensor = self.collection(features)["candidate"].values()
        return vectors

    def for_scores(self, hidden: Tensor) -> Tensor:
        """Hidden states [M, d] → [M, D], with a 1 where candidates have their bias."""
        if self.width == self.embed_dim:
            return hidden
        one = torch.zeros(self.width - self.embed_dim, dtype=hidden.dtype, device=hidden.device)
        one[0] = 1
        return torch.cat([hidden, one.expand(len(hidden), -1)], dim=1)

    def _held_back(self, vectors: Tensor) -> Tensor:
        return self.deferred.defer(vectors) if self.deferred else vectors

    def _of_head(self, ids: Tensor) -> Tensor:
        assert self.head is not None
        rows = ids - FIRST_ITEM_ID
        vectors = self.head.weight.index_select(0, rows)
        if self.width == self.embed_dim:
            return vectors
        return torch.cat([vectors, self.head.bias.index_select(0, rows)[:, None]], dim=1)


def is_of_table(name: str) -> bool:
    """Whether a parameter of a model is a table, which can be sharded.

    >>> is_of_table("item_table.collection.embeddings.item.weight"), is_of_table("item_table.head.weight")
    (True, False)
    """
    return "_table.collection." in name


def saved_name(name: str) -> str:
    """The name of a parameter in checkpoints and in the seed of its first values: without the modules that only wrap.

    >>> saved_name("item_table.collection.embeddings.item.weight"), saved_name("item_table.head.bias")
    ('item_table.embeddings.item.weight', 'head.bias')
    """
    return name.replace("_table.collection.", "_table.").replace("item_table.head.", "head.")


def _features(items: Tensor, lengths: Tensor, candidates: Tensor | None) -> KeyedJaggedTensor:
    """The table's features. A KeyedJaggedTensor has as many rows for each: the candidates are spread over them."""
    if candidates is None:
        return KeyedJaggedTensor(["item"], items, lengths=lengths)
    n_candidates = _even_lengths(len(candidates), len(lengths), candidates.device)
    values, both = torch.cat([items, candidates]), torch.cat([lengths, n_candidates])
    return KeyedJaggedTensor(["item", "candidate"], values, lengths=both)


def _even_lengths(n_values: int, n_rows: int, device: torch.device) -> Tensor:
    """Lengths [n_rows] that deal `n_values` evenly to rows: fbgemm takes a thread a row when it shards them."""
    return (torch.arange(n_rows + 1, device=device) * n_values // n_rows).diff()
