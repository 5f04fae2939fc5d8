"""Tables of vectors by id, which can be sharded: lookups, and the ways of gradients to the rows; the item table."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchrec.modules.embedding_configs import DataType, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from bert4rec.feed.batch import ID_ROWS, Lookup
from bert4rec.runtime.collectives import Partition


class GradientRoute(NamedTuple):
    """The way that ids took in a lookup, which the gradients of its vectors go back.

    `rows` of this process's shard, counted from its first: those that it was asked for, process after process.
    `places` [N]: where each of this process's N ids stands among those that it has sent. `sent` and `received`: how
    many to and from each process. All but the rows is left out where one process holds the whole table.
    """

    rows: Tensor
    places: Tensor | None = None
    sent: Sequence[int] = ()
    received: Sequence[int] = ()


@dataclass
class _Open:
    """An exchange that has begun: of the ids in `lookups`; `counts`, then `ids`, are what is waited for."""

    lookups: Mapping[str, Lookup]
    context: Any
    counts: Any
    ids: Any = None

    def is_of(self, lookups: Mapping[str, Lookup]) -> bool:
        """Return whether the exchange is of these very tensors."""
        mine = self.lookups
        return mine.keys() == lookups.keys() and all(mine[name].ids is lookups[name].ids for name in lookups)

    def send(self) -> None:
        """Send the ids, if they are not on their way."""
        if self.ids is None:
            self.ids = self.counts.wait()


class IdExchange:
    """Looks up rows of `collection`, TorchRec's sharded one, over `n_processes`; every process makes the same calls.

    A lookup can be begun before its turn, while the one before it is still to come. On CUDA that happens on a stream of
    its own, so that to wait for counts is not to wait for what the device was given to compute.
    """

    def __init__(self, collection: Any, n_processes: int, device: torch.device) -> None:
        self._collection, self._n_processes = collection, n_processes
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._open: list[_Open] = []

    def __len__(self) -> int:
        """Return the number of lookups that were begun and have not arrived."""
        return len(self._open)

    def begin(self, lookups: Mapping[str, Lookup], names: list[str]) -> None:
        """Tell the others how many ids of the `lookups` come to them; `names` are the table's features."""
        assert len(self._open) < 2, "a lookup that was begun has not come"
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with self._beside():
            self._open.append(self._begun(lookups, names))

    def send(self) -> None:
        """Send the ids of what was begun; waits for the counts."""
        with self._beside():
            for begun in self._open:
                begun.send()

    def discard(self) -> None:
        """End what was begun, whose lookup does not come."""
        while self._open:
            self._received(self._open.pop(0))

    def look_up(
        self, lookups: Mapping[str, Lookup], names: list[str]
    ) -> tuple[dict[str, Tensor], Callable[[], GradientRoute]]:
        """Return the vectors [U, d] of each feature; and what makes their gradients' way back, in a row-wise table."""
        if self._open and self._open[0].is_of(lookups):
            found = self._open.pop(0)
            received = self._received(found)
        else:
            found = self._begun(lookups, names)
            received = found.counts.wait().wait()
        vectors = self._collection.compute_and_output_dist(found.context, received)
        of_features = {name: jagged.values() for name, jagged in vectors.items()}
        return of_features, partial(self._route, found.context, received)

    def _route(self, context: Any, received: Any) -> GradientRoute:
        (sharding,), (features,) = context.sharding_contexts, received
        rows, n_features = features.values(), len(features.keys())
        if n_features > 1:  # by feature, then by process; gradients come by process
            counts = features.lengths().view(n_features, self._n_processes, ID_ROWS).sum(2).flatten().tolist()
            parts = rows.split(counts)
            rows = torch.cat([part for rank in range(self._n_processes) for part in parts[rank :: self._n_processes]])
        places = sharding.unbucketize_permute_tensor.long()
        return GradientRoute(rows, places, sent=sharding.input_splits, received=sharding.output_splits)

    def _begun(self, lookups: Mapping[str, Lookup], names: list[str]) -> _Open:
        context = self._collection.create_context()
        return _Open(lookups, context, self._collection.input_dist(context, features(lookups, names)))

    def _received(self, found: _Open) -> Any:
        """Return the ids that have arrived, for the stream that computes."""
        with self._beside():
            found.send()
            received = found.ids.wait()
        if self._stream is not None:
            current = torch.cuda.current_stream(self._stream.device)
            current.wait_stream(self._stream)
            for made_beside in (received, found.context):
                made_beside.record_stream(current)  # else its memory would be given to the next lookup while it is read
        return received

    def _beside(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)


def features(lookups: Mapping[str, Lookup], names: list[str]) -> KeyedJaggedTensor:
    """Return the ids of the features `names`, as TorchRec takes them; a feature that is left out has none."""
    nothing = Lookup.of(next(iter(lookups.values())).ids[:0])
    parts = [lookups.get(name, nothing) for name in names]
    values, lengths = torch.cat([part.ids for part in parts]), torch.cat([part.lengths for part in parts])
    return KeyedJaggedTensor(names, values, lengths=lengths)


class DeferredUpdate:
    """The looked-up vectors of one step, with the leaves at which their gradients arrive."""

    def __init__(self) -> None:
        self._pairs: list[tuple[Tensor, Tensor]] = []

    def defer(self, vectors: Tensor) -> Tensor:
        """Return `vectors` as a leaf of its own graph, at which backward ends."""
        if not vectors.requires_grad:
            return vectors
        leaf = vectors.detach().requires_grad_()
        self._pairs.append((vectors, leaf))
        return leaf

    def gradients(self) -> list[Tensor]:
        """Return the gradients of all vectors that a loss depends on."""
        return [leaf.grad for _, leaf in self._pairs if leaf.grad is not None]

    def apply(self) -> None:
        """Continue backward, into the table."""
        arrived = [(vectors, leaf.grad) for vectors, leaf in self._pairs if leaf.grad is not None]
        self.discard()
        torch.autograd.backward([vectors for vectors, _ in arrived], [gradient for _, gradient in arrived])

    def discard(self) -> None:
        """Discard the gradients before they reach the table."""
        self._pairs.clear()


class DenseShard:
    """Rows of a table that this process holds, row-wise.

    `weight` [rows, d], of the rows `first` …, is a parameter that shares its memory with TorchRec's. Its gradient comes
    averaged over the processes, as DistributedDataParallel and TorchRec's own do, in messages of type `message`.
    """

    def __init__(
        self, weight: Tensor, *, first: int, partition: Partition, message: torch.dtype = torch.float32
    ) -> None:
        self.weight, self.first = nn.Parameter(weight.detach()), first
        self._partition, self._message = partition, message
        self._gradient: Tensor | None = None  # memory as large as the shard, which is not to be found anew each step

    def connect(self, vectors: Tensor, route: GradientRoute) -> Tensor:
        """Return `vectors` [N, d] of a lookup by `route`, whose gradients go to the owners of their rows."""
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


PRECISIONS = {"fp32": DataType.FP32, "fp16": DataType.FP16}


class Table(nn.Module):
    """`n_rows` vectors [width], looked up by `features`, of which a start gives values to the first `n_initialized`.

    A model has the table `name` as its attribute `<name>_table`: by that its rows are found and called in checkpoints.
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
        # Set from outside, where the rows are on several processes or are updated in backward:
        self.partition = Partition()  # over the processes that hold the rows
        self.replicas = Partition()  # over those that hold the same rows
        self.world = Partition()  # over all of them: more, where groups of processes hold a copy each
        self.exchange: IdExchange | None = None  # where processes hold rows that others look up
        self.dense_shard: DenseShard | None = None  # trained as an ordinary parameter
        self.deferred: DeferredUpdate | None = None  # where gradients are to be looked at first

    @property
    def weight(self) -> nn.Parameter:
        """Return the rows that this process holds, where an ordinary optimizer updates them, [n, width]."""
        if self.dense_shard is not None:
            return self.dense_shard.weight
        (weight,) = self.collection.parameters()
        return weight

    def look_up(self, lookups: Mapping[str, Lookup]) -> dict[str, Tensor]:
        """Return the vectors [U, width] of each feature's ids, in one round of messages; absent features have none.

        To be called with the ids of a feature once each: what is left of them travels between processes.
        """
        if self.dense_shard is not None and torch.is_grad_enabled():
            with torch.no_grad():
                found, route = self._find(lookups)
            names = self.config.feature_names
            vectors = self.dense_shard.connect(torch.cat([found[name] for name in names]), route())
            return dict(zip(names, vectors.split([len(found[name]) for name in names]), strict=True))
        found, _ = self._find(lookups)
        return {name: self.deferred.defer(vectors) for name, vectors in found.items()} if self.deferred else found

    def begin(self, lookups: Mapping[str, Lookup]) -> None:
        """Begin a lookup that is to come, of these very ids, with what other processes have to know for it."""
        if self.exchange is not None:
            self.exchange.begin(lookups, self.config.feature_names)

    def _find(self, lookups: Mapping[str, Lookup]) -> tuple[dict[str, Tensor], Callable[[], GradientRoute]]:
        """Return the vectors of each feature, and what makes the way back of their gradients to a dense shard."""
        names = self.config.feature_names
        if self.exchange is not None:
            return self.exchange.look_up(lookups, names)
        asked = features(lookups, names)
        found = {name: jagged.values() for name, jagged in self.collection(asked).items()}
        return found, lambda: GradientRoute(asked.values())  # one process holds all rows


# An item's bias stands behind its vector, in the same row of the same table: one lookup brings both, and the score is
# one product with a hidden state that ends in a 1. fbgemm wants widths in multiples of 4, so three columns stay zero.
BIAS_COLUMNS = 4


class CataloguePart(NamedTuple):
    """Hold this process's part of the catalogue: `vectors` [V, D] of items from `first` on, counted from 0.

    `is_averaged`: whether the gradient of the vectors is to be divided by the number of processes, as is done elsewhere
    with replicated ones.
    """

    vectors: Tensor
    first: int
    is_averaged: bool


class ItemTable(Table):
    """Vectors [d] of `n_items` items for sequences, and vectors [D] with their biases for scores.

    `head` "tied" scores through the candidate feature of the table itself, "linear" through a layer of its own; D is d
    and, where there is a bias, its columns. An item's id is its row.
    """

    def __init__(
        self, n_items: int, embed_dim: int, *, head: str, output_bias: bool, device: torch.device | str = "meta"
    ) -> None:
        tied = head == "tied"
        width = embed_dim + (BIAS_COLUMNS if tied else 1) * output_bias
        super().__init__(
            "item", n_rows=n_items, width=width if tied else embed_dim,
            features=["item", "candidate"] if tied else ["item"], n_initialized=embed_dim, device=device,
        )  # fmt: skip
        self.n_items, self.embed_dim, self.width = n_items, embed_dim, width
        self.head = None if tied else nn.Linear(embed_dim, n_items, output_bias, device)

    def lookups(self, items: Lookup, candidates: Lookup | None = None) -> dict[str, Lookup]:
        """Return the ids of `look_up_items`; without `candidates` those of `look_up_catalogue` for a shard."""
        return {"item": items} | ({"candidate": candidates} if candidates is not None and self.head is None else {})

    def look_up_items(self, items: Lookup, candidates: Lookup) -> tuple[Tensor, Tensor]:
        """Return vectors [U, d] of the `items` of sequences, and [C, D] of the `candidates`.

        One lookup serves both: on a sharded table each is a round of messages.
        """
        found = self.look_up(self.lookups(items, candidates))
        vectors = found["item"][:, : self.embed_dim]
        return vectors, found["candidate"] if self.head is None else self._of_head(candidates.ids)

    def look_up_catalogue(self, items: Lookup) -> tuple[Tensor, CataloguePart]:
        """Return vectors of `items`, and this process's part of the catalogue: its shard, or else an even part."""
        if self.dense_shard is not None and self.head is None:
            found = self.look_up(self.lookups(items))["item"]
            return found[:, : self.embed_dim], self._own_rows(self.dense_shard)
        share = self.partition.of(self.n_items)
        ids = torch.arange(share.start, share.stop, device=items.ids.device)
        vectors, candidates = self.look_up_items(items, Lookup.of(ids))
        return vectors, CataloguePart(candidates, share.start, is_averaged=False)

    def catalogue(self, device: torch.device) -> CataloguePart:
        """Return this process's part of the catalogue alone."""
        if self.dense_shard is not None and self.head is None:
            return self._own_rows(self.dense_shard)
        share = self.partition.of(self.n_items)
        ids = torch.arange(share.start, share.stop, device=device)
        return CataloguePart(self.candidates(Lookup.of(ids)), share.start, is_averaged=False)

    def _own_rows(self, shard: DenseShard) -> CataloguePart:
        return CataloguePart(shard.weight, shard.first, is_averaged=True)

    def candidates(self, items: Lookup) -> Tensor:
        """Return vectors [C, D] of the `items`."""
        return self.look_up({"candidate": items})["candidate"] if self.head is None else self._of_head(items.ids)

    def _of_head(self, ids: Tensor) -> Tensor:
        assert self.head is not None
        vectors = self.head.weight.index_select(0, ids)
        if self.width == self.embed_dim:
            return vectors
        return torch.cat([vectors, self.head.bias.index_select(0, ids)[:, None]], dim=1)


def set_precision(tables: Iterable[Table], precision: str) -> None:
    """Let `tables`, of which nothing is allocated yet, have rows of "fp32" or "fp16"; vectors looked up are fp32."""
    for table in tables:
        table.config = replace(table.config, data_type=PRECISIONS[precision])
        table.collection = EmbeddingCollection(tables=[table.config], device=torch.device("meta"))


def is_of_table(name: str) -> bool:
    """Return whether a parameter of a model is a table, which can be sharded.

    >>> is_of_table("item_table.collection.embeddings.item.weight"), is_of_table("item_table.head.weight")
    (True, False)
    """
    return "_table.collection." in name


def saved_name(name: str) -> str:
    """Return a parameter's name in checkpoints and initialization seeds, without wrapper modules.

    >>> saved_name("item_table.collection.embeddings.item.weight"), saved_name("item_table.head.bias")
    ('item_table.embeddings.item.weight', 'head.bias')
    """
    return name.replace("_table.collection.", "_table.").replace("item_table.head.", "head.")
