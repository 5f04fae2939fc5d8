"""A trained network on one process, in plain torch: histories → hidden states → scores of items."""

import torch
from torch import Tensor, nn

from bert4rec.dataset.schema import MASK_ID
from bert4rec.models.transformer import Encoder, with_one


class Network(nn.Module):
    """An encoder, the vectors [V + special ids, d] that it reads for ids, and the vectors [V, D] that it is scored by.

    D is d and, where items have biases, their columns. V items, B histories, N positions in all.
    """

    id_vectors: Tensor
    item_vectors: Tensor

    def __init__(self, encoder: Encoder, id_vectors: Tensor, item_vectors: Tensor) -> None:
        super().__init__()
        self.encoder = encoder
        self.register_buffer("id_vectors", id_vectors)
        self.register_buffer("item_vectors", item_vectors)

    @property
    def max_len(self) -> int:
        """The most items of a history that count: one position is for the next item."""
        return self.encoder.positions.num_embeddings - 1

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Hidden states [B, D] after histories: `ids` [N] int64, one history after another, of `lengths` [B].

        Each length is at least 1 and at most `max_len`. Scores are products with `item_vectors`.
        """
        if not self.encoder.is_causal:
            ids, lengths = _with_mask(ids, lengths)
        hidden = self.encoder(self.id_vectors[ids], lengths, lengths.cumsum(0) - 1)
        return with_one(hidden, self.item_vectors.shape[1])


def _with_mask(ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The same histories, each with the mask token behind it: it stands for the item that is asked for."""
    n_before = torch.repeat_interleave(torch.arange(len(lengths), device=ids.device), lengths)
    places = torch.arange(len(ids), device=ids.device) + n_before
    masked = ids.new_full((len(ids) + len(lengths),), MASK_ID).index_copy(0, places, ids)
    return masked, lengths + 1
