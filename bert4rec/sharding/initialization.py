"""Initial weights that do not depend on who holds them.

TorchRec calls an `init_fn` on each shard: one seed on all ranks makes the shards identical, a seed per rank makes the
start depend on the number of processes. Here a table's values are a pure function of (seed, table, row), filled in
blocks of rows, each with a generator of its own; the dense part is drawn in a fixed order on the CPU.
"""

import math
import zlib

import torch
from torch import Tensor

from bert4rec.dataset.schema import MASK_ID
from bert4rec.models.names import MASK, TABLE
from bert4rec.models.ranking_model import RankingModel
from bert4rec.models.tables.table import Table, is_of_table, saved_name
from bert4rec.sharding.sharded_tensors import placed_parts

ROWS_PER_BLOCK = 4096
EMBEDDING_SCALE = 0.02  # standard deviation of item and position vectors, as in BERT (Devlin et al. 2019)
POSITIONS, TIMES = "encoder.positions.weight", ("encoder.gaps.weight", "encoder.dates.weight")


@torch.no_grad()
def initialize(model: RankingModel, seed: int) -> None:
    """Fill every weight of an allocated, perhaps sharded `model` as a pure function of `seed`."""
    for name, value in model.state_dict().items():
        if is_of_table(name):
            table = model.get_submodule(name.partition(".")[0])
            assert isinstance(table, Table)
            for part, row, column in placed_parts(value):
                _fill_rows(part, saved_name(name), row, column, table.n_initialized, seed)
        else:
            value.copy_(_dense_weight(saved_name(name), value, seed))


def initial_rows(name: str, first: int, n_rows: int, width: int, seed: int) -> Tensor:
    """Return the vectors of rows `first` … `first + n_rows` of table `name` at the start, [n_rows, width]."""
    blocks = range(first // ROWS_PER_BLOCK, (first + n_rows - 1) // ROWS_PER_BLOCK + 1)
    values = torch.cat([_normal((ROWS_PER_BLOCK, width), seed, name, block) for block in blocks])
    offset = first - blocks.start * ROWS_PER_BLOCK
    return values[offset : offset + n_rows] * EMBEDDING_SCALE


def _fill_rows(part: Tensor, name: str, row: int, column: int, width: int, seed: int) -> None:
    """Fill a shard that begins at (`row`, `column`), a block at a time: vectors `width` wide, zeros behind them."""
    for start in range(0, len(part), ROWS_PER_BLOCK):
        piece = part[start : start + ROWS_PER_BLOCK]
        vectors = initial_rows(name, row + start, len(piece), width, seed)[:, column : column + part.shape[1]]
        piece[:, : vectors.shape[1]] = vectors
        piece[:, vectors.shape[1] :] = 0


def _dense_weight(name: str, value: Tensor, seed: int) -> Tensor:
    if "norm.weight" in name:
        return torch.ones_like(value, device="cpu")
    if name.endswith("bias") or name in TIMES:
        return torch.zeros_like(value, device="cpu")
    if name == MASK:  # the numbers that its row of the table would have
        return initial_rows(TABLE, MASK_ID, 1, len(value), seed)[0]
    scale = EMBEDDING_SCALE if name == POSITIONS else math.sqrt(2 / sum(value.shape))
    return _normal(value.shape, seed, name, 0) * scale


def _normal(shape: tuple[int, ...] | torch.Size, seed: int, name: str, block: int) -> Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}/{name}/{block}".encode()) | seed << 32)
    return torch.randn(shape, generator=generator)
