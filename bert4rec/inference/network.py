"""A trained network on one process, in plain torch: histories → hidden states → scores of items."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bert4rec.dataset.schema import FIRST_ITEM_ID, MASK_ID
from bert4rec.models.transformer import Encoder, with_one

ENCODER = "encoder."
TABLE, HEAD, HEAD_BIAS = "item_table.embeddings.item.weight", "head.weight", "head.bias"
"""The names of a model's tensors in checkpoints and in model packages."""


class Network(nn.Module):
    """An encoder, the `rows` [V + special ids, D] of the item table, and the vectors [V, D] of a `head` if it has one.

    D is embed_dim (d) and, where items have biases, their columns. V items, B histories, N positions in all.
    """

    rows: Tensor
    head: Tensor | None

    def __init__(self, encoder: Encoder, rows: Tensor, head: Tensor | None = None) -> None:
        super().__init__()
        self.encoder = encoder
        self.register_buffer("rows", rows)
        self.register_buffer("head", head)

    @property
    def embed_dim(self) -> int:
        """The width d of hidden states."""
        return self.encoder.positions.embedding_dim

    @property
    def max_len(self) -> int:
        """The most items of a history that count: one position is for the next item."""
        return self.encoder.positions.num_embeddings - 1

    @property
    def id_vectors(self) -> Tensor:
        """What is read for ids, [V + special ids, d]."""
        return self.rows[:, : self.embed_dim]

    @property
    def item_vectors(self) -> Tensor:
        """What items are scored by, [V, D]."""
        return self.rows[FIRST_ITEM_ID:] if self.head is None else self.head

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Hidden states [B, D] after histories: `ids` [N] int64, one history after another, of `lengths` [B].

        Each length is at least 1 and at most `max_len`. Scores are products with `item_vectors`.
        """
        if not self.encoder.is_causal:
            ids, lengths = _with_mask(ids, lengths)
        hidden = self.encoder(self.id_vectors[ids], lengths, lengths.cumsum(0) - 1)
        return with_one(hidden, self.item_vectors.shape[1])


class ItemVectors(nn.Module):
    """The `rows` [V + special ids, D] of the item table of a model that takes no histories; d = `embed_dim`.

    Items can be compared by them, nothing can be asked.
    """

    head = None

    def __init__(self, rows: Tensor, embed_dim: int) -> None:
        super().__init__()
        self.rows, self.embed_dim = rows, embed_dim

    @property
    def item_vectors(self) -> Tensor:
        """Of the items, [V, D]."""
        return self.rows[FIRST_ITEM_ID:]


def make_network(tensors: Mapping[str, Tensor], model: Mapping[str, Any], *, is_causal: bool) -> Network:
    """The network of a model's `tensors`, by the settings `model` that it was trained with."""
    shape = {key: model[key] for key in ("embed_dim", "n_heads", "n_layers", "ffn_dim", "max_len", "dropout")}
    encoder = Encoder(**shape, is_causal=is_causal)
    state = {name.removeprefix(ENCODER): value for name, value in tensors.items() if name.startswith(ENCODER)}
    encoder.load_state_dict(state, assign=True)
    head, bias = tensors.get(HEAD), tensors.get(HEAD_BIAS)
    if head is not None and bias is not None:
        head = torch.cat([head, bias[:, None]], dim=1)
    return Network(encoder.requires_grad_(False), tensors[TABLE], head).eval()


def _with_mask(ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The same histories, each with the mask token behind it: it stands for the item that is asked for."""
    n_before = torch.repeat_interleave(torch.arange(len(lengths), device=ids.device), lengths)
    places = torch.arange(len(ids), device=ids.device) + n_before
    masked = ids.new_full((len(ids) + len(lengths),), MASK_ID).index_copy(0, places, ids)
    return masked, lengths + 1
