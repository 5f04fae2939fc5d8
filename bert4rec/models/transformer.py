"""A transformer over ragged sequences, in plain torch: an export can take it without anything else of this program.

Sequences stay ragged all the way: every linear layer works on the real positions only, and padding exists in one
place, inside `attend`. Shapes: B sequences, N positions in all, M positions to predict, d = embed_dim.
"""

from copy import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Encoder(nn.Module):
    """Position vectors and transformer blocks over ragged sequences.

    Positions count from the end, so that "most recent" is one position for histories of every length. `is_causal`: a
    position sees those before it and itself, else all of its sequence.
    """

    def __init__(
        self, *, embed_dim: int, n_heads: int, n_layers: int, ffn_dim: int, max_len: int, dropout: float,
        is_causal: bool = False, device: torch.device | str = "meta",
    ) -> None:  # fmt: skip
        super().__init__()
        self.is_causal, self.ffn_dim = is_causal, ffn_dim
        # Not drawn: on `meta` torch takes half a second for that, and the weights come later in any case.
        self.positions = nn.Embedding.from_pretrained(torch.zeros(max_len, embed_dim, device=device), freeze=False)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(embed_dim, n_heads, ffn_dim, dropout, device) for _ in range(n_layers))
        self.norm = nn.LayerNorm(embed_dim, device=device)

    def forward(self, vectors: Tensor, lengths: Tensor, positions: Tensor) -> Tensor:
        """Item vectors [N, d] of sequences with `lengths` [B] → hidden states [M, d] at `positions` [M], ascending."""
        offsets = F.pad(lengths.cumsum(0), (1, 0))
        from_end = torch.repeat_interleave(offsets[1:], lengths, output_size=len(vectors))
        from_end = from_end - 1 - torch.arange(len(vectors), device=vectors.device)
        x = self.dropout(vectors + self.positions(from_end))
        everywhere = Raggedness(offsets, is_causal=self.is_causal)
        for block in self.blocks[:-1]:
            x = block(x, everywhere)
        hidden: Tensor = self.norm(self.blocks[-1](x, everywhere.asked(positions), positions))
        return hidden

    def floats_kept(self, n_positions: int, n_asked: int) -> int:
        """Numbers that a forward pass keeps for backward: of all positions in all blocks but the last.

        That one ends at the positions to predict.
        """
        d, f = self.norm.normalized_shape[0], self.ffn_dim
        whole = n_positions * (14 * d + 2 * f) * (len(self.blocks) - 1)
        return whole + n_positions * 9 * d + n_asked * (10 * d + 2 * f)


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
        """[N, d] → [N, d], or → [M, d] where only the outputs at `positions` [M] are needed."""
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

    def pad_numbers(self, numbers: Tensor) -> Tensor:
        """[total] → [R, width], zeros where there is nothing."""
        return numbers.new_zeros(self.n_rows * self.width).index_copy(0, self.indices, numbers).view(self.n_rows, -1)

    def places(self) -> Tensor:
        """The place of each position in its row, [1, width]."""
        return torch.arange(self.width, device=self.indices.device)[None]

    def unpad(self, padded: Tensor) -> Tensor:
        """The reverse of `pad`."""
        return padded.transpose(1, 2).flatten(2).flatten(0, 1).index_select(0, self.indices)


class Raggedness:
    """How the queries and keys of sequences between `offsets` [B + 1] are padded for attention, and who sees whom.

    On CPU the rows are taken a few at a time, which keeps a group in cache and pads it to its own longest row only
    (little, since batches come sorted by length); on an accelerator all together.
    """

    ROWS_AT_A_TIME = 16

    def __init__(self, offsets: Tensor, *, is_causal: bool = False) -> None:
        self._offsets, self._is_causal = offsets, is_causal
        self.keys = self.queries = self._groups(offsets)
        self.masks = [_seen_by(keys, keys.places() if is_causal else None) for keys in self.keys]

    def asked(self, positions: Tensor) -> "Raggedness":
        """The same keys, but queries at the `positions` [M] only, which ascend."""
        if len(positions) == sum(padding.total for padding in self.keys):
            return self
        asked = copy(self)
        asked.queries = self._groups(torch.searchsorted(positions, self._offsets))
        if self._is_causal:
            row = torch.searchsorted(self._offsets, positions, right=True) - 1
            places = (positions - self._offsets[row]).split([padding.total for padding in asked.queries])
            pairs = zip(self.keys, asked.queries, places, strict=True)
            asked.masks = [_seen_by(keys, queries.pad_numbers(own)) for keys, queries, own in pairs]
        return asked

    def _groups(self, offsets: Tensor) -> list[Padding]:
        n_rows = len(offsets) - 1
        step = self.ROWS_AT_A_TIME if offsets.device.type == "cpu" else n_rows
        return [Padding(offsets[first : min(first + step, n_rows) + 1]) for first in range(0, n_rows, step)]


def _seen_by(keys: Padding, places: Tensor | None) -> Tensor:
    """Which keys queries see, [R, 1, 1 or queries, keys]: all real ones, or those up to their own `places`."""
    if places is None:
        return keys.is_real[:, None, None, :]
    return keys.places()[:, None, None, :] <= places[:, None, :, None]


def attend(queries: Tensor, keys: Tensor, values: Tensor, raggedness: Raggedness, n_heads: int) -> Tensor:
    """Attention within each sequence: queries [M, d], keys and values [N, d] → [M, d]."""
    n_queries = [padding.total for padding in raggedness.queries]
    n_keys = [padding.total for padding in raggedness.keys]
    groups = zip(queries.split(n_queries), keys.split(n_keys), values.split(n_keys), strict=True)
    paddings = zip(raggedness.queries, raggedness.keys, raggedness.masks, strict=True)
    attended = []
    for (q, k, v), (asked, known, mask) in zip(groups, paddings, strict=True):
        padded_keys, padded_values = known.pad(k, n_heads), known.pad(v, n_heads)
        padded = F.scaled_dot_product_attention(asked.pad(q, n_heads), padded_keys, padded_values, attn_mask=mask)
        attended.append(asked.unpad(padded))
    return torch.cat(attended)


def with_one(hidden: Tensor, width: int) -> Tensor:
    """Hidden states [M, d] → [M, `width`], with a 1 where items have their bias and zeros behind it."""
    if width == hidden.shape[1]:
        return hidden
    one = torch.zeros(width - hidden.shape[1], dtype=hidden.dtype, device=hidden.device)
    one[0] = 1
    return torch.cat([hidden, one.expand(hidden.shape[0], -1)], dim=1)  # len() of it would be fixed in an export
