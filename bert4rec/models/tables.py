"""Embedding tables that can be sharded: lookups, the routes of gradients back to the rows, and the item table."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchrec.modules.embedding_configs import DataType, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from bert4rec.feed.batch import ID_ROWS, Lookup
from bert4rec.models.item_features import CANDIDATE, ITEM, LOOKUPS, SAMPLED_ITEMS, FeatureEncoder, FeatureSettings
from bert4rec.runtime.collectives import Partition

Kernel: TypeAlias = Callable[..., Tensor]
"""fbgemm's lookup: the `indices` of all features one after the other, and their `offsets`, to the rows."""

PRECISIONS = {"fp32": DataType.FP32, "fp16": DataType.FP16}
# An item's bias follows its vector in the same table row: one lookup returns both, and the score is one dot product
# with a hidden state that ends in a 1. fbgemm needs widths in multiples of 4, so three more columns stay zero.
BIAS_COLUMNS = 4


class GradientRoute(NamedTuple):
    """The route of the ids of a lookup, which the gradients of its vectors take back.

    - `rows`: the requested rows of this process's shard, counted from its first row, in the order of the processes.
    - `places` [N]: the index of each of this process's N ids among the ids that it has sent.
    - `sent` and `received`: the number of ids to and from each process.

    If one process holds the whole table, only `rows` is set.
    """

    rows: Tensor
    places: Tensor | None = None
    sent: Sequence[int] = ()
    received: Sequence[int] = ()


@dataclass
class _Open:
    """An exchange in progress of the ids in `lookups`, with the awaitables of `counts`, then of `ids`."""

    lookups: Mapping[str, Lookup]
    context: Any
    counts: Any
    ids: Any = None

    def is_of(self, lookups: Mapping[str, Lookup]) -> bool:
        """Return whether the exchange is of these same tensor objects."""
        own = self.lookups
        return own.keys() == lookups.keys() and all(own[name].ids is lookups[name].ids for name in lookups)

    def send(self) -> None:
        """Send the ids, unless they are sent already."""
        if self.ids is None:
            self.ids = self.counts.wait()


class IdExchange:
    """Looks up rows of TorchRec's sharded `collection` over `n_processes`; every process makes the same calls.

    A lookup can begin while the previous one is still in progress. On CUDA this uses a separate stream: waiting for the
    counts must not wait for the computation queued on the device.
    """

    def __init__(self, collection: Any, n_processes: int, device: torch.device) -> None:
        self._collection, self._n_processes = collection, n_processes
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._open: list[_Open] = []

    def begin(self, lookups: Mapping[str, Lookup], names: list[str], arrived: Any = None) -> None:
        """Send each process the number of ids of `lookups` for it; `names` are the table's features.

        `arrived` is the event after which a GPU has the ids.
        """
        assert len(self._open) < 2, "a lookup that was begun has not come"
        if self._stream is not None:
            self._stream.wait_event(arrived)  # not for the step before, which is still in progress
            for lookup in lookups.values():  # else the next batch could reuse their memory while they are sent
                lookup.ids.record_stream(self._stream)
                lookup.lengths.record_stream(self._stream)
        with self._on_stream():
            self._open.append(self._start(lookups, names))

    def send(self) -> None:
        """Wait for the counts of the lookups in progress, and send their ids."""
        with self._on_stream():
            for exchange in self._open:
                exchange.send()

    def discard(self) -> None:
        """Complete and discard the exchanges in progress, whose lookups are not called."""
        while self._open:
            self._receive(self._open.pop(0))

    def look_up(
        self, lookups: Mapping[str, Lookup], names: list[str]
    ) -> tuple[dict[str, Tensor], Callable[[], GradientRoute]]:
        """Return the vectors [U, d] of each feature, and a function that returns their route in a row-wise table."""
        if self._open and self._open[0].is_of(lookups):
            exchange = self._open.pop(0)
            received = self._receive(exchange)
        else:
            exchange = self._start(lookups, names)
            received = exchange.counts.wait().wait()
        vectors = self._collection.compute_and_output_dist(exchange.context, received)
        vectors_by_feature = {name: jagged.values() for name, jagged in vectors.items()}
        return vectors_by_feature, partial(self._route, exchange.context, received, n_lookups=len(lookups))

    def _route(self, context: Any, received: Any, *, n_lookups: int) -> GradientRoute:
        (sharding,), (features,) = context.sharding_contexts, received
        rows, n_features = features.values(), len(features.keys())
        if n_lookups > 1:  # rows are ordered by feature, then by process; gradients arrive by process
            counts = features.lengths().view(n_features, self._n_processes, ID_ROWS).sum(2).flatten().tolist()
            parts = rows.split(counts)
            rows = torch.cat([part for rank in range(self._n_processes) for part in parts[rank :: self._n_processes]])
        places = sharding.unbucketize_permute_tensor.long()
        return GradientRoute(rows, places, sent=sharding.input_splits, received=sharding.output_splits)

    def _start(self, lookups: Mapping[str, Lookup], names: list[str]) -> _Open:
        context = self._collection.create_context()
        return _Open(lookups, context, self._collection.input_dist(context, features(lookups, names)))

    def _receive(self, exchange: _Open) -> Any:
        """Return the received ids, ready for the current stream."""
        with self._on_stream():
            exchange.send()
            received = exchange.ids.wait()
        if self._stream is not None:
            current = torch.cuda.current_stream(self._stream.device)
            current.wait_stream(self._stream)
            for value in (received, exchange.context):
                value.record_stream(current)  # else the next lookup could reuse its memory while it is read
        return received

    def _on_stream(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)


def features(lookups: Mapping[str, Lookup], names: list[str]) -> KeyedJaggedTensor:
    """Return the ids of the features `names` in TorchRec's format; a feature without a lookup has no ids."""
    nothing = Lookup.of(next(iter(lookups.values())).ids[:0])
    parts = [lookups.get(name, nothing) for name in names]
    values, lengths = torch.cat([part.ids for part in parts]), torch.cat([part.lengths for part in parts])
    n_ids = [len(part.ids) for part in parts]  # TorchRec would ask the device for it
    return KeyedJaggedTensor(names, values, lengths=lengths, length_per_key=n_ids)


class DenseShard:
    """This process's rows of a table with row-wise sharding, trained as an ordinary parameter.

    `weight` [rows, d], from row `first` on, is a parameter that shares its memory with TorchRec's. Its gradient is
    averaged over the processes, as in DistributedDataParallel and TorchRec, and is sent in the dtype `message`.
    """

    def __init__(
        self, weight: Tensor, *, first: int, partition: Partition, message: torch.dtype = torch.float32
    ) -> None:
        self.weight, self.first = nn.Parameter(weight.detach()), first
        self._partition, self._message = partition, message
        self._gradient: Tensor | None = None  # memory as large as the shard, reused at each step

    def connect(self, vectors: Tensor, route: GradientRoute) -> Tensor:
        """Return the `vectors` [N, d] of a lookup as a leaf; their gradients are sent by `route` to the row owners."""
        vectors = vectors.detach().requires_grad_()
        vectors.register_hook(lambda gradient: self.scatter_gradients(gradient, route))
        return vectors

    def scatter_gradients(self, gradient: Tensor, route: GradientRoute) -> None:
        """Send each row's gradient to the process that holds it; every process calls this."""
        if route.places is not None:
            sent = torch.empty_like(gradient, dtype=self._message)
            sent.index_copy_(0, route.places, gradient.to(self._message))
            arrived = sent.new_empty(len(route.rows), gradient.shape[1])
            dist.all_to_all_single(arrived, sent, list(route.received), list(route.sent), group=self._partition.group)
            gradient = arrived.to(gradient.dtype)
        if self.weight.grad is None:
            self._gradient = torch.zeros_like(self.weight) if self._gradient is None else self._gradient.zero_()
            self.weight.grad = self._gradient
        self.weight.grad.index_add_(0, route.rows, gradient, alpha=1 / self._partition.n_processes)


class Table(nn.Module):
    """A table of `n_rows` vectors [width], looked up by `features`.

    Initialization draws the first `n_initialized` columns; the rest are zero. The model holds the table `name` as its
    attribute `<name>_table`, or the item table as that of a feature, which determines its name in checkpoints.
    """

    def __init__(
        self, name: str, *, n_rows: int, width: int, features: Sequence[str], n_initialized: int | None = None,
        device: torch.device | str = "meta",
    ) -> None:  # fmt: skip
        super().__init__()
        self.config = EmbeddingConfig(
            name=name, num_embeddings=n_rows, embedding_dim=width, feature_names=list(features)
        )
        self.n_initialized = n_initialized or width
        self.collection = EmbeddingCollection(tables=[self.config], device=torch.device(device))
        # Set from outside if several processes hold the rows, or if backward updates them:
        self.partition = Partition()  # over the processes that share one copy of the rows
        self.replicas = Partition()  # over the processes that hold the same rows
        self.world = Partition()  # over all processes, also if each group of processes has a copy
        self.exchange: IdExchange | None = None  # if processes look up rows of each other
        self.kernel: Kernel | None = None  # fbgemm's, if this process holds all rows of a sharded table
        self.dense_shard: DenseShard | None = None  # if an ordinary optimizer updates this process's rows

    @property
    def weight(self) -> nn.Parameter:
        """Return this process's rows [n, width] as a parameter of an ordinary optimizer."""
        if self.dense_shard is not None:
            return self.dense_shard.weight
        (weight,) = self.collection.parameters()
        return weight

    def look_up(self, lookups: Mapping[str, Lookup]) -> dict[str, Tensor]:
        """Return the vectors [U, width] of each feature's ids, in one round of messages; absent features have none.

        The ids of a feature must be distinct: all of them travel between processes.
        """
        if self.dense_shard is not None and torch.is_grad_enabled():
            with torch.no_grad():
                by_feature, route = self._find(lookups)
            names = self.config.feature_names
            vectors = self.dense_shard.connect(torch.cat([by_feature[name] for name in names]), route())
            return dict(zip(names, vectors.split([len(by_feature[name]) for name in names]), strict=True))
        return self._find(lookups)[0]

    def begin(self, lookups: Mapping[str, Lookup], arrived: Any = None) -> None:
        """Begin the exchange for a later lookup of these same id tensors, which the device has after `arrived`."""
        if self.exchange is not None:
            self.exchange.begin(lookups, self.config.feature_names, arrived)

    def _find(self, lookups: Mapping[str, Lookup]) -> tuple[dict[str, Tensor], Callable[[], GradientRoute]]:
        """Return the vectors of each feature, and a function that returns the route of their gradients."""
        names = self.config.feature_names
        if self.exchange is not None:
            return self.exchange.look_up(lookups, names)
        ids = features(lookups, names)
        if self.kernel is not None:  # TorchRec would exchange ids, and wait for the device several times
            rows = self.kernel(indices=ids.values(), offsets=ids.offsets())
            return dict(zip(names, rows.split(ids.length_per_key()), strict=True)), lambda: GradientRoute(ids.values())
        vectors = {name: jagged.values() for name, jagged in self.collection(ids).items()}
        return vectors, lambda: GradientRoute(ids.values())  # one process holds all rows


class CataloguePart(NamedTuple):
    """This process's part of the catalogue: `vectors` [V, D] of items from `first` on, counted from 0.

    `is_averaged`: whether the loss must divide the gradient of the vectors by the number of processes, as is done with
    the gradients of replicated tables.
    """

    vectors: Tensor
    first: int
    is_averaged: bool


class ItemTable(Table):
    """The vectors [d] of `n_items` items as inputs, and their vectors with biases [D] as candidates.

    With `head` "tied", the candidates are rows of the same table; with "linear", those of a separate layer. D is d,
    plus the columns of the bias with `output_bias`. The id of an item is its row. `features` add what else is known of
    an item to all of its vectors; those with many values have tables of their own.
    """

    def __init__(
        self, n_items: int, embed_dim: int, *, head: str, output_bias: bool, features: FeatureSettings | None = None,
        device: torch.device | str = "meta",
    ) -> None:  # fmt: skip
        tied = head == "tied"
        width = embed_dim + (BIAS_COLUMNS if tied else 1) * output_bias
        super().__init__(
            "item", n_rows=n_items, width=width if tied else embed_dim,
            features=[ITEM, CANDIDATE] if tied else [ITEM], n_initialized=embed_dim, device=device,
        )  # fmt: skip
        self.n_items, self.embed_dim, self.width = n_items, embed_dim, width
        self.head = None if tied else nn.Linear(embed_dim, n_items, output_bias, device)
        self.features: FeatureEncoder | None = None
        if features is not None:
            self.features = FeatureEncoder(features, embed_dim, device)
            for name, bag in features.sizes.tables.items():
                names = [f"{name}_{role}" for role in LOOKUPS]
                self.features.tables[name] = Table(
                    name, n_rows=bag.n_values, width=embed_dim, features=names, device=device
                )

    def lookups(self, items: Lookup | None = None, candidates: Lookup | None = None) -> dict[str, Lookup]:
        """Return the lookups of `items` and, unless they are scored by a separate layer, of `candidates`."""
        lookups = {} if items is None else {ITEM: items}
        return lookups | ({CANDIDATE: candidates} if candidates is not None and self.head is None else {})

    def all_lookups(self, items: Lookup | None, candidates: Lookup | None) -> list[tuple[Table, dict[str, Lookup]]]:
        """Return the same lookups with their table, and those of the values of features in tables.

        Without `candidates` the latter are left out: they are combined with those of a part of the catalogue.
        """
        lookups = self.lookups(items, candidates)
        value_lookups = [] if self.features is None or candidates is None else self.features.lookups(lookups)
        return [(self, lookups), *value_lookups]

    def look_up_items(self, items: Lookup, candidates: Lookup) -> tuple[Tensor, Tensor]:
        """Return the vectors [U, d] of the `items` of sequences, and [C, D] of the `candidates`.

        Both share one lookup, since a lookup in a sharded table is a round of messages.
        """
        vectors = self._with_features(self.lookups(items, candidates))
        return vectors[ITEM], vectors[CANDIDATE] if self.head is None else self._head_vectors(candidates.ids)

    def look_up_catalogue(self, items: Lookup) -> tuple[Tensor, CataloguePart]:
        """Return the vectors [U, d] of `items`, and this process's part of the catalogue: its shard or an even part."""
        vectors, part = self._find_catalogue(self.lookups(items), items.ids.device)
        return vectors[ITEM], part

    def catalogue(self, device: torch.device) -> CataloguePart:
        """Return this process's part of the catalogue: its shard or an even part."""
        return self._find_catalogue({}, device)[1]

    def candidates(self, items: Lookup) -> Tensor:
        """Return the vectors [C, D] of the `items` as candidates."""
        if self.head is not None:
            return self._head_vectors(items.ids)
        return self._with_features({CANDIDATE: items})[CANDIDATE]

    @torch.no_grad()
    def align_cold_items(self, device: torch.device) -> None:
        """Set the length of the vectors of cold items in rankings; every process makes the same call."""
        if self.features is not None:
            items = Lookup.of(torch.arange(min(self.n_items, SAMPLED_ITEMS), device=device))
            self.features.align_cold_items(self.look_up({CANDIDATE: items})[CANDIDATE])

    def _with_features(self, lookups: Mapping[str, Lookup]) -> dict[str, Tensor]:
        """Return the vectors of each lookup."""
        rows = self._rows(lookups)
        return rows if self.features is None else self.features(rows, lookups)

    def _find_catalogue(
        self, lookups: dict[str, Lookup], device: torch.device
    ) -> tuple[dict[str, Tensor], CataloguePart]:
        """Return the vectors of the `lookups` of inputs, and this process's part of the catalogue."""
        shard = self.dense_shard if self.head is None else None
        part: Tensor
        if shard is not None:
            part, first, divisor = shard.weight, shard.first, self.partition.n_processes
            rows = self._rows(lookups)
        else:
            share = self.partition.of(self.n_items)
            ids, first, divisor = torch.arange(share.start, share.stop, device=device), share.start, 1
            rows = self._rows(lookups | self.lookups(candidates=Lookup.of(ids)))
            part = rows.pop(CANDIDATE) if self.head is None else self._head_vectors(ids)
        if self.features is None:
            return rows, CataloguePart(part, first, is_averaged=shard is not None)
        part, vectors = self.features.catalogue(part, first, divisor, rows, lookups)
        return vectors, CataloguePart(part, first, is_averaged=False)

    def _rows(self, lookups: Mapping[str, Lookup]) -> dict[str, Tensor]:
        """Return the rows of each lookup: inputs without the columns of the bias."""
        rows = self.look_up(lookups) if lookups else {}
        return {name: vectors[:, : self.embed_dim] if name == ITEM else vectors for name, vectors in rows.items()}

    def _head_vectors(self, ids: Tensor) -> Tensor:
        assert self.head is not None
        vectors = self.head.weight.index_select(0, ids)
        if self.width == self.embed_dim:
            return vectors
        return torch.cat([vectors, self.head.bias.index_select(0, ids)[:, None]], dim=1)


def set_precision(tables: Iterable[Table], precision: str) -> None:
    """Set the `precision` of the rows, "fp32" or "fp16", of `tables` before allocation; looked-up vectors are fp32."""
    for table in tables:
        table.config = replace(table.config, data_type=PRECISIONS[precision])
        table.collection = EmbeddingCollection(tables=[table.config], device=torch.device("meta"))


def is_of_table(name: str) -> bool:
    """Return whether the parameter `name` of a model is a table that can be sharded.

    >>> is_of_table("item_table.collection.embeddings.item.weight"), is_of_table("item_table.head.weight")
    (True, False)
    """
    return ".collection." in name


def saved_name(name: str) -> str:
    """Return a parameter's name in checkpoints and initialization seeds, without wrapper modules.

    >>> saved_name("item_table.collection.embeddings.item.weight"), saved_name("item_table.head.bias")
    ('item_table.embeddings.item.weight', 'head.bias')
    """
    name = name.replace(".collection.", ".")
    return name.replace("item_table.head.", "head.").replace("item_table.features.", "features.")
