"""A table of vectors by id, which can be sharded: its lookups, and the ways in which gradients reach its rows."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torchrec.modules.embedding_configs import DataType, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection

from bert4rec.feed.lookup import Lookup
from bert4rec.models.tables.deferred_update import DeferredUpdate
from bert4rec.models.tables.dense_shard import DenseShard, Route
from bert4rec.models.tables.id_exchange import IdExchange, features
from bert4rec.runtime.collectives import Partition

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
        self.copies = Partition()  # over those that hold the same rows
        self.everyone = Partition()  # over all of them: more, where groups of processes hold a copy each
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

    def _find(self, lookups: Mapping[str, Lookup]) -> tuple[dict[str, Tensor], Callable[[], Route]]:
        """Return the vectors of each feature, and what makes the way back of their gradients to a dense shard."""
        names = self.config.feature_names
        if self.exchange is not None:
            return self.exchange.look_up(lookups, names)
        asked = features(lookups, names)
        found = {name: jagged.values() for name, jagged in self.collection(asked).items()}
        return found, lambda: Route(asked.values())  # one process holds all rows


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
