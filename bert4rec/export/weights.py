"""Weights as safetensors, from a checkpoint, a block of rows at a time.

The safetensors library writes what is in memory; the form is simple enough to be written as it is read: the length of
the header (8 bytes), the header in JSON, then the numbers (https://huggingface.co/docs/safetensors).
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from bert4rec.checkpoint.stored_tensors import StoredTensors

DTYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
ALIGNMENT = 8  # of the numbers, in bytes


def write_safetensors(path: Path, stored: StoredTensors, names: Mapping[str, str]) -> None:
    """Write the tensors that `names` has as keys, under the names that it gives them."""
    header, end = {}, 0
    for name, written in names.items():
        shape, dtype = stored.shape(name), stored.dtype(name)
        begin, end = end, end + math.prod(shape) * dtype.itemsize
        header[written] = {"dtype": DTYPES[dtype], "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name in names:
            for block in stored.blocks(name):
                file.write(bytes_of(block))


def bytes_of(block: Tensor) -> memoryview:
    """Return the bytes of a tensor."""
    return block.contiguous().flatten().view(torch.uint8).numpy().data
