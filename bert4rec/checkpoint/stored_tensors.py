"""Read the tensors of a checkpoint in one process, without a process group, whole or block by block."""

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

MODEL_PREFIX = "model."  # prefix of the weights to evaluate, export and recommend with
LATEST = "latest."  # prefix of the weights after the last step, if the model is a moving average


DTYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.float64: "F64",
          torch.int32: "I32", torch.int64: "I64"}  # fmt: skip
HEADER_ALIGNMENT = 8  # bytes, for the start of the numbers


def safetensors_header(tensors: Mapping[str, tuple[torch.dtype, Sequence[int]]]) -> tuple[bytes, dict[str, int]]:
    """Return the first bytes of a safetensors file, and where the numbers of each of the `tensors` begin.

    The last entry, "", is the size of the file.
    """
    entries, places, end = {}, {}, 0
    for name, (dtype, shape) in tensors.items():
        places[name], begin, end = end, end, end + math.prod(shape) * dtype.itemsize
        entries[name] = {"dtype": DTYPES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps({"__metadata__": {"format": "pt"}, **entries}).encode()
    text += b" " * (-len(text) % HEADER_ALIGNMENT)
    header = len(text).to_bytes(8, "little") + text
    return header, {name: len(header) + place for name, place in (places | {"": end}).items()}


class StoredTensors:
    """Read the tensors of a verified checkpoint `folder` by name; any world size may have written them."""

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
        """Return the dtype in which the tensor is read: float16 becomes float32, without loss."""
        stored = self._stored[name].properties.dtype
        return torch.float32 if stored == torch.float16 else stored

    def read(self, name: str) -> Tensor:
        """Return the whole tensor."""
        return self._rows(name, 0, self.shape(name)[0])

    def first_rows(self, name: str, n: int) -> Tensor:
        """Return the first `n` rows of the tensor, or all if it has fewer."""
        return self._rows(name, 0, min(n, self.shape(name)[0]))

    def blocks(self, name: str) -> Iterator[Tensor]:
        """Yield the tensor's rows in order, in the blocks as written: some MB each if it was sharded."""
        chunks = self._stored[name].chunks
        bounds = {bound for chunk in chunks for bound in (chunk.offsets[0], chunk.offsets[0] + chunk.sizes[0])}
        return (self._rows(name, first, last) for first, last in itertools.pairwise(sorted(bounds)))

    def _rows(self, name: str, first: int, last: int) -> Tensor:
        rows = torch.empty(last - first, *self.shape(name)[1:], dtype=self.dtype(name))
        offsets = torch.Size([first, *(0 for _ in rows.shape[1:])])
        chunks = [ChunkStorageMetadata(offsets=offsets, sizes=rows.shape)]
        plan = LoadPlan(create_read_items_for_chunk_list(name, self._stored[name], chunks))
        self._reader.read_data(plan, _Into(rows)).wait()
        return rows


class _Into(dcp.DefaultLoadPlanner):
    """Read everything into one block."""

    def __init__(self, block: Tensor) -> None:
        super().__init__()
        self._block = block

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        return self._block
