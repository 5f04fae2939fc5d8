"""The network and its best items as one program that needs torch alone (`.pt2`), or onnxruntime (`.onnx`).

Histories come as a matrix, so that there is one shape for every runtime. The arithmetic is that of `Network` and
`top_k`, but for ties: of equal scores the runtime takes any.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bert4rec.inference.network import Network
from bert4rec.models.transformer import Block, Rotation, with_one
from bert4rec.runtime.errors import SettingsError

PT2, ONNX = "program.pt2", "model.onnx"
NOTHING = -1  # in the place of an item
OPSET = 18  # of ONNX: the first whose ScatterElements takes a minimum


class Program(nn.Module):
    """Histories → the `k` best items and their scores. Items are numbers from 0, as lines of the list of ids.

    With `leaves_out_seen` no item of a history is found for it.
    """

    def __init__(self, network: Network, *, k: int, leaves_out_seen: bool) -> None:
        super().__init__()
        self.network, self.leaves_out_seen = network, leaves_out_seen
        self.k = min(k, len(network.item_vectors))

    def forward(self, items: Tensor) -> tuple[Tensor, Tensor]:
        """`items` [B, L] int64, the oldest first, -1 anywhere for nothing → items [B, k] int64, scores [B, k].

        Best first; -1 and -inf where there are fewer, and for a history without items.
        """
        is_item = items != NOTHING
        scores = self._hidden(items, is_item) @ self.network.item_vectors.T
        if self.leaves_out_seen:
            limits = torch.where(is_item, -torch.inf, torch.inf)
            scores = scores.scatter_reduce(1, items.clamp(min=0), limits, "amin")
        scores = torch.where(is_item.any(1, keepdim=True), scores, -torch.inf)
        best, indices = scores.topk(self.k)
        return torch.where(best > -torch.inf, indices, NOTHING), best

    def _hidden(self, items: Tensor, is_item: Tensor) -> Tensor:
        """Hidden states [B, D] after the histories, as `Network` has them."""
        encoder, mask = self.network.encoder, self.network.mask
        vectors, most = self.network.shown_vectors[items.clamp(min=0)], self.network.max_len
        if mask is not None:
            vectors = torch.cat([vectors, mask.expand(items.shape[0], 1, -1)], dim=1)
            is_item, most = F.pad(is_item, (0, 1), value=True), most + 1
        from_end = is_item.flip(1).cumsum(1).flip(1) - 1
        is_real = is_item & (from_end < most)
        place = from_end.clamp(0, most - 1)
        x = vectors if encoder.positions is None else vectors + encoder.positions(place)
        rotation = encoder.rotation(place)
        everywhere = is_real[:, None, None, :]
        within = _seen_within(is_real) if encoder.is_causal else everywhere
        *before, final = cast(list[Block], [*encoder.blocks])
        for block in before:
            asked = block.queries(block.attention_norm(x), rotation)
            x = block.merge(x, _attend(block, asked, x, rotation, within))
        is_last = is_real & (from_end == 0)
        last = torch.where(is_last[:, :, None], x, 0).sum(1, keepdim=True)
        newest = encoder.rotation(torch.zeros_like(place[:, :1]))
        asked = final.queries(final.attention_norm(last), newest)
        hidden = encoder.norm(final.merge(last, _attend(final, asked, x, rotation, everywhere)))
        return with_one(hidden[:, 0], self.network.item_vectors.shape[1])


def save_pt2(path: Path, program: Program) -> None:
    """Write what `torch.export.load(path).module()` makes a function of, with neither pickles nor code."""
    exported = torch.export.export(program, _example(), dynamic_shapes=_dynamic())
    exported.example_inputs = None  # would be pickled
    torch.export.save(exported, path)


def save_onnx(path: Path, program: Program) -> None:
    """Write what onnxruntime runs; the numbers are in a file of their own, `model.onnx.data`."""
    with _without_messages():
        torch.onnx.export(
            program, _example(), path, input_names=["items"], output_names=["best_items", "scores"],
            dynamic_shapes=_dynamic(), opset_version=OPSET, external_data=True, dynamo=True, verbose=False,
        )  # fmt: skip


def require_onnx() -> None:
    """Raise `SettingsError` where the packages are missing that write ONNX."""
    if not (find_spec("onnx") and find_spec("onnxscript")):
        raise SettingsError(
            "--format=onnx: the packages onnx and onnxscript are not installed; type `pip install -r "
            "requirements-onnx.txt`, or install bert4rec with its extra [onnx]"
        )


def _example() -> tuple[Tensor]:
    return (torch.tensor([[0, 0, 0], [NOTHING, 0, 0]]),)


def _dynamic() -> tuple[dict[int, object]]:
    """Any number of histories, of any length."""
    return ({0: torch.export.Dim("histories"), 1: torch.export.Dim("length")},)


def _seen_within(is_real: Tensor) -> Tensor:
    """Who sees whom in a causal model, [B, 1, L, L]; all see themselves, since attention to nothing is NaN."""
    places = torch.arange(is_real.shape[1], device=is_real.device)
    is_before = places[None, :] <= places[:, None]
    is_self = places[None, :] == places[:, None]
    return ((is_real[:, None, :] & is_before) | is_self)[:, None]


def _attend(block: Block, queries: Tensor, x: Tensor, rotation: Rotation | None, mask: Tensor) -> Tensor:
    """Attention of `queries` [B, M, d] to `x` [B, L, d] before its norm, at places of that `rotation`."""

    def heads(values: Tensor) -> Tensor:
        return values.unflatten(-1, (block.n_heads, -1)).transpose(1, 2)

    keys, values = block.keys_and_values(block.attention_norm(x), rotation)
    attended = F.scaled_dot_product_attention(heads(queries), heads(keys), heads(values), attn_mask=mask)
    return attended.transpose(1, 2).flatten(2)


@contextmanager
def _without_messages() -> Iterator[None]:
    """What the exporter says of its own insides is for its developers."""
    exporter = logging.getLogger("torch.onnx")
    level = exporter.level
    exporter.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        exporter.setLevel(level)
