"""Export the network with its top-k search as one program, which needs only torch (`.pt2`) or onnxruntime (`.onnx`).

Histories are a padded matrix, a form that all runtimes support. The results are those of `Network` and `top_k`, except
for ties: the runtime returns equal scores in any order.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bert4rec.dataset.format import NO_ITEM
from bert4rec.evaluation.seen_items import LeavesOut
from bert4rec.models.prior import Prior
from bert4rec.models.transformer import Block, Rotation, append_ones
from bert4rec.runtime.console import quiet_libraries
from bert4rec.runtime.errors import SettingsError
from bert4rec.serving.network import Network
from bert4rec.serving.padded_prior import PaddedPrior

PT2, ONNX = "program.pt2", "model.onnx"
INPUTS = ("items", "k", "times", "at")
NO_NEWEST = 2**62  # seconds, later than any
OPSET = 18  # the first ONNX opset whose ScatterElements can take a minimum


class Program(nn.Module):
    """Find the best items for histories, and their scores. Items are numbers from 0, like the lines of the list of ids.

    The items of a history that `leaves_out_seen` leaves out are not returned for it. The `prior`, if there is one, is
    added to the scores. `inputs` are the names of the arguments: a network that uses timestamps also needs those of the
    items and, with model.times = "target", the query times.
    """

    leaving: Tensor | None

    def __init__(self, network: Network, *, leaves_out_seen: LeavesOut, prior: Prior | None = None) -> None:
        super().__init__()
        self.network, self.leaves_out_seen = network, leaves_out_seen is not False
        leaving = None if isinstance(leaves_out_seen, bool) else torch.from_numpy(leaves_out_seen)
        self.register_buffer("leaving", leaving)
        self.prior = PaddedPrior(prior) if prior else None
        self.inputs: tuple[str, ...] = INPUTS[: 2 + ("none", "history", "target").index(network.times)]

    def forward(
        self, items: Tensor, k: Tensor, times: Tensor | None = None, at: Tensor | None = None,
        events: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Return the `k` best items [B, k] int64 and their scores [B, k] for `items` [B, L] int64, the oldest first.

        Any number outside of the list of ids, such as -1, is padding. `k` [] int64 is the same for all histories, and
        is clamped to 1 … V. The best come first; missing results, and those for a history without items, are -1 and
        -inf. `times` [B, L] and `at` [B] int64 are seconds; the times of padding are ignored. `events` [B, L] int64 are
        the numbers of the kinds of events; any that is none is an unknown kind, like 0.
        """
        n_items = len(self.network.item_vectors)
        items = F.pad(items, (1, 0), value=NO_ITEM)  # runtimes differ for histories of length zero
        times, events = (None if part is None else F.pad(part, (1, 0)) for part in (times, events))
        is_item = (items >= 0) & (items < n_items)
        items = items.clamp(0, n_items - 1)
        vectors = self.network.input_vectors[items]
        if events is not None:
            events = torch.where((events >= 0) & (events < len(self.network.kinds)), events, 0)
        vectors = self.network.encoder.add_events(vectors, events)
        scores = self._hidden(vectors, is_item, times, at) @ self.network.item_vectors.T
        if self.prior is not None:
            scores = scores + self.prior(_last_items(items, is_item, self.prior.n_last))
        if self.leaves_out_seen:
            is_left_out = is_item if self.leaving is None else is_item & self.leaving[items]
            limits = torch.where(is_left_out, -torch.inf, torch.inf)
            scores = scores.scatter_reduce(1, items, limits, "amin")
        scores = torch.where(is_item.any(1, keepdim=True), scores, -torch.inf)
        n_best = cast(int, k.clamp(1, n_items).item())  # dynamic: int() would make it a constant in an export
        torch._check(n_best >= 1)
        torch._check(n_best <= n_items)
        best, indices = scores.topk(n_best)
        return torch.where(best > -torch.inf, indices, NO_ITEM), best

    def _times(self, is_item: Tensor, times: Tensor, at: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return time deltas [B, L] and query times [B] of `inference_time_deltas`, with a mask token at the end."""
        newest = torch.where(is_item, times, -NO_NEWEST).amax(1)
        instants = newest if at is None else at
        places = torch.arange(is_item.shape[1], device=is_item.device)
        is_before = is_item[:, None, :] & (places[None, :] < places[:, None])
        if self.network.mask is None and at is not None:
            is_behind = is_item[:, None, :] & (places[None, :] > places[:, None])
            following = torch.where(is_behind, times[:, None, :], NO_NEWEST).amin(2)
            return torch.where(is_behind.any(2), following, instants[:, None]) - times, instants
        oldest = is_item & (is_before.sum(2) <= (is_item.sum(1) - self.network.max_len)[:, None])
        before = torch.where(is_before, times[:, None, :], -NO_NEWEST).amax(2)
        gaps = torch.where(is_before.any(2) & ~oldest, times - before, 0)
        if self.network.mask is None:
            return gaps, instants
        return torch.cat([gaps, (instants - newest)[:, None]], dim=1), instants

    def _hidden(self, vectors: Tensor, is_item: Tensor, times: Tensor | None, at: Tensor | None) -> Tensor:
        """Return the hidden states [B, D] after the histories with `vectors` [B, L, d], as `Network` does."""
        gaps, instants = (None, None) if times is None else self._times(is_item, times, at)
        encoder, query, most = self.network.encoder, self.network.query, self.network.max_len
        if query is not None:
            vectors = torch.cat([vectors, query.expand(vectors.shape[0], 1, -1)], dim=1)
            is_item, most = F.pad(is_item, (0, 1), value=True), most + 1
        from_end = is_item.flip(1).cumsum(1).flip(1) - 1
        is_real = is_item & (from_end < most)
        place = from_end.clamp(0, most - 1)
        x = encoder.embed_positions(vectors, place, gaps)
        rotation = encoder.rotation(place)
        everywhere = is_real[:, None, None, :]
        within = _seen_within(is_real) if encoder.is_causal else everywhere
        *before, final = cast(list[Block], [*encoder.blocks])
        for block in before:
            queries = block.queries(block.attention_norm(x), rotation)
            x = block.feed_forward(x, _attend(block, queries, x, rotation, within))
        is_last = is_real & (from_end == 0)
        last = torch.where(is_last[:, :, None], x, 0).sum(1, keepdim=True)
        newest = encoder.rotation(torch.zeros_like(place[:, :1]))
        queries = final.queries(final.attention_norm(last), newest)
        hidden = encoder.norm(final.feed_forward(last, _attend(final, queries, x, rotation, everywhere)))
        return append_ones(encoder.add_time_embedding(hidden[:, 0], instants), self.network.item_vectors.shape[1])


class ProgramWithEvents(Program):
    """A program whose third argument are the kinds of events of the items, by number."""

    def __init__(self, network: Network, *, leaves_out_seen: LeavesOut, prior: Prior | None = None) -> None:
        super().__init__(network, leaves_out_seen=leaves_out_seen, prior=prior)
        self.inputs = (*self.inputs[:2], "events", *self.inputs[2:])

    def forward(  # type: ignore[override]
        self, items: Tensor, k: Tensor, events: Tensor, times: Tensor | None = None, at: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the best items and their scores, like `Program`."""
        return super().forward(items, k, times, at, events)


def save_pt2(path: Path, program: Program) -> None:
    """Write the program for `torch.export.load(path).module()`, without pickles or code."""
    exported = torch.export.export(program, _example(program), dynamic_shapes=_dynamic(program))
    exported.example_inputs = None  # would be pickled
    torch.export.save(exported, path)


def save_onnx(path: Path, program: Program) -> None:
    """Write the program for onnxruntime; the weights are in a separate file, `model.onnx.data`."""
    with quiet_libraries():
        exported = torch.onnx.export(
            program, _example(program), input_names=[*program.inputs], output_names=["best_items", "scores"],
            dynamic_shapes=_dynamic(program), opset_version=OPSET, dynamo=True, verbose=False,
        )  # fmt: skip
        assert exported is not None, "dynamo returns a program"
        for node in exported.model.graph.all_nodes():
            node.metadata_props.clear()  # stack traces with paths of this machine
        exported.save(path, external_data=True)


def require_onnx() -> None:
    """Raise `SettingsError` if the packages that write ONNX are not installed."""
    if not (find_spec("onnx") and find_spec("onnxscript")):
        raise SettingsError(
            "--format=onnx: the packages onnx and onnxscript are not installed; type pip install "
            '"bert4rec-torchrec[onnx]"'
        )


def _example(program: Program) -> tuple[Tensor, ...]:
    numbers = [[0, 1, 2], [0, 1, 2]]
    examples = {
        "items": torch.tensor([[0, 0, 0], [NO_ITEM, 0, 0]]), "k": torch.tensor(1), "events": torch.tensor(numbers),
        "times": torch.tensor(numbers), "at": torch.tensor([3, 3]),
    }  # fmt: skip
    return tuple(examples[name] for name in program.inputs)


def _dynamic(program: Program) -> tuple[Any, ...]:
    """Return dynamic shapes for any number of histories of any length."""
    histories, length = torch.export.Dim("histories"), torch.export.Dim("length")
    matrix = {0: histories, 1: length}
    shapes = {"items": matrix, "k": None, "events": matrix, "times": matrix, "at": {0: histories}}
    return tuple(shapes[name] for name in program.inputs)


def _last_items(items: Tensor, is_item: Tensor, n: int) -> Tensor:
    """Return the last `n` of those `items` [B, L] that are any, [B, n], the newest first; NO_ITEM fills short rows."""
    from_end = (is_item.flip(1).cumsum(1).flip(1) - 1).clamp(0, n)  # of padding: that of an item, or 0
    nothing = items.new_full((items.shape[0], n + 1), NO_ITEM)
    return nothing.scatter_reduce(1, from_end, torch.where(is_item, items, NO_ITEM), "amax")[:, :n]


def _seen_within(is_real: Tensor) -> Tensor:
    """Return the causal attention mask [B, 1, L, L]; padding attends to itself too, since no keys would give NaN."""
    places = torch.arange(is_real.shape[1], device=is_real.device)
    is_before = places[None, :] <= places[:, None]
    is_self = places[None, :] == places[:, None]
    return ((is_real[:, None, :] & is_before) | is_self)[:, None]


def _attend(block: Block, queries: Tensor, x: Tensor, rotation: Rotation | None, mask: Tensor) -> Tensor:
    """Return the attention [B, M, d] of `queries` [B, M, d] to `x` [B, L, d] before its norm, with its `rotation`."""

    def heads(values: Tensor) -> Tensor:
        return values.unflatten(-1, (block.n_heads, -1)).transpose(1, 2)

    keys, values = block.keys_and_values(block.attention_norm(x), rotation)
    attended = F.scaled_dot_product_attention(heads(queries), heads(keys), heads(values), attn_mask=mask)
    return attended.transpose(1, 2).flatten(2)
