"""The ids of a sharded table's lookup on their way between the processes, which can begin before the lookup.

TorchRec's lookup is three messages, each waited for: how many ids each process has for each other, the ids, their
vectors. Ids depend on no weight, so those of the next batch can travel while this one is trained.

TrainPipelineSparseDist does that within a step of its own (zero_grad, forward, backward, one optimizer's step);
SparseDataDistUtil replaces the `forward` of sharded modules, for callers that announce every batch. Here a step also
skips, defers and scales updates, and evaluations look up what nobody has announced. So here are the calls of which both
are made, in their order: the counts before forward, the ids before backward. With `fused_uvm_caching` rows are not
fetched ahead.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from bert4rec.feed.lookup import ID_ROWS, Lookup
from bert4rec.models.tables.dense_shard import Route


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

    def look_up(self, lookups: Mapping[str, Lookup], names: list[str]) -> tuple[dict[str, Tensor], Callable[[], Route]]:
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

    def _route(self, context: Any, received: Any) -> Route:
        (sharding,), (features,) = context.sharding_contexts, received
        rows, n_features = features.values(), len(features.keys())
        if n_features > 1:  # by feature, then by process; gradients come by process
            counts = features.lengths().view(n_features, self._n_processes, ID_ROWS).sum(2).flatten().tolist()
            parts = rows.split(counts)
            rows = torch.cat([part for rank in range(self._n_processes) for part in parts[rank :: self._n_processes]])
        places = sharding.unbucketize_permute_tensor.long()
        return Route(rows, places, sent=sharding.input_splits, received=sharding.output_splits)

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
