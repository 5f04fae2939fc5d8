"""A table of vectors by id, which can be sharded: its lookups, and the ways in which gradients reach its rows."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from bert4rec.models.tables.deferred_update import DeferredUpdate
from bert4rec.models.tables.dense_shard import DenseShard
from bert4rec.runtime.collectives import Partition


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
        self.partition = Partition()  # over the processes
        self.dense_shard: DenseShard | None = None  # trained as an ordinary parameter
        self.deferred: DeferredUpdate | None = None  # where gradients are to be looked at first

    @property
    def weight(self) -> nn.Parameter:
        """The rows that this process holds, where an ordinary optimizer updates them, [n, width]."""
        if self.dense_shard is not None:
            return self.dense_shard.weight
        (weight,) = self.collection.parameters()
        return weight

    def look_up(self, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        """The vectors [N, width] of each feature's ids."""
        found = {name: jagged.values() for name, jagged in self.collection(features).items()}
        return {name: self.deferred.defer(vectors) for name, vectors in found.items()} if self.deferred else found


def is_of_table(name: str) -> bool:
    """Whether a parameter of a model is a table, which can be sharded.

    >>> is_of_table("item_table.collection.embeddings.item.weight"), is_of_table("item_table.head.weight")
    (True, False)
    """
    return "_table.collection." in name


def saved_name(name: str) -> str:
    """The name of a parameter in checkpoints and in the seed of its first values: without the modules that only wrap.

    >>> saved_name("item_table.collection.embeddings.item.weight"), saved_name("item_table.head.bias")
    ('item_table.embeddings.item.weight', 'head.bias')
    """
    return name.replace("_table.collection.", "_table.").replace("item_table.head.", "head.")
