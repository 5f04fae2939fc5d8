"""Add items to a checkpoint: read it into tensors with more rows, initialize the new rows, and write it in one process.

Tensors that belong to items have their rows in the order of the item ids, so new rows are appended and no row moves.

A new item starts as the mean of its known neighbours in the histories. The mean of many vectors is close to the mean of
all vectors, so the item would never be recommended. Scaling the vector itself would also scale what all vectors have in
common, and the item would be recommended to every user. So its difference from the mean of all known vectors is scaled
to `NEW_VECTOR_LENGTH` times the average length of their differences; the mean itself does not change a softmax. An item
without known neighbours starts as that mean: no history prefers it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bert4rec.checkpoint.store import load, save
from bert4rec.checkpoint.stored_tensors import LATEST, MODEL_PREFIX, StoredTensors
from bert4rec.dataset.histories import Histories, Rows
from bert4rec.feed.batch import tensors_of
from bert4rec.models import names
from bert4rec.runtime.arrays import Int32s
from bert4rec.runtime.errors import DataError
from bert4rec.runtime.host import host_memory
from bert4rec.sharding.torchrec_internals import one_shard_tensor

OF_ITEMS = ("item_table.", "head.")  # modules of a model with one row per item
NEIGHBOUR_WINDOW = 3  # positions before and after an item whose items are its neighbours, with equal weights
# Chosen on the validation of MovieLens 1M with 10 % of the items new: they are then 10 % of the recommendations; with
# 1.0 they would be 60 %, with 0.65 none.
NEW_VECTOR_LENGTH = 0.8
HISTORIES_AT_ONCE = 1024
LENGTHS_AT_ONCE = 65_536

ITEM_TENSORS = (names.TABLE, names.HEAD, names.HEAD_BIAS)
SAVED_TABLE, SAVED_HEAD, SAVED_HEAD_BIAS = (MODEL_PREFIX + name for name in ITEM_TENSORS)
DIRECTION = ".exp_avg"  # Adam's mean of gradients


def read_grown(checkpoint: Path, n_new: int) -> dict[str, Tensor]:
    """Return all tensors of a verified checkpoint by name; those that belong to items get `n_new` more rows of zeros.

    Every tensor is in memory only once, because it is read in place. Needs a process group. Raises `DataError` if the
    host has too little memory.
    """
    stored = StoredTensors(checkpoint)
    shapes = {name: stored.shape(name) for name in stored}
    shapes |= {name: (shape[0] + n_new, *shape[1:]) for name, shape in shapes.items() if _belongs_to_items(name)}
    n_bytes = sum(stored.dtype(name).itemsize * math.prod(shape) for name, shape in shapes.items())
    if n_bytes > (room := host_memory()):
        raise DataError(
            f"{checkpoint}: its tensors with {n_new:,} new rows take {n_bytes / 1e9:,.1f} GB, but this host has "
            f"{room / 1e9:,.1f} GB available; extend the run on a host with more memory"
        )
    tensors = {name: torch.zeros(shape, dtype=stored.dtype(name)) for name, shape in shapes.items()}
    load(checkpoint, {name: tensor[: stored.shape(name)[0]] for name, tensor in tensors.items()})
    return tensors


def write_grown(folder: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
    """Write a checkpoint of `tensors`, as a run of one rank does. Needs a process group. Raises `SaveError`."""
    parts = {name: one_shard_tensor(value) if _belongs_to_items(name) else value for name, value in tensors.items()}
    save(folder, parts, metadata)


def rows_of_items(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield the name of each tensor that belongs to items, and the tensor [V, …]."""
    for name, tensor in tensors.items():
        if _belongs_to_items(name):
            yield name, tensor


def _belongs_to_items(name: str) -> bool:
    return name.partition(".")[2].startswith(OF_ITEMS)


class Part(NamedTuple):
    """Views of a tensor's rows: those of `known` items [V, …] and of `new` items [n, …]."""

    known: Tensor
    new: Tensor


def initialize_new_items(
    tensors: Mapping[str, Tensor], histories: Histories, popularity: Int32s, *, n_known: int, embed_dim: int
) -> int:
    """Fill the zero rows of the items after the first `n_known`, and return how many have no known neighbour.

    `histories` are those of the new dataset, `popularity` [V + n] counts each item in their training parts. Adam's
    second moments and Adagrad's sums also become the neighbours' mean, so that a step moves a new row about as far as
    their rows. From zero, Adagrad's first step would be as long as in a new model, and Adam's, with a step count common
    to all rows, several times as long. First moments stay zero. Biases are fitted to the popularity.
    """
    parts = {name: Part(rows[:n_known], rows[n_known:]) for name, rows in rows_of_items(tensors)}
    counts = _average([part for name, part in parts.items() if not name.endswith(DIRECTION)], histories)
    for weights in (MODEL_PREFIX, LATEST):
        if weights + names.TABLE in parts:
            item_parts = {name: parts[weights + name] for name in ITEM_TENSORS if weights + name in parts}
            _complete(item_parts, counts > 0, popularity, embed_dim=embed_dim)
    return int((counts == 0).sum())


def neighbours(rows: Rows, n_known: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield pairs of new items [P], counted from 0, and known items [P] within `NEIGHBOUR_WINDOW` positions of them."""
    items, lengths = tensors_of(rows)
    row_ids = torch.repeat_interleave(lengths)
    is_new = items >= n_known
    for distance in range(1, NEIGHBOUR_WINDOW + 1):
        before, after = items[:-distance], items[distance:]
        is_mixed = is_new[:-distance] != is_new[distance:]
        pairs = (row_ids[:-distance] == row_ids[distance:]) & is_mixed
        before, after = before[pairs], after[pairs]
        yield torch.maximum(before, after) - n_known, torch.minimum(before, after)


def _average(parts: Sequence[Part], histories: Histories) -> Tensor:
    """Fill the new rows of `parts` with the mean of their known neighbours, or of all known rows if there are none.

    Return the number of known neighbours of each new item [n].
    """
    n_known, n_new = len(parts[0].known), len(parts[0].new)
    counts = torch.zeros(n_new, dtype=torch.int64)
    for start in range(0, len(histories), HISTORIES_AT_ONCE):
        indices = np.arange(start, min(start + HISTORIES_AT_ONCE, len(histories)))
        n_train = histories.n_train_at(indices)
        for new, known in neighbours(histories.read(indices, np.zeros_like(n_train), n_train), n_known):
            counts += torch.bincount(new, minlength=n_new)
            for part in parts:
                part.new.index_add_(0, new, part.known[known])
    for part in parts:
        part.new.div_(counts.clamp(min=1).view(-1, *[1] * (part.new.dim() - 1)))
        part.new[counts == 0] = part.known.mean(0)
    return counts


def _complete(weights: Mapping[str, Part], is_beside_known: Tensor, popularity: Int32s, *, embed_dim: int) -> None:
    """Scale the new vectors of `weights` (parameter → rows), and fit the new biases."""
    for part in (weights[name] for name in (names.TABLE, names.HEAD) if name in weights):
        _stretch(Part(part.known[:, :embed_dim], part.new[:, :embed_dim]), is_beside_known)
    if names.HEAD_BIAS in weights:
        _fit_bias(weights[names.HEAD_BIAS], popularity)
    elif names.HEAD not in weights and weights[names.TABLE].known.shape[1] > embed_dim:  # column with the bias
        _fit_bias(Part(*(rows[:, embed_dim] for rows in weights[names.TABLE])), popularity)


def _stretch(vectors: Part, is_beside_known: Tensor) -> None:
    """Scale new vectors [n, d]: to `NEW_VECTOR_LENGTH` times the mean distance of known vectors to their mean."""
    mean = vectors.known.mean(0)
    lengths = torch.cat([(rows - mean).norm(dim=1) for rows in vectors.known.split(LENGTHS_AT_ONCE)])
    new_lengths = vectors.new.sub_(mean).norm(dim=1).clamp(min=torch.finfo(mean.dtype).tiny)
    vectors.new.mul_(torch.where(is_beside_known, NEW_VECTOR_LENGTH * lengths.mean() / new_lengths, 1.0)[:, None]).add_(
        mean
    )


def _fit_bias(biases: Part, popularity: Int32s) -> None:
    """Set the new biases [n] by a linear regression of the known ones on log(1 + popularity)."""
    known, new = torch.from_numpy(np.log1p(popularity)).split([len(biases.known), len(biases.new)])
    known_biases = biases.known.double()
    x, y = known - known.mean(), known_biases - known_biases.mean()
    square = (x * x).sum()
    slope = (x * y).sum() / square if square else 0.0
    biases.new.copy_(known_biases.mean() + slope * (new - known.mean()))
