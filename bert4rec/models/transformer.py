"""A transformer over ragged sequences, in plain torch: an export can use it without the rest of this package.

Sequences stay ragged: every linear layer processes the real positions only, and padding exists only inside `attend`.
Shapes: B sequences, N positions in total, M positions to predict, d = embed_dim.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

GAPS_PER_OCTAVE = 2  # buckets of time deltas per doubling
N_GAPS = 64  # buckets; the last one is for more than a century
BETWEEN_DATES = 122 * 86_400  # seconds between two dates: a third of a year
N_DATES = 400  # from 1970 to 2103
SLOWEST = 10_000.0  # largest wavelength of rotary positions divided by 2 π, as in RoFormer
POSITIONS_AT_A_TIME = 2048  # padded positions per group on CPU: the activations of a block stay in a core's cache


def bucketize_time_delta(seconds: Tensor) -> Tensor:
    """Return the buckets [...] int64, below `N_GAPS`, of time deltas [...]; each is √2 times as long as the previous.

    >>> bucketize_time_delta(torch.tensor([0, 1, 2, 60, 86_400])).tolist()
    [0, 2, 3, 11, 32]
    """
    octaves = torch.log2(1.0 + seconds.clamp(min=0))
    return (GAPS_PER_OCTAVE * octaves).long().clamp(max=N_GAPS - 1)


class Dates(nn.Module):
    """A vector [d] for every instant, interpolated linearly between the vectors of dates a third of a year apart.

    Added to a hidden state, it raises the scores of items that are popular at that time. Vectors of dates that training
    does not reach stay zero.
    """

    def __init__(self, embed_dim: int, device: torch.device | str = "meta") -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(N_DATES, embed_dim, device=device))

    def forward(self, instants: Tensor) -> Tensor:
        """Return the vectors [..., d] of `instants` [...] int64, in seconds since 1970."""
        before = (instants // BETWEEN_DATES).clamp(0, N_DATES - 2)
        since = (instants - before * BETWEEN_DATES).clamp(0, BETWEEN_DATES)  # ONNX fails with limits above 2**31
        share = since.to(self.weight.dtype)[..., None] / BETWEEN_DATES
        return torch.lerp(F.embedding(before, self.weight), F.embedding(before + 1, self.weight), share)


@dataclass(frozen=True, kw_only=True)
class EncoderSettings:
    """The settings of an encoder, named as the keys of [model]."""

    embed_dim: int
    n_heads: int
    n_layers: int
    ffn_dim: int
    max_len: int
    dropout: float
    positions: str = "learned"
    input_norm: bool = False
    times: str = "none"
    n_events: int = 0


class Encoder(nn.Module):
    """Transformer blocks over ragged sequences with position and, optionally, time embeddings.

    - `positions` "learned": each position has a vector, added to the item's. Positions count from the end, so that the
      most recent item has the same position in histories of every length.
    - `positions` "rotary": queries and keys are rotated, so that attention depends on the distance of two positions
      only (RoFormer: Su et al. 2021).
    - `times`: unless "none", each position has a vector for the bucket of its time delta, and the vector of the
      prediction's date is added to each final hidden state.
    - `n_events`: if not 0, each position has the vector of its kind of event, one of so many.
    - `input_norm`: LayerNorm on the input. Rare items have small embeddings early in training, and would be dominated
      by the residual stream.
    - `is_causal`: a position attends to itself and the positions before it, else to its whole sequence.

    On CPU, a few sequences at a time pass through all blocks: they stay in cache, and are padded only to the longest of
    the group (little, since batches are sorted by length). On an accelerator all sequences are processed together.
    """

    def __init__(
        self, settings: EncoderSettings, *, is_causal: bool = False, device: torch.device | str = "meta"
    ) -> None:
        super().__init__()
        embed_dim, has_times = settings.embed_dim, settings.times != "none"
        self.is_causal, self.embed_dim, self.ffn_dim = is_causal, embed_dim, settings.ffn_dim
        self.max_len, self.input_norm = settings.max_len, settings.input_norm
        self.n_heads, self.head_dim = settings.n_heads, embed_dim // settings.n_heads
        self.positions = _vectors(self.max_len, embed_dim, device) if settings.positions == "learned" else None
        self.gaps = _vectors(N_GAPS, embed_dim, device) if has_times else None
        self.dates = Dates(embed_dim, device) if has_times else None
        self.events = _vectors(settings.n_events, embed_dim, device) if settings.n_events else None
        self.dropout = Dropout(settings.dropout)
        self.blocks = nn.ModuleList(Block(settings, device) for _ in range(settings.n_layers))
        self.norm = nn.LayerNorm(embed_dim, device=device)

    def forward(
        self, vectors: Tensor, lengths: Tensor, positions: Tensor, gaps: Tensor | None = None,
        instants: Tensor | None = None, widths: tuple[int, int] | None = None,
    ) -> Tensor:  # fmt: skip
        """Return the hidden states [M, d] at ascending `positions` [M] of sequences: `lengths` [B], `vectors` [N, d].

        `gaps` [N] and `instants` [M] int64, in seconds, are given if the encoder uses timestamps. `widths` are the
        length of the longest sequence and the most positions of one; without them, the host waits for the device.
        """
        ends = lengths.cumsum(0)
        from_end = torch.repeat_interleave(ends, lengths, output_size=len(vectors))
        from_end = from_end - 1 - torch.arange(len(vectors), device=vectors.device)
        x = self.embed_positions(vectors, from_end, gaps)
        if x.device.type != "cpu":
            return self.add_time_embedding(self._encode(x, lengths, positions, from_end, widths), instants)
        n_rows = _rows_at_a_time(lengths.tolist())
        before = F.pad(ends, (1, 0))[F.pad(torch.tensor(n_rows).cumsum(0), (1, 0))]
        at_targets = positions.split(torch.searchsorted(positions, before).diff().tolist())
        sizes = before.diff().tolist()
        groups = zip(x.split(sizes), lengths.split(n_rows), at_targets, before[:-1], from_end.split(sizes), strict=True)
        hidden = [self._encode(part, n, targets - first, places) for part, n, targets, first, places in groups]
        return self.add_time_embedding(torch.cat(hidden), instants)

    def add_events(self, vectors: Tensor, events: Tensor | None) -> Tensor:
        """Return `vectors` [..., d] plus those of the kinds of `events` [...], if the encoder uses them."""
        if self.events is None:
            return vectors
        assert events is not None, "this encoder uses kinds of events"
        return vectors + self.events(events)

    def embed_positions(self, vectors: Tensor, from_end: Tensor, gaps: Tensor | None) -> Tensor:
        """Return the first block's input for `vectors` [..., d] at positions `from_end` [...], with `gaps` [...]."""
        x = vectors if self.positions is None else vectors + self.positions(from_end)
        x = x if self.gaps is None or gaps is None else x + self.gaps(bucketize_time_delta(gaps))
        return F.layer_norm(x, x.shape[-1:]) if self.input_norm else x

    def add_time_embedding(self, hidden: Tensor, instants: Tensor | None) -> Tensor:
        """Return hidden states [M, d] plus the time embedding of the `instants` [M] of prediction."""
        return hidden if self.dates is None or instants is None else hidden + self.dates(instants)

    def rotation(self, from_end: Tensor) -> "Rotation | None":
        """Return the rotation of queries and keys at positions `from_end` [...]; None if positions are learned."""
        if self.positions is not None:
            return None
        places = torch.arange(self.max_len, device=from_end.device)
        return Rotation.of(-places, self.n_heads, self.head_dim).at(from_end)

    def _encode(
        self, x: Tensor, lengths: Tensor, positions: Tensor, from_end: Tensor, widths: tuple[int, int] | None = None
    ) -> Tensor:
        x, rotation = self.dropout(x), self.rotation(from_end)
        within, at_targets = attention_masks(lengths, positions, len(x), widths, is_causal=self.is_causal)
        for block in self.blocks[:-1]:
            x = block(x, within, rotation)
        return self.norm(self.blocks[-1](x, at_targets, rotation, positions))

    def activation_numel(self, n_positions: int, n_asked: int) -> int:
        """Return the number of values that a forward pass keeps for backward.

        All blocks but the last process all `n_positions`; the last one ends at the `n_asked` positions to predict.
        """
        d, f = self.embed_dim, self.ffn_dim
        whole = n_positions * (14 * d + 2 * f) * (len(self.blocks) - 1)
        return whole + n_positions * (9 + self.input_norm) * d + n_asked * (10 * d + 2 * f)


class Block(nn.Module):
    """Attention and feed-forward, each after a LayerNorm and around a residual connection (pre-LN)."""

    def __init__(self, settings: EncoderSettings, device: torch.device | str) -> None:
        super().__init__()
        self.n_heads, embed_dim, ffn_dim = settings.n_heads, settings.embed_dim, settings.ffn_dim
        self.attention_norm = nn.LayerNorm(embed_dim, device=device)
        self.query = nn.Linear(embed_dim, embed_dim, device=device)
        self.key_value = nn.Linear(embed_dim, 2 * embed_dim, device=device)
        self.attention_out = nn.Linear(embed_dim, embed_dim, device=device)
        self.ffn_norm = nn.LayerNorm(embed_dim, device=device)
        self.ffn_in = nn.Linear(embed_dim, ffn_dim, device=device)
        self.ffn_out = nn.Linear(ffn_dim, embed_dim, device=device)
        self.dropout = Dropout(settings.dropout)

    def forward(
        self, x: Tensor, seen: "AttentionMask", rotation: "Rotation | None" = None, positions: Tensor | None = None
    ) -> Tensor:
        """Return outputs [N, d] for inputs [N, d], or [M, d] at `positions` [M] only."""
        h = self.attention_norm(x)
        keys, values = self.keys_and_values(h, rotation)
        if positions is not None:
            x, h = x.index_select(0, positions), h.index_select(0, positions)
            rotation = rotation and rotation.at(positions)
        return self.feed_forward(x, attend(self.queries(h, rotation), keys, values, seen, self.n_heads))

    def queries(self, h: Tensor, rotation: "Rotation | None") -> Tensor:
        """Return the queries [..., d] of normalised inputs."""
        queries: Tensor = self.query(h)
        return queries if rotation is None else rotation.rotate(queries)

    def keys_and_values(self, h: Tensor, rotation: "Rotation | None") -> tuple[Tensor, Tensor]:
        """Return the keys and values [..., d] of normalised inputs."""
        keys, values = self.key_value(h).chunk(2, dim=-1)
        return keys if rotation is None else rotation.rotate(keys), values

    def feed_forward(self, x: Tensor, attended: Tensor) -> Tensor:
        """Return the residual stream [M, d] after attention and feed-forward."""
        x = self.dropout(self.attention_out(attended), onto=x)
        return self.dropout(self.ffn_out(F.gelu(self.ffn_in(self.ffn_norm(x)))), onto=x)


class Rotation(NamedTuple):
    """The rotation of each pair of a vector: `turns` [..., d / 2, 2], the cosines and sines of its angles.

    The product of a query and a key, each rotated by its position, depends only on the difference of the positions
    (RoFormer: Su et al. 2021, section 3.4.2, with its pairs and frequencies).
    """

    turns: Tensor

    @classmethod
    def of(cls, places: Tensor, n_heads: int, head_dim: int) -> "Rotation":
        """Return the rotation at positions `places` [...]; all heads are rotated alike."""
        exponents = torch.arange(0, head_dim, 2, device=places.device) / head_dim
        angles = (places[..., None] * SLOWEST**-exponents).repeat(*[1] * places.dim(), n_heads)
        return cls(torch.stack([angles.cos(), angles.sin()], -1))

    def at(self, positions: Tensor) -> "Rotation":
        """Return the rotation at `positions` [...] of these [n]."""
        return Rotation(F.embedding(positions, self.turns.flatten(1)).unflatten(-1, (-1, 2)))

    def rotate(self, vectors: Tensor) -> Tensor:
        """Return the rotated `vectors` [..., d]; consecutive values are a pair."""
        pairs = vectors.unflatten(-1, (-1, 2)).to(self.turns.dtype)
        if torch.compiler.is_compiling():  # ONNX has no complex numbers, and torch.compile no code for them
            (first, second), (cosines, sines) = pairs.unbind(-1), self.turns.unbind(-1)
            rotated = torch.stack([first * cosines - second * sines, first * sines + second * cosines], -1)
        else:  # one pass over memory instead of seven
            rotated = torch.view_as_real(torch.view_as_complex(pairs) * torch.view_as_complex(self.turns))
        return rotated.flatten(-2).to(vectors.dtype)


class Dropout(nn.Module):
    """Dropout that is fast on CPU: it draws 16 random bits per value from the global generator.

    On CPU the dropped share is therefore rounded to a multiple of 1/65,536, and kept values are scaled by the rounded
    share. torch's own dropout takes seven times as long there, more than attention.
    """

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, values: Tensor, onto: Tensor | None = None) -> Tensor:
        """Return `values` after dropout, in training only; added to `onto`, if given."""
        if self.training and self.share and values.device.type == "cpu" and not torch.compiler.is_compiling():
            kept = self._kept(values)
            return values * kept if onto is None else torch.addcmul(onto, values, kept)
        values = F.dropout(values, self.share, self.training)
        return values if onto is None else onto + values

    def _kept(self, values: Tensor) -> Tensor:
        """Return random factors in the shape of `values`: 0 for dropped values, the scale for kept ones."""
        n, dropped = values.numel(), round(self.share * 2**16)
        bits = torch.empty(-(-n // 4), dtype=torch.int64).random_(-(2**63), None).view(torch.int16)[:n]
        kept = torch.ge(bits, dropped - 2**15, out=torch.empty(n))  # many times faster than through a bool tensor
        return kept.mul_(2**16 / (2**16 - dropped)).view(values.shape)


class Padding:
    """The index maps between ragged rows of `lengths` [R], `n` positions in total, and rows padded to `width`."""

    def __init__(self, lengths: Tensor, n: int, width: int) -> None:
        self.n_rows, self.width, self.is_full = len(lengths), width, len(lengths) * width == n
        self.starts = lengths.cumsum(0) - lengths
        self.places = torch.arange(width, device=lengths.device)
        self.is_real = self.places < lengths[:, None]
        # Padding repeats arbitrary positions, which are never read: writing zeros would cost time.
        self.sources = (self.starts[:, None] + self.places).clamp(max=n - 1).flatten()
        skipped = torch.arange(self.n_rows, device=lengths.device) * width - self.starts
        skipped = torch.repeat_interleave(skipped, lengths, output_size=n)  # without a size, the host would wait
        self.targets = torch.arange(n, device=lengths.device) + skipped

    def pad(self, values: Tensor) -> Tensor:
        """Return `values` [n, …] padded to [R, width, …]; padding has arbitrary values."""
        if self.is_full:
            return values.unflatten(0, (self.n_rows, self.width))
        return _Pad.apply(values, self)  # type: ignore[no-untyped-call]

    def unpad(self, padded: Tensor) -> Tensor:
        """Return the values [n, …] of `padded` [R, width, …] without the padding."""
        return padded.flatten(0, 1) if self.is_full else _Unpad.apply(padded, self)  # type: ignore[no-untyped-call]


class _Pad(Function):
    """Pad with a custom backward: the gradient of the padding is zero, which autograd would still add up."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, padding: Padding) -> Tensor:
        ctx.padding = padding
        return values.index_select(0, padding.sources).unflatten(0, (padding.n_rows, padding.width))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.flatten(0, 1).index_select(0, ctx.padding.targets), None


class _Unpad(Function):
    @staticmethod
    def forward(ctx: Any, padded: Tensor, padding: Padding) -> Tensor:
        ctx.padding = padding
        return padded.flatten(0, 1).index_select(0, padding.targets)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        shape = (ctx.padding.n_rows, ctx.padding.width)
        padded = gradient.new_zeros(shape[0] * shape[1], *gradient.shape[1:])
        return padded.index_copy_(0, ctx.padding.targets, gradient).unflatten(0, shape), None


class AttentionMask(NamedTuple):
    """The padding of queries and keys, and the attention `mask` [R, 1, 1 or queries, keys]."""

    queries: Padding
    keys: Padding
    mask: Tensor | None


def attention_masks(
    lengths: Tensor, positions: Tensor, n: int, widths: tuple[int, int] | None = None, *, is_causal: bool
) -> tuple[AttentionMask, AttentionMask]:
    """Return the masks of sequences of `lengths` [R], `n` positions: for all queries, and for `positions` [M] only.

    `widths` are the largest length and the most positions of a sequence; without them, the host waits for the device.
    """
    ends = lengths.cumsum(0)
    n_queries = torch.searchsorted(positions, F.pad(ends, (1, 0))).diff()
    width, most_queries = widths or torch.stack([lengths.max(), n_queries.max()]).tolist()
    keys = Padding(lengths, n, width)
    if not is_causal:
        mask = None if keys.is_full else keys.is_real[:, None, None]
        queries = keys if len(positions) == n else Padding(n_queries, len(positions), most_queries)
        return AttentionMask(keys, keys, mask), AttentionMask(queries, keys, mask)
    everywhere = AttentionMask(keys, keys, (keys.places <= keys.places[:, None])[None, None])
    if len(positions) == n:
        return everywhere, everywhere
    queries = Padding(n_queries, len(positions), most_queries)
    starts = torch.repeat_interleave(keys.starts, n_queries, output_size=len(positions))
    places = queries.pad(positions - starts)
    return everywhere, AttentionMask(queries, keys, (keys.places <= places[:, :, None])[:, None])


def _vectors(n: int, embed_dim: int, device: torch.device | str) -> nn.Embedding:
    """Return an embedding of zeros, to be initialized later: drawing values on `meta` takes torch half a second."""
    return nn.Embedding.from_pretrained(torch.zeros(n, embed_dim, device=device), freeze=False)


def _rows_at_a_time(lengths: list[int]) -> list[int]:
    """Return the number of consecutive sequences of each group that passes through the blocks together."""
    groups, widest = [0], 0
    for length in lengths:
        widest = max(widest, length)
        if groups[-1] and (groups[-1] + 1) * widest > POSITIONS_AT_A_TIME:
            groups.append(0)
            widest = length
        groups[-1] += 1
    return groups


def attend(queries: Tensor, keys: Tensor, values: Tensor, seen: AttentionMask, n_heads: int) -> Tensor:
    """Return the attention output [M, d] within each sequence, for queries [M, d], keys and values [N, d]."""
    q, k, v = (
        padding.pad(each).unflatten(-1, (n_heads, -1)).transpose(1, 2)
        for padding, each in ((seen.queries, queries), (seen.keys, keys), (seen.keys, values))
    )
    padded = F.scaled_dot_product_attention(q, k, v, attn_mask=seen.mask)
    return seen.queries.unpad(padded.transpose(1, 2).flatten(2))


def append_ones(hidden: Tensor, width: int) -> Tensor:
    """Return hidden states [M, d] as [M, `width`], with a 1 for the item bias, followed by zeros."""
    if width == hidden.shape[1]:
        return hidden
    one = torch.zeros(width - hidden.shape[1], dtype=hidden.dtype, device=hidden.device)
    one[:1].fill_(1)  # `one[0] = 1` would copy a number, which synchronizes with CUDA
    return torch.cat([hidden, one.expand(hidden.shape[0], -1)], dim=1)  # an export would turn len() into a constant
