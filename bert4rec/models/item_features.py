"""Add what an item is besides its id: the vector of its features joins its row of the item table.

The vector of an item is its id vector, plus for each feature the sum of the vectors of its n values divided by the
square root of n, plus a linear map of its ready-made vectors. With n itself, items with many values would have short
vectors, and learn slowly. An item without training positions has no id vector, and with `id_dropout` a random share of
the items has none in each training step, so that an item is understood without its id (as words and items are dropped
in "DropoutNet", Volkovs et al. 2017).
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from bert4rec.dataset.item_features import FeatureSizes
from bert4rec.feed.batch import FeatureBags, Lookup
from bert4rec.feed.features import FeatureReader

NEVER = -30.0  # score of a cold item in training: it is no target, and would only learn to be scored low
SAMPLED_ITEMS = 8192  # for the mean length of vectors
ITEMS_AT_A_TIME = 65_536  # items whose features are read at once, to build the matrix of a part of the catalogue


@dataclass(frozen=True)
class FeatureSettings:
    """Hold the `sizes` of the item features, and the share of items whose id is dropped in a training step."""

    sizes: FeatureSizes
    id_dropout: float = 0.0


class FeatureEncoder(nn.Module):
    """Add the features of items to their rows of the item table.

    The vectors of the values [n_values, d] and the linear map of ready-made vectors are replicated. `reader` reads the
    features of items; it is set from outside, as is `step`, the number of the training step that determines, with
    `seed`, which ids are dropped.
    """

    def __init__(self, settings: FeatureSettings, embed_dim: int, device: torch.device | str = "meta") -> None:
        super().__init__()
        sizes = settings.sizes
        self.embed_dim, self.width, self.id_dropout = embed_dim, sizes.width, settings.id_dropout
        self.values = nn.Parameter(torch.empty(sizes.n_values, embed_dim, device=device))
        self.projection = nn.Linear(sizes.width, embed_dim, bias=False, device=device) if sizes.width else None
        self.reader: FeatureReader | None = None
        self.seed = self.step = 0
        self.cold_length = 0.0  # of the vectors of cold items in rankings; 0: as they are
        self._part: CatalogueFeatures | None = None

    def forward(self, rows: Tensor, items: Lookup) -> Tensor:
        """Return the vectors [n, D] of `items` with the `rows` [n, D] of the table; D is at least d."""
        bags = items.features or self._reader.read(items.ids)
        kept, added = rows * self._has_id(items.ids, bags.is_warm)[:, None], self.encode(bags)
        if self.cold_length and not self.training:
            added = torch.where(bags.is_warm[:, None] > 0, added, F.normalize(added) * self.cold_length)
        return kept + _padded(added, rows.shape[1])

    @torch.no_grad()
    def align_cold_items(self, rows: Tensor) -> None:
        """Set the length of the vectors of cold items in rankings to the mean length of warm items' vectors.

        A cold item has no id vector, so its own vector is shorter, and it would hardly ever be recommended. `rows`
        [n, D] are those of the first n items. They are a random sample, because items are numbered at random. The model
        must be in evaluation mode.
        """
        ids = torch.arange(len(rows), device=rows.device)
        bags = self._reader.read(ids)
        lengths = self(rows, Lookup.of(ids)._replace(features=bags)).norm(dim=1)[bags.is_warm > 0]
        self.cold_length = lengths.mean().item() if len(lengths) else 0.0

    def encode(self, bags: FeatureBags) -> Tensor:
        """Return the sums [n, d] of the features of n items."""
        with torch.autocast(self.values.device.type, enabled=False):
            total = F.embedding_bag(bags.values, self.values, bags.offsets, mode="sum", per_sample_weights=bags.weights)
            return total if self.projection is None else total + self.projection(bags.vectors.view(-1, self.width))

    def catalogue(self, rows: Tensor, first: int, divisor: int = 1) -> Tensor:
        """Return the vectors [V, D] of the items from `first` on, with their `rows` [V, D] of the table.

        The gradient of the rows is divided by `divisor`, that of the features is not. In training, the bias of cold
        items, if there are biases, leaves them out of the softmax.
        """
        part = self._part
        if part is None or (part.first, len(part.is_warm)) != (first, len(rows)):
            part = self._part = CatalogueFeatures.read(self._reader, first, len(rows), len(self.values), rows.device)
        has_id = self._has_id(torch.arange(first, first + len(rows), device=rows.device), part.is_warm)
        with torch.autocast(rows.device.type, enabled=False):
            vectors: Tensor = _AddValues.apply(rows, self.values, has_id, part, divisor)  # type: ignore[no-untyped-call]
            if self.projection is not None:
                vectors = vectors + _padded(self.projection(part.vectors.view(-1, self.width)), rows.shape[1])
            if self.training and rows.shape[1] > self.embed_dim:
                vectors[:, self.embed_dim] += NEVER * (1 - part.is_warm)
            return vectors

    @contextmanager
    def without(self, name: str) -> Iterator[None]:
        """Leave out the feature `name`: its weights are 0 in this context, and the same as before after it."""
        place = self._reader.places()[name]
        weights = [self.values.detach()[place.values]]
        if self.projection is not None:
            weights.append(self.projection.weight.detach()[:, place.columns])
        originals = [part.clone() for part in weights]
        try:
            for part in weights:
                part.zero_()
            yield
        finally:
            for part, original in zip(weights, originals, strict=True):
                part.copy_(original)

    @property
    def _reader(self) -> FeatureReader:
        assert self.reader is not None, "a model with item features needs their reader"
        return self.reader

    def _has_id(self, ids: Tensor, is_warm: Tensor) -> Tensor:
        """Return 1 for each of `ids` [n] whose id vector counts in this step, else 0, as float32."""
        if not (self.training and self.id_dropout):
            return is_warm
        return is_warm * (uniform(ids, self.seed, self.step) >= self.id_dropout)


class CatalogueFeatures(NamedTuple):
    """Hold the features of the items from `first` on: `product` [V, n_values] CSR, its transpose, vectors, is_warm."""

    first: int
    product: Tensor
    transposed: Tensor
    vectors: Tensor
    is_warm: Tensor

    @classmethod
    def read(
        cls, reader: FeatureReader, first: int, n: int, n_values: int, device: torch.device
    ) -> "CatalogueFeatures":
        """Return the features of the items `first` to `first + n`, on `device`."""
        starts = range(first, first + n, ITEMS_AT_A_TIME)
        ids = [torch.arange(start, min(start + ITEMS_AT_A_TIME, first + n)) for start in starts]
        bags = [reader.read(part) for part in ids] or [reader.read(torch.arange(0))]
        values, weights, vectors, is_warm = (
            torch.cat([getattr(part, name) for part in bags]) for name in ("values", "weights", "vectors", "is_warm")
        )
        counts = torch.cat([F.pad(part.offsets, (0, 1), value=len(part.values)).diff() for part in bags])
        rows = torch.repeat_interleave(torch.arange(n), counts)
        product = csr(rows, values, weights, (n, n_values))
        order = torch.argsort(values, stable=True)
        transposed = csr(values[order], rows[order], weights[order], (n_values, n))
        tensors = (tensor.to(device) for tensor in (product, transposed, vectors, is_warm))
        return cls(first, *tensors)


class _AddValues(Function):
    """Rows with an id, plus a sparse product with the vectors of all values; backward multiplies by its transpose."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, values: Tensor, has_id: Tensor, part: CatalogueFeatures, divisor: int
    ) -> Tensor:
        ctx.part, ctx.divisor, ctx.embed_dim = part, divisor, values.shape[1]
        ctx.save_for_backward(has_id)
        vectors = rows * has_id[:, None]
        vectors[:, : ctx.embed_dim] += torch.sparse.mm(part.product, values)
        return vectors

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (has_id,) = ctx.saved_tensors
        of_values = torch.sparse.mm(ctx.part.transposed, gradient[:, : ctx.embed_dim].contiguous())
        return gradient * (has_id / ctx.divisor)[:, None], of_values, None, None, None


def feature_encoder(
    settings: FeatureSettings | None, embed_dim: int, device: torch.device | str
) -> FeatureEncoder | None:
    """Return the encoder of the features, if the items have any."""
    return None if settings is None else FeatureEncoder(settings, embed_dim, device)


def uniform(ids: Tensor, seed: int, step: int) -> Tensor:
    """Return a number [n] from 0 to 1 for each of `ids` [n] int64, a hash of (seed, step, id).

    >>> uniform(torch.tensor([3, 4]), 1, 7).equal(uniform(torch.tensor([3, 4, 5]), 1, 7)[:2])
    True
    """
    bits = ids + (seed * 1_000_003 + step) * 0x1F123BB5_159A55E5 % 2**62
    for factor in (0x3F58476D1CE4E5B9, 0x14D049BB133111EB):  # as splitmix64 mixes, in signed integers
        bits = (bits ^ ((bits >> 30) & 0x3_FFFF_FFFF)) * factor
    return ((bits ^ ((bits >> 31) & 0x1_FFFF_FFFF)) & 0xFF_FFFF).float() / 2**24


def csr(rows: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return the sparse matrix of `values` [N] at ascending `rows` and at `columns` [N]."""
    ends = F.pad(torch.bincount(rows, minlength=shape[0]).cumsum(0), (1, 0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch says once that its CSR tensors are new
        return torch.sparse_csr_tensor(ends, columns, values, shape, check_invariants=False)


def _padded(vectors: Tensor, width: int) -> Tensor:
    return F.pad(vectors, (0, width - vectors.shape[1]))
