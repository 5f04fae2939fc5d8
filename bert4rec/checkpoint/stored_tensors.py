"""The tensors of a checkpoint on one process, without a process group, and without all of a table in memory."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

MODEL = "model."  # how the names of a model's tensors begin: those that are tested, exported and recommended with
LATEST = "latest."  # the same of the weights after the last step, where the model is a mean of many steps


class StoredTensors:
    """The tensors of a verified checkpoint `folder`, by name, whatever number of processes has written them."""

    def __init__(self, folder: Path) -> None:
        self._reader = dcp.FileSystemReader(folder)
        metadata = self._reader.read_metadata()
        self._reader.set_up_storage_reader(metadata, is_coordinator=True)
        entries = metadata.state_dict_metadata.items()
        self._stored = {name: entry for name, entry in entries if isinstance(entry, TensorStorageMetadata)}

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of the whole tensor."""
        return tuple(self._stored[name].size)

    def dtype(self, name: str) -> torch.dtype:
        """Return the type of its numbers as they are read: half precision becomes float32, without loss."""
        stored = self._stored[name].properties.dtype
        return torch.float32 if stored == torch.float16 else stored

    def read(self, name: str) -> Tensor:
        """Read the whole tensor."""
        whole = torch.empty(self.shape(name), dtype=self.dtype(name))
        for first, last in self._blocks(name):
            self._read_into(whole[first:last], name, first)
        return whole

    def blocks(self, name: str) -> Iterator[Tensor]:
        """Yield its rows in order, in blocks as they were written: some MB each if it was sharded."""
        for first, last in self._blocks(name):
            block = torch.empty(last - first, *self.shape(name)[1:], dtype=self.dtype(name))
            self._read_into(block, name, first)
            yield block

    def _blocks(self, name: str) -> Iterator[tuple[int, int]]:
        chunks = self._stored[name].chunks
        bounds = {bound for chunk in chunks for bound in (chunk.offsets[0], chunk.offsets[0] + chunk.sizes[0])}
        return itertools.pairwise(sorted(bounds))

    def _read_into(self, block: Tensor, name: str, first: int) -> None:
        offsets = torch.Size([first, *(0 for _ in block.shape[1:])])
        asked = [ChunkStorageMetadata(offsets=offsets, sizes=block.shape)]
        plan = LoadPlan(create_read_items_for_chunk_list(name, self._stored[name], asked))
        self._reader.read_data(plan, _Into(block)).wait()


class _Into(dcp.DefaultLoadPlanner):
    """Reads everything into one block."""

    def __init__(self, block: Tensor) -> None:
        super().__init__()
        self._block = block

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        return self._block
