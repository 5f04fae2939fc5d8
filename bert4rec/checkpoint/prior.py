"""The file of a prior: the counted weights of all items, which the processes of a run write and read in parts."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from torch import Tensor

from bert4rec.checkpoint.stored_tensors import safetensors_header
from bert4rec.dataset.format import NO_ITEM
from bert4rec.models.prior import EVERYTHING, PRIOR_SOURCES, Prior, Source, Weights
from bert4rec.runtime.arrays import Float32s, Int32s
from bert4rec.runtime.collectives import Partition, gather_or_raise, on_rank_zero
from bert4rec.runtime.errors import DataError, RunInterruptedError, in_one_line

if TYPE_CHECKING:
    from bert4rec.models.prior_rows import Rows  # imports Arrow, which a model package does not need

ROW_IDS, ROW_VALUES, MASSES, BIAS = ".ids", ".values", ".masses", ".bias"
ROWS_AT_ONCE = 65_536


def write_prior(path: Path, parts: Mapping[str, Iterable[tuple[int, "Rows"]]], log_shares: Float32s, top: int) -> None:
    """Write the file `path`, all or nothing; every process gives its own `parts` of the rows of each source.

    `log_shares` [V] are the biases of logarithmic sources with masses. Raises `RunInterruptedError` on all processes.
    """
    n_items, shapes = len(log_shares), dict[str, tuple[torch.dtype, tuple[int, ...]]]()
    for name in parts:
        shapes[name + ROW_IDS] = torch.int32, (n_items, top)
        shapes[name + ROW_VALUES] = torch.float32, (n_items, top)
        if PRIOR_SOURCES[name].is_normalized:
            shapes[name + MASSES] = shapes[name + BIAS] = torch.float32, (n_items,)
    header, offsets = safetensors_header(shapes)
    unfinished = path.with_name(path.name + ".tmp")

    def begin() -> None:
        with unfinished.open("wb") as file:
            file.write(header)
            for name in parts:
                if PRIOR_SOURCES[name].is_normalized:
                    file.seek(offsets[name + BIAS])
                    file.write(log_shares.tobytes())
            file.truncate(offsets[""])

    def write_own() -> None:
        with unfinished.open("r+b") as file:
            for name, rows_of_source in parts.items():
                for first, rows in rows_of_source:
                    for suffix, values in ((ROW_IDS, rows.ids), (ROW_VALUES, rows.values), (MASSES, rows.masses)):
                        if values is not None:
                            file.seek(offsets[name + suffix] + first * values[0].nbytes)
                            file.write(np.ascontiguousarray(values).tobytes())

    def finish() -> None:
        unfinished.replace(path)

    on_rank_zero(lambda: _attempt(path, begin))
    gather_or_raise(lambda: _attempt(path, write_own))
    on_rank_zero(lambda: _attempt(path, finish))


def read_prior(
    path: Path, n_items: int, weights: Weights | None = None, *, items: range | None = None,
    device: torch.device | None = None, known: Int32s | None = None, unit: int = 0, partition: Partition = EVERYTHING,
) -> Prior:  # fmt: skip
    """Return the prior of the file `path` for some `items` of a catalogue of `n_items`, by default all.

    Only sources with one of the `weights` are read; without `weights`, all are, and none has one. `known` [n_items] are
    the rows of the file for the items of another catalogue, NO_ITEM for items that it does not have. `unit` is that of
    the sources, `partition` that of the prior. Raises `DataError` if the file cannot be read, or lacks what it needs.
    """
    items, device = range(n_items) if items is None else items, device or torch.device("cpu")
    try:
        with safe_open(path, "pt") as file:
            present = [name for name in PRIOR_SOURCES if name + ROW_IDS in _names(file)]
            if missing := next((name for name in weights or {} if name not in present), ""):
                raise DataError(f"{path}: has no {missing}, which the scores need")
            if known is None and (n := next((_length(file, name) for name in present), 0)) != n_items:
                raise DataError(f"{path}: has {n:,} items, not {n_items:,}")
            names = present if weights is None else weights
            sources = {name: _source(file, name, items, device, known, unit) for name in names}
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path}: cannot be read: {in_one_line(error)}") from None
    return Prior(sources, items, weights, partition)


def _attempt(path: Path, work: Callable[[], None]) -> None:
    try:
        work()
    except OSError as error:
        raise RunInterruptedError(f"{path}: cannot be written: {error.strerror}") from None


def _names(file: Any) -> set[str]:
    return {*file.keys()}


def _length(file: Any, name: str) -> int:
    return int(file.get_slice(name + ROW_IDS).get_shape()[0])


def _source(file: Any, name: str, items: range, device: torch.device, known: Int32s | None, unit: int) -> Source:
    masses, bias = (file.get_tensor(name + end) if name + end in _names(file) else None for end in (MASSES, BIAS))
    blocks = _blocks(file, name)
    if known is not None:
        ids, values = (torch.cat(parts) for parts in zip(*blocks, strict=True))
        blocks = _translated(ids, values, torch.from_numpy(known).long())
        # A zero at the end, where NO_ITEM points to.
        masses, bias = (None if part is None else F.pad(part, (0, 1))[known] for part in (masses, bias))
    bias = None if bias is None else bias[items.start : items.stop]
    return Source(name, blocks, items, device, masses=masses, bias=bias, unit=unit)


def _blocks(file: Any, name: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the ids and values of some items at a time, in order."""
    ids, values = (file.get_slice(name + end) for end in (ROW_IDS, ROW_VALUES))
    for first in range(0, _length(file, name), ROWS_AT_ONCE):
        yield ids[first : first + ROWS_AT_ONCE], values[first : first + ROWS_AT_ONCE]


def _translated(ids: Tensor, values: Tensor, known: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the ids and values of the items of another catalogue; its item i is the item `known[i]` here."""
    new = torch.full((len(ids) + 1,), NO_ITEM)
    is_known = known != NO_ITEM
    new[known[is_known]] = torch.arange(len(known))[is_known]
    for rows in known.split(ROWS_AT_ONCE):
        some = new[torch.where(rows[:, None] == NO_ITEM, NO_ITEM, ids[rows])]
        order = some.sort(1).indices
        yield some.gather(1, order).int(), values[rows].gather(1, order)
