"""Bert4Rec (Sun et al. 2019) in one plain file. It knows nothing of processes: parallelism is applied from outside.

Sequences stay ragged all the way: every linear layer works on the real positions only, and padding exists in one
place, inside `attend`. Shapes: B sequences, N positions in all, M positions to predict, C candidates, d = embed_dim.
"""

import math
from copy import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from bert4rec.dataset.schema import FIRST_ITEM_ID, PAD_ID
from bert4rec.feed.batches import Batch
from bert4rec.models.deferred_update import Gate
from bert4rec.models.dense_shard import RowShard
from bert4rec.models.losses import gbce_loss, sampled_softmax_loss, softmax_loss
from bert4rec.runtime.collectives import Partition

ITEM_TABLE = "item_table"  # the module that is sharded under DistributedModelParallel
# An item's bias stands behind its vector, in the same row of the same table: one lookup brings both, and the score is
# one product with a hidden state that ends in a 1. fbgemm wants widths in multiples of 4, so three columns stay zero.
BIAS_COLUMNS = 4
CANDIDATE_ROWS = 64  # rows of a KeyedJaggedTensor that holds candidates alone


class Bert4Rec(nn.Module):
    """A bidirectional transformer over item sequences that predicts the items at masked positions.

    Differences from the paper, each for a reason: blocks normalise first (pre-LN), which trains without warm-up;
    positions count from the end, so that "most recent" is one position for histories of every length; logits are
    computed for masked positions only, and so are the queries of the last block, since nothing else is read from it.

    `n_rows` is the size of the item table, special ids included. `head` "tied" scores through the candidate feature
    of the item table itself, "linear" through a layer of its own. `loss` is "softmax", "sampled_softmax" or "gbce".
    """

    def __init__(
        self,
        *,
        n_rows: int,
        embed_dim: int,
        n_heads: int,
        n_layers: int,
        ffn_dim: int,
        max_len: int,
        dropout: float,
        head: str,
        output_bias: bool,
        loss: str = "softmax",
        gbce_calibration: float = 0.75,
        device: torch.device | str = "meta",
    ) -> None:
        super().__init__()
        self.n_rows, self.n_items = n_rows, n_rows - FIRST_ITEM_ID
        self.embed_dim, self.max_len = embed_dim, max_len
        self.loss, self.gbce_calibration = loss, gbce_calibration
        # Set from outside; the first two where the catalogue's rows lie on several processes:
        self.partition = Partition()  # of the catalogue, to be scored by this process
        self.shard: RowShard | None = None  # of the item table, trained as an ordinary parameter
        self.gate: Gate | None = None  # before the item table, where gradients are to be looked at first
        tied = head == "tied"
        features = ["item", "candidate"] if tied else ["item"]
        self.width = embed_dim + (BIAS_COLUMNS if tied else 1) * output_bias  # D, of what is multiplied to a score
        table_width = self.width if tied else embed_dim
        table = EmbeddingConfig(name="item", num_embeddings=n_rows, embedding_dim=table_width, feature_names=features)
        self.item_table = EmbeddingCollection(tables=[table], device=torch.device(device))
        self.head = None if tied else nn.Linear(embed_dim, self.n_items, output_bias, device)
        self.encoder = Encoder(embed_dim, n_heads, n_layers, ffn_dim, max_len, dropout, device)

    def forward(self, batch: Batch) -> Tensor:
        """The sum of the loss over the batch's positions, a scalar; positions whose target is PAD_ID count nothing."""
        if self.loss == "softmax":
            return self._softmax_loss(batch)
        assert batch.negatives is not None, f"{self.loss} needs negatives"
        is_real = batch.targets != PAD_ID
        positives = torch.where(is_real, batch.targets, FIRST_ITEM_ID)
        hidden, vectors = self.represent(batch, torch.cat([positives, batch.negatives.ids]))
        own, shared = vectors[: len(hidden)], vectors[len(hidden) :]
        positive, negative = (hidden * own).sum(1).float(), (hidden @ shared.T).float()
        negative = negative.masked_fill(positives[:, None] == batch.negatives.ids, -torch.inf)
        if self.loss == "sampled_softmax":
            losses = sampled_softmax_loss(positive, negative, batch.negatives.log_expected)
        else:
            # Scores of zero then mean the odds of any item. Else every item would first be pushed down from a half,
            # by gradients that Adagrad never forgets.
            prior = math.log(self.n_items - 1)
            losses = gbce_loss(positive - prior, negative - prior, self.n_items, self.gbce_calibration)
        return (losses * is_real).sum()

    def represent(self, batch: Batch, candidates: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden states [M, D] at the batch's positions and vectors [C, D] of the `candidates` [C].

        Scores are `hidden @ vectors.T`: D is d and, where there is a bias, its columns. One lookup serves both.
        """
        looked_up = self.item_table(_features(batch, candidates if self.head is None else None))
        hidden = self._encode(self._held(looked_up["item"].values()), batch)
        if self.head is not None:
            return hidden, self._of_head(candidates)
        return hidden, self._held(looked_up["candidate"].values())

    def candidates(self, ids: Tensor) -> Tensor:
        """Vectors [C, D] of the items `ids` [C]."""
        if self.head is not None:
            return self._of_head(ids)
        nothing = ids.new_empty(0)
        empty = Batch(nothing, ids.new_zeros(CANDIDATE_ROWS), nothing, nothing)
        vectors: Tensor = self.item_table(_features(empty, ids))["candidate"].values()
        return vectors

    @property
    def tables(self) -> list[EmbeddingConfig]:
        """The tables that can be sharded."""
        return list(self.item_table.embedding_configs())

    def _softmax_loss(self, batch: Batch) -> Tensor:
        """Against this process's share of the catalogue: its row-wise shard, or else an even share."""
        targets, mine = batch.targets - FIRST_ITEM_ID, self.partition.of(self.n_items)
        if self.shard is None:
            candidates = torch.arange(mine.start, mine.stop, device=batch.items.device) + FIRST_ITEM_ID
            return softmax_loss(*self.represent(batch, candidates), targets, first=mine.start, partition=self.partition)
        with torch.no_grad():
            looked_up = self.item_table(_features(batch, batch.items.new_empty(0)))["item"].values()
        hidden = self._encode(self.shard.connect(looked_up, batch.items), batch)
        first = self.shard.first - FIRST_ITEM_ID
        return softmax_loss(hidden, self.shard.weight, targets, first=first, partition=self.partition, averaged=True)

    def _held(self, vectors: Tensor) -> Tensor:
        return self.gate.hold(vectors) if self.gate else vectors

    def _encode(self, vectors: Tensor, batch: Batch) -> Tensor:
        """Item vectors [N, D] → hidden states [M, D], with a 1 where candidates have their bias."""
        hidden: Tensor = self.encoder(vectors[:, : self.embed_dim], batch.lengths, batch.positions)
        if self.width == self.embed_dim:
            return hidden
        one = torch.zeros(self.width - self.embed_dim, dtype=hidden.dtype, device=hidden.device)
        one[0] = 1
        return torch.cat([hidden, one.expand(len(hidden), -1)], dim=1)

    def _of_head(self, ids: Tensor) -> Tensor:
        assert self.head is not None
        rows = ids - FIRST_ITEM_ID
        vectors = self.head.weight.index_select(0, rows)
        if self.width == self.embed_dim:
            return vectors
        return torch.cat([vectors, self.head.bias.index_select(0, rows)[:, None]], dim=1)


def _features(batch: Batch, candidates: Tensor | None) -> KeyedJaggedTensor:
    """The item table's features, so that one lookup serves both: on a sharded table each is a round of messages.

    A KeyedJaggedTensor has as many rows for each feature, so the candidates are spread over the batch's rows.
    """
    if candidates is None:
        return KeyedJaggedTensor(["item"], batch.items, lengths=batch.lengths)
    n_candidates = _even_lengths(len(candidates), len(batch.lengths), candidates.device)
    values, lengths = torch.cat([batch.items, candidates]), torch.cat([batch.lengths, n_candidates])
    return KeyedJaggedTensor(["item", "candidate"], values, lengths=lengths)


def _even_lengths(n_values: int, n_rows: int, device: torch.device) -> Tensor:
    """Lengths [n_rows] that deal `n_values` evenly to rows: fbgemm takes a thread a row when it shards them."""
    return (torch.arange(n_rows + 1, device=device) * n_values // n_rows).diff()


class Encoder(nn.Module):
    """Position vectors and transformer blocks over ragged sequences."""

    def __init__(
        self,
        embed_dim: int,
        n_heads: int,
        n_layers: int,
        ffn_dim: int,
        max_len: int,
        dropout: float,
        device: torch.device | str,
    ) -> None:
        super().__init__()
        self.positions = nn.Embedding(max_len, embed_dim, device=device)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(embed_dim, n_heads, ffn_dim, dropout, device) for _ in range(n_layers))
        self.norm = nn.LayerNorm(embed_dim, device=device)

    def forward(self, vectors: Tensor, lengths: Tensor, positions: Tensor) -> Tensor:
        """Item vectors [N, d] of sequences with `lengths` [B] → hidden states [M, d] at `positions` [M], ascending."""
        offsets = F.pad(lengths.cumsum(0), (1, 0))
        from_end = torch.repeat_interleave(offsets[1:], lengths, output_size=len(vectors))
        from_end = from_end - 1 - torch.arange(len(vectors), device=vectors.device)
        x = self.dropout(vectors + self.positions(from_end))
        everywhere = Raggedness(offsets)
        for block in self.blocks[:-1]:
            x = block(x, everywhere)
        asked = everywhere.asked(torch.searchsorted(positions, offsets))
        hidden: Tensor = self.norm(self.blocks[-1](x, asked, positions))
        return hidden


class Block(nn.Module):
    """Attention and feed-forward, each after a LayerNorm and around a residual connection (pre-LN)."""

    def __init__(self, embed_dim: int, n_heads: int, ffn_dim: int, dropout: float, device: torch.device | str) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.attention_norm = nn.LayerNorm(embed_dim, device=device)
        self.query = nn.Linear(embed_dim, embed_dim, device=device)
        self.key_value = nn.Linear(embed_dim, 2 * embed_dim, device=device)
        self.attention_out = nn.Linear(embed_dim, embed_dim, device=device)
        self.ffn_norm = nn.LayerNorm(embed_dim, device=device)
        self.ffn_in = nn.Linear(embed_dim, ffn_dim, device=device)
        self.ffn_out = nn.Linear(ffn_dim, embed_dim, device=device)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, raggedness: "Raggedness", positions: Tensor | None = None) -> Tensor:
        """[N, d] → [N, d], or → [M, d] where only the outputs at `positions` [M] are wanted."""
        h = self.attention_norm(x)
        keys, values = self.key_value(h).chunk(2, dim=-1)
        if positions is not None:
            x, h = x.index_select(0, positions), h.index_select(0, positions)
        return self.merge(x, attend(self.query(h), keys, values, raggedness, self.n_heads))

    def merge(self, x: Tensor, attended: Tensor) -> Tensor:
        """The residual stream [M, d] after attention and feed-forward."""
        x = x + self.dropout(self.attention_out(attended))
        return x + self.dropout(self.ffn_out(F.gelu(self.ffn_in(self.ffn_norm(x)))))


class Padding:
    """Where the R ragged rows between `offsets` [R + 1] stand when padded to the longest: [R, width]."""

    def __init__(self, offsets: Tensor) -> None:
        lengths = offsets.diff()
        self.n_rows = len(lengths)
        self.total, self.width = int(offsets[-1] - offsets[0]), max(1, int(lengths.max()))
        self.is_real = torch.arange(self.width, device=offsets.device) < lengths[:, None]
        self.indices = self.is_real.flatten().nonzero().squeeze(1)

    def pad(self, values: Tensor, n_heads: int) -> Tensor:
        """[total, d] → [R, heads, width, d / heads], zeros where there is nothing."""
        padded = values.new_zeros(self.n_rows * self.width, values.shape[1]).index_copy(0, self.indices, values)
        return padded.view(self.n_rows, self.width, n_heads, -1).transpose(1, 2)

    def unpad(self, padded: Tensor) -> Tensor:
        """The reverse of `pad`."""
        return padded.transpose(1, 2).flatten(2).flatten(0, 1).index_select(0, self.indices)


class Raggedness:
    """How the queries and keys of sequences between `offsets` [B + 1] are padded for attention.

    On CPU the rows are taken a few at a time, which keeps a group in cache and pads it to its own longest row only
    (little, since batches come sorted by length); on an accelerator all together.
    """

    ROWS_AT_A_TIME = 16

    def __init__(self, offsets: Tensor) -> None:
        self.keys = self.queries = self._groups(offsets)

    def asked(self, query_offsets: Tensor) -> "Raggedness":
        """The same keys, but queries at some positions only; `query_offsets` [B + 1] count those."""
        asked = copy(self)
        asked.queries = self._groups(query_offsets)
        return asked

    def _groups(self, offsets: Tensor) -> list[Padding]:
        n_rows = len(offsets) - 1
        step = self.ROWS_AT_A_TIME if offsets.device.type == "cpu" else n_rows
        return [Padding(offsets[first : min(first + step, n_rows) + 1]) for first in range(0, n_rows, step)]


def attend(queries: Tensor, keys: Tensor, values: Tensor, raggedness: Raggedness, n_heads: int) -> Tensor:
    """Full attention within each sequence: queries [M, d], keys and values [N, d] → [M, d]."""
    query_groups = queries.split([padding.total for padding in raggedness.queries])
    key_groups = keys.split([padding.total for padding in raggedness.keys])
    value_groups = values.split([padding.total for padding in raggedness.keys])
    attended = []
    for q, k, v, asked, known in zip(
        query_groups, key_groups, value_groups, raggedness.queries, raggedness.keys, strict=True
    ):
        mask = known.is_real[:, None, None, :]
        padded = F.scaled_dot_product_attention(
            asked.pad(q, n_heads), known.pad(k, n_heads), known.pad(v, n_heads), attn_mask=mask
        )
        attended.append(asked.unpad(padded))
    return torch.cat(attended)
