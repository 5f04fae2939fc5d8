"""Add what an item is besides its id: the vector of its features joins its row of the item table.

The vector of an item is its id vector, plus for each feature the sum of the vectors of its n values divided by the
square root of n, plus a linear map of its ready-made vectors. With n itself, items with many values would have short
vectors, and learn slowly. An item without training positions has no id vector, and with `id_dropout` a random share of
the items has none in each training step, so that an item is understood without its id (as words and items are dropped
in "DropoutNet", Volkovs et al. 2017).
"""

import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from bert4rec.dataset.item_features import FeatureSizes
from bert4rec.feed.batch import FeatureBags, Lookup, TableBags
from bert4rec.feed.features import FeatureReader

COLD_SCORE = -30.0  # score of a cold item in training: it is no target, and would only learn to be scored low
SAMPLED_ITEMS = 8192  # for the length of vectors
ITEM, CANDIDATE = LOOKUPS = ("item", "candidate")  # names of the lookups of items


@dataclass(frozen=True)
class FeatureSettings:
    """The `sizes` of the item features, and the share of items whose id is dropped in a training step."""

    sizes: FeatureSizes
    id_dropout: float = 0.0


class FeatureEncoder(nn.Module):
    """Add the features of items to their rows of the item table.

    The vectors of the values [n_replicated, d] and the linear map of ready-made vectors are replicated; a feature with
    many values has a table of its own in `tables`, which are set from outside, as are `reader`, which reads the
    features of items, and `step`, the number of the training step that determines, with `seed`, which ids are dropped.
    """

    def __init__(self, settings: FeatureSettings, embed_dim: int, device: torch.device | str = "meta") -> None:
        super().__init__()
        self.sizes, self.embed_dim, self.id_dropout = settings.sizes, embed_dim, settings.id_dropout
        width = self.sizes.width
        self.values = nn.Parameter(torch.empty(self.sizes.n_replicated, embed_dim, device=device))
        self.projection = nn.Linear(width, embed_dim, bias=False, device=device) if width else None
        self.tables = nn.ModuleDict()
        self.reader: FeatureReader | None = None
        self.seed = self.step = 0
        self.cold_length = 0.0  # of the vectors of cold items in rankings; 0: as they are
        self._part: CatalogueFeatures | None = None
        self._gradient: Tensor | None = None
        self._zeroed_in = -1

    def forward(self, rows: Mapping[str, Tensor], lookups: Mapping[str, Lookup]) -> dict[str, Tensor]:
        """Return the vectors [n, D] of the items of each lookup with their `rows` [n, D] of the table; D is at least d.

        The names of the lookups are among `LOOKUPS`.
        """
        bags = self._bags(lookups)
        return self._add(rows, lookups, bags, self._look_up({role: bag.tables for role, bag in bags.items()}))

    @torch.no_grad()
    def align_cold_items(self, rows: Tensor) -> None:
        """Set the length of the vectors of cold items in rankings to the root mean square of warm items' vectors.

        A cold item has no id vector, so its own vector is shorter, and it would hardly ever be recommended: scores
        spread in proportion to the root mean square. `rows` [n, D] are those of the first n items. They are a random
        sample, because items are numbered at random. The model must be in evaluation mode.
        """
        items = self._reader.with_features(Lookup.of(torch.arange(len(rows), device=rows.device)))
        assert items.features is not None, "they have been read"
        vectors = self({CANDIDATE: rows}, {CANDIDATE: items})[CANDIDATE]
        lengths = vectors.norm(dim=1)[items.features.is_warm > 0]
        self.cold_length = lengths.square().mean().sqrt().item() if len(lengths) else 0.0

    def lookups(self, lookups: Mapping[str, Lookup]) -> list[tuple[Any, dict[str, Lookup]]]:
        """Return the lookups of values in tables for these lookups of items, which have features: table and ids."""
        return self._lookups({role: bag.tables for role, bag in self._bags(lookups).items()})

    def catalogue(
        self, part: Tensor, first: int, divisor: int, rows: Mapping[str, Tensor], lookups: Mapping[str, Lookup]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the vectors [V, D] of the items from `first` on with their rows `part` [V, D], and those of `lookups`.

        The gradient of `part` is divided by `divisor`, that of the features is not. In training, the bias of cold items
        leaves them out of the softmax; items without biases get a column for it if any of them are cold. All values in
        tables are looked up at once.
        """
        known = self._part
        if known is None or (known.first, len(known.is_warm)) != (first, len(part)):
            known = self._part = CatalogueFeatures.read(self._reader, first, len(part), part.device)
        bags = self._bags(lookups)
        table_values = self._look_up({CANDIDATE: known.tables} | {role: bag.tables for role, bag in bags.items()})
        has_id = self._has_id(torch.arange(first, first + len(part), device=part.device), known.is_warm)
        values = (self.values, *table_values[CANDIDATE])
        width = max(part.shape[1], self.embed_dim + (self.training and known.has_cold))
        with torch.autocast(part.device.type, enabled=False):
            vectors: Tensor = _AddValues.apply(part, has_id, known, divisor, width, *values)  # type: ignore[no-untyped-call]
            if self.projection is not None:
                vectors = vectors + _padded(self.projection(known.vectors.view(-1, self.sizes.width)), width)
            if self.training and width > self.embed_dim:
                vectors[:, self.embed_dim] += COLD_SCORE * (1 - known.is_warm)
        return vectors, self._add(rows, lookups, bags, table_values)

    def are_cold(self, items: Lookup) -> Tensor:
        """Return which of the `items` [n] have no training positions."""
        return (items.features or self._reader.read(items.ids)).is_warm == 0

    @property
    def _reader(self) -> FeatureReader:
        assert self.reader is not None, "a model with item features needs their reader"
        return self.reader

    def _bags(self, lookups: Mapping[str, Lookup]) -> dict[str, FeatureBags]:
        return {role: items.features or self._reader.read(items.ids) for role, items in lookups.items()}

    def _lookups(self, bags: Mapping[str, Sequence[TableBags]]) -> list[tuple[Any, dict[str, Lookup]]]:
        return [
            (table, {f"{name}_{role}": tables[number].distinct for role, tables in bags.items()})
            for number, (name, table) in enumerate(self.tables.items())
        ]

    def _look_up(self, bags: Mapping[str, Sequence[TableBags]]) -> dict[str, list[Tensor]]:
        """Return for each role the vectors [U, d] of the distinct values of each table, in one message a table."""
        found = [table.look_up(lookups) for table, lookups in self._lookups(bags)]
        return {role: [rows[f"{name}_{role}"] for name, rows in zip(self.tables, found, strict=True)] for role in bags}

    def _add(
        self, rows: Mapping[str, Tensor], lookups: Mapping[str, Lookup], bags: Mapping[str, FeatureBags],
        table_values: Mapping[str, Sequence[Tensor]],
    ) -> dict[str, Tensor]:  # fmt: skip
        """Return the vectors [n, D] of the items of each lookup; `table_values` are those of their values in tables."""
        found, sums = {}, self._sums(bags, table_values)
        for role, added in sums.items():
            is_warm, id_rows = bags[role].is_warm, rows[role]
            if self.cold_length and not self.training:
                added = torch.where(is_warm[:, None] > 0, added, F.normalize(added) * self.cold_length)
            found[role] = id_rows * self._has_id(lookups[role].ids, is_warm)[:, None] + _padded(added, id_rows.shape[1])
        return found

    def _sums(self, bags: Mapping[str, FeatureBags], table_values: Mapping[str, Sequence[Tensor]]) -> dict[str, Tensor]:
        """Return the sums [n, d] of the features of the n items of each lookup."""
        if not bags:
            return {}
        parts = bags.values()
        ends = [0, *itertools.accumulate(len(part.values) for part in parts)]
        offsets = torch.cat([part.offsets + first for part, first in zip(parts, ends, strict=False)])
        values, weights, vectors = (
            torch.cat([getattr(part, name) for part in parts]) for name in ("values", "weights", "vectors")
        )
        with torch.autocast(self.values.device.type, enabled=False):
            # All at once: each sum has a gradient as large as all values.
            arguments = (self.values, values, offsets, weights, self._zeros)
            total: Tensor = _WeightedSum.apply(*arguments)  # type: ignore[no-untyped-call]
            if self.projection is not None:
                total = total + self.projection(vectors.view(-1, self.sizes.width))
            sums = dict(zip(bags, total.split([len(part.offsets) for part in parts]), strict=True))
            for role, part in bags.items():
                for bag, bag_values in zip(part.tables, table_values[role], strict=True):
                    sums[role] = sums[role] + weighted_sum(bag_values, bag.places, bag.offsets, bag.weights)
            return sums

    def _zeros(self) -> Tensor:
        """Return zeros for a gradient of all values, in the same memory at each step: new memory is slow to clear."""
        if self._gradient is None or self._zeroed_in == self.step:  # a second gradient of a step needs its own
            self._gradient = torch.empty_like(self.values)
        self._zeroed_in = self.step
        return self._gradient.zero_()[:]  # with a reference of its own, so that no copy is kept as the gradient

    def _has_id(self, ids: Tensor, is_warm: Tensor) -> Tensor:
        """Return 1 for each of `ids` [n] whose id vector counts in this step, else 0, as float32."""
        if not (self.training and self.id_dropout):
            return is_warm
        return is_warm * (uniform(ids, self.seed, self.step) >= self.id_dropout)


class CatalogueFeatures(NamedTuple):
    """The features of the items from `first` on.

    `products` are sparse matrices [V, n] of the replicated values and of the distinct values of each of the `tables`,
    with their transposes; `vectors` [V · W] and `is_warm` [V] are those of `FeatureBags`. `has_cold`: not all are warm.
    """

    first: int
    products: tuple[Tensor, ...]
    transposed: tuple[Tensor, ...]
    tables: tuple[TableBags, ...]
    vectors: Tensor
    is_warm: Tensor
    has_cold: bool

    @classmethod
    def read(cls, reader: FeatureReader, first: int, n: int, device: torch.device) -> "CatalogueFeatures":
        """Return the features of the items `first` to `first + n`, on `device`."""
        bags = reader.read(torch.arange(first, first + n))
        pairs = [csr_pair(bags.values, bags.offsets, bags.weights, reader.sizes.n_replicated)]
        pairs += [csr_pair(bag.places, bag.offsets, bag.weights, len(bag.distinct.ids)) for bag in bags.tables]
        products, transposed = zip(*((one.to(device), other.to(device)) for one, other in pairs), strict=True)
        has_cold, bags = bool((bags.is_warm == 0).any()), bags.to(device)
        return cls(first, products, transposed, bags.tables, bags.vectors, bags.is_warm, has_cold)


class _AddValues(Function):
    """Rows with an id, plus sparse products with the vectors of all values; backward multiplies by the transposes.

    The result has `width` columns, at least those of the rows.
    """

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, has_id: Tensor, part: CatalogueFeatures, divisor: int, width: int, *values: Tensor
    ) -> Tensor:
        ctx.part, ctx.divisor, ctx.embed_dim, ctx.width = part, divisor, values[0].shape[1], rows.shape[1]
        ctx.save_for_backward(has_id)
        vectors = _padded(rows, width).mul_(has_id[:, None]) if width > rows.shape[1] else rows * has_id[:, None]
        for product, feature_values in zip(part.products, values, strict=True):
            vectors[:, : ctx.embed_dim] += torch.sparse.mm(product, feature_values)
        return vectors

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (has_id,) = ctx.saved_tensors
        vector_gradient = gradient[:, : ctx.embed_dim].contiguous()
        value_gradients = [torch.sparse.mm(transposed, vector_gradient) for transposed in ctx.part.transposed]
        row_gradient = gradient[:, : ctx.width] * (has_id / ctx.divisor)[:, None]
        return row_gradient, None, None, None, None, *value_gradients


class _WeightedSum(Function):
    """`weighted_sum`; backward takes memory for the gradient of all vectors from `zeros`, and sorts nothing."""

    @staticmethod
    def forward(
        ctx: Any, vectors: Tensor, places: Tensor, offsets: Tensor, weights: Tensor, zeros: Callable[[], Tensor]
    ) -> Tensor:
        ctx.save_for_backward(places, offsets, weights)
        ctx.zeros = zeros
        return weighted_sum(vectors, places, offsets, weights)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        places, offsets, weights = ctx.saved_tensors
        rows = rows_of_bags(offsets, len(places))
        total = ctx.zeros().index_add_(0, places, gradient.index_select(0, rows).mul_(weights[:, None]))
        return total, None, None, None, None


def weighted_sum(vectors: Tensor, places: Tensor, offsets: Tensor, weights: Tensor) -> Tensor:
    """Return the sums [n, d] of bags of `vectors` [U, d] at `places` [N], those of a row from its `offsets` [n] on."""
    return F.embedding_bag(places, vectors, offsets, mode="sum", per_sample_weights=weights)


def rows_of_bags(offsets: Tensor, n_values: int) -> Tensor:
    """Return the row [N] of each of `n_values` values in bags, those of a row from its `offsets` [n] on.

    >>> rows_of_bags(torch.tensor([0, 2, 2]), 5).tolist()
    [0, 0, 2, 2, 2]
    """
    return torch.repeat_interleave(F.pad(offsets, (0, 1), value=n_values).diff(), output_size=n_values)


def uniform(ids: Tensor, seed: int, step: int) -> Tensor:
    """Return a number [n] from 0 to 1 for each of `ids` [n] int64, a hash of (seed, step, id).

    >>> uniform(torch.tensor([3, 4]), 1, 7).equal(uniform(torch.tensor([3, 4, 5]), 1, 7)[:2])
    True
    """
    bits = ids + (seed * 1_000_003 + step) * 0x1F123BB5_159A55E5 % 2**62
    for factor in (0x3F58476D1CE4E5B9, 0x14D049BB133111EB):  # as splitmix64 mixes, in signed integers
        bits = (bits ^ ((bits >> 30) & 0x3_FFFF_FFFF)) * factor
    return ((bits ^ ((bits >> 31) & 0x1_FFFF_FFFF)) & 0xFF_FFFF).float() / 2**24


def csr_pair(columns: Tensor, offsets: Tensor, weights: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Return the sparse matrix [n, width] of bags, those of a row from its `offsets` [n] on, and its transpose."""
    n, rows = len(offsets), rows_of_bags(offsets, len(columns))
    order = torch.argsort(columns, stable=True)
    return (csr(rows, columns, weights, (n, width)), csr(columns[order], rows[order], weights[order], (width, n)))


def csr(rows: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return the sparse matrix of `values` [N] at ascending `rows` and at `columns` [N]."""
    ends = F.pad(torch.bincount(rows, minlength=shape[0]).cumsum(0), (1, 0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch says once that its CSR tensors are new
        return torch.sparse_csr_tensor(ends, columns, values, shape, check_invariants=False)


def _padded(vectors: Tensor, width: int) -> Tensor:
    return F.pad(vectors, (0, width - vectors.shape[1]))
