"""Run a trained network in one process, in plain torch: histories → hidden states → scores of items."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bert4rec.config.kinds import KINDS
from bert4rec.feed.masking import inference_time_deltas
from bert4rec.models.names import ENCODER, HEAD, HEAD_BIAS, MASK, TABLE
from bert4rec.models.transformer import Encoder, EncoderSettings, append_ones
from bert4rec.serving.histories import KnownHistory


class Network(nn.Module):
    """An encoder, the `rows` [V, D] of the item table, and the vectors [V, D] of a `head`.

    `mask` [d] is the vector of the mask token, if the model has one; `times` is model.times; `kinds` of events are by
    number, () if the model knows none. D is embed_dim (d), plus one column if items have biases. V items, B histories,
    N positions in total.
    """

    rows: Tensor
    head: Tensor | None
    mask: Tensor | None

    def __init__(
        self, encoder: Encoder, rows: Tensor, head: Tensor | None = None, *, mask: Tensor | None = None,
        times: str = "none", kinds: Sequence[str] = (),
    ) -> None:  # fmt: skip
        super().__init__()
        self.encoder, self.times, self.kinds = encoder, times, kinds
        self.register_buffer("rows", rows)
        self.register_buffer("head", head)
        self.register_buffer("mask", mask)

    @property
    def embed_dim(self) -> int:
        """Return the width d of hidden states."""
        return self.encoder.embed_dim

    @property
    def max_len(self) -> int:
        """Return how many last items of a history the model uses: one position is for the next item."""
        return self.encoder.max_len - 1

    @property
    def input_vectors(self) -> Tensor:
        """Return the vectors [V, d] of items in histories."""
        return self.rows[:, : self.embed_dim]

    @property
    def item_vectors(self) -> Tensor:
        """Return the vectors [V, D] that score items."""
        return self.rows if self.head is None else self.head

    @property
    def knows_times(self) -> bool:
        """Return whether the model uses timestamps."""
        return self.times != "none"

    @property
    def query(self) -> Tensor | None:
        """Return the vector [d] of the mask token, whose kind of event is unknown; None if the model has none."""
        if self.mask is None:
            return None
        return self.encoder.add_events(self.mask, torch.zeros((), dtype=torch.int64, device=self.mask.device))

    @torch.no_grad()
    def encode(self, histories: Sequence[KnownHistory]) -> Tensor:
        """Return the hidden states [B, D] after histories of at least one known item."""
        recent = [history.last(self.max_len) for history in histories]
        lengths = torch.tensor([len(history) for history in recent])
        inputs = [torch.from_numpy(np.concatenate([history.items for history in recent])), lengths]
        if self.knows_times:
            seconds = [history.seconds for history in recent if history.seconds is not None]
            inputs += [torch.from_numpy(np.concatenate(seconds)), torch.tensor([history.at for history in recent])]
        events = [history.events for history in recent if history.events is not None]
        hidden: Tensor = self(*inputs, events=torch.from_numpy(np.concatenate(events)) if events else None)
        return hidden

    def forward(
        self, ids: Tensor, lengths: Tensor, seconds: Tensor | None = None, at: Tensor | None = None,
        events: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Return the hidden states [B, D] after histories `ids` [N] int64, concatenated, of `lengths` [B].

        Each length is at least 1 and at most `max_len`. Scores are products with `item_vectors`. A network that uses
        timestamps needs those of the items, `seconds` [N] int64, and with model.times = "target" the query times `at`
        [B]. One that uses kinds of events needs their numbers `events` [N] int64.
        """
        gaps = instants = None
        if self.knows_times:
            assert seconds is not None, "this network uses timestamps"
            query_times = at if self.times == "target" else None
            gaps, instants = inference_time_deltas(seconds, lengths, query_times, is_causal=self.mask is None)
        vectors = self.encoder.add_events(self.input_vectors[ids], events)
        if (query := self.query) is not None:
            vectors, lengths = _with_mask(vectors, lengths, query)
        hidden = self.encoder(vectors, lengths, lengths.cumsum(0) - 1, gaps, instants)
        return append_ones(hidden, self.item_vectors.shape[1])


class ItemVectors(nn.Module):
    """The `rows` [V, D] of the item table of a model that cannot score histories; d = `embed_dim`.

    They only serve to compare items.
    """

    def __init__(self, rows: Tensor, embed_dim: int) -> None:
        super().__init__()
        self.item_vectors, self.embed_dim = rows, embed_dim


def make_network(
    tensors: Mapping[str, Tensor], model: Mapping[str, Any], *, is_causal: bool, kinds: Sequence[str] = ()
) -> Network:
    """Return the network with these `tensors`, for the settings `model` of its training and its `kinds` of events.

    Raises `KeyError` or `RuntimeError` if tensors are missing or have other shapes.
    """
    values = {**model, "n_events": len(kinds)}
    settings = EncoderSettings(**{field.name: values[field.name] for field in fields(EncoderSettings)})
    encoder = Encoder(settings, is_causal=is_causal)
    state = {name.removeprefix(ENCODER): value for name, value in tensors.items() if name.startswith(ENCODER)}
    encoder.load_state_dict(state, assign=True)
    head, bias = tensors.get(HEAD), tensors.get(HEAD_BIAS)
    if head is not None and bias is not None:
        head = torch.cat([head, bias[:, None]], dim=1)
    mask = tensors[MASK] if KINDS[model["kind"]].has_mask_token else None
    encoder.requires_grad_(False)
    return Network(encoder, tensors[TABLE], head, mask=mask, times=model["times"], kinds=kinds).eval()


def _with_mask(vectors: Tensor, lengths: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Append the `mask` [d] to the vectors [N, d] of each history, as its query; return vectors and lengths."""
    n_before = torch.repeat_interleave(torch.arange(len(lengths), device=vectors.device), lengths)
    places = torch.arange(len(vectors), device=vectors.device) + n_before
    return mask.repeat(len(vectors) + len(lengths), 1).index_copy(0, places, vectors), lengths + 1
