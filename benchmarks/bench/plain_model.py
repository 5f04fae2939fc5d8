"""The transformer as one writes it first: padded sequences, PyTorch's own encoder, cross-entropy of all scores."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from bert4rec.dataset.format import NO_ITEM
from bert4rec.feed.batch import Batch

IGNORED = -100  # cross_entropy's own
MASK, PADDING = NO_ITEM, NO_ITEM - 1  # rows of the table counted from its end


class Plain(nn.Module):
    """Scores at masked positions, or `everywhere`; by the item table, or by a `linear_head` of its own."""

    def __init__(
        self, n_items: int, width: int, max_len: int, *, n_layers: int = 2, n_heads: int = 2, dropout: float = 0.1,
        everywhere: bool = False, linear_head: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.items = nn.Embedding(n_items + 2, width)  # of the mask token and of padding too
        self.positions = nn.Embedding(max_len, width)
        self.dropout = nn.Dropout(dropout)
        layer = nn.TransformerEncoderLayer(
            width, n_heads, 4 * width, dropout=dropout, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, n_layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, n_items) if linear_head else None
        self.bias = None if linear_head else nn.Parameter(torch.zeros(n_items))
        self.everywhere = everywhere

    def encode(self, items: Tensor) -> Tensor:
        """Items [B, L], padded on the left → hidden states [B, L, d]."""
        x = self.items(items % self.items.num_embeddings) + self.positions.weight[-items.shape[1] :]
        hidden: Tensor = self.encoder(self.dropout(x), src_key_padding_mask=items == PADDING)
        return hidden

    def forward(self, items: Tensor, targets: Tensor) -> Tensor:
        """The sum of the loss; `targets` [B, L] count from the first item."""
        hidden = self.encode(items)
        if not self.everywhere:
            is_asked = targets != IGNORED
            hidden, targets = hidden[is_asked], targets[is_asked]
        scores = self.head(hidden) if self.head else hidden @ self.items.weight[:-2].T + self.bias
        return F.cross_entropy(scores.flatten(0, -2), targets.flatten(), reduction="sum")


def padded(batch: Batch, width: int = 0) -> tuple[Tensor, Tensor]:
    """Items and targets [B, L] of a ragged batch, to the longest sequence, or to `width`."""
    shown = torch.cat([batch.items.ids, torch.tensor([MASK])])[batch.places]
    targets = torch.full_like(shown, IGNORED).index_copy(0, batch.positions, batch.targets)
    return _pad(shown, batch.lengths, PADDING, width), _pad(targets, batch.lengths, IGNORED, width)


def _pad(values: Tensor, lengths: Tensor, filling: int, width: int) -> Tensor:
    parts = values.split(lengths.tolist())
    found = pad_sequence(parts, batch_first=True, padding_value=filling, padding_side="left")
    return F.pad(found, (max(0, width - found.shape[1]), 0), value=filling)
