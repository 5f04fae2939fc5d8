"""Count the prior of a training, and read it for the processes of a run."""

import logging
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch

from bert4rec.checkpoint.package import PRIOR
from bert4rec.checkpoint.prior import read_prior, write_prior
from bert4rec.config.kinds import EASE, KINDS
from bert4rec.dataset.format import VALIDATION
from bert4rec.dataset.reader import Dataset
from bert4rec.evaluation.tiles import Catalogue
from bert4rec.models.baselines import target_counts
from bert4rec.models.prior import TOP, Prior, Weights
from bert4rec.models.prior_rows import Rows, counted_rows, ease_rows, log_shares
from bert4rec.models.sparse_ease import sparse_ease_rows
from bert4rec.models.transitions import TrainingHistories
from bert4rec.runtime.arrays import Int32s
from bert4rec.runtime.collectives import Partition
from bert4rec.runtime.errors import format_duration

logger = logging.getLogger(__name__)


def count_prior(folder: Path, sources: Sequence[str], dataset: Dataset, partition: Partition) -> None:
    """Count the `sources` of a prior, and write them into the run's `folder`; every process makes the same calls."""
    began, histories = time.monotonic(), TrainingHistories(dataset)
    targets = target_counts(histories) if histories.target_kinds else np.asarray(dataset.popularity)

    def rows(name: str) -> Iterable[tuple[int, Rows]]:
        own, validation = partition.of(dataset.n_items), dataset.splits[VALIDATION]
        if name != EASE:
            return counted_rows(name, histories, targets, own, TOP)
        if dataset.n_items > KINDS[EASE].most_items:
            return [(own.start, sparse_ease_rows(histories, validation, partition, TOP))]
        is_first = partition.rank == 0  # one process has all weights
        return ease_rows(histories, validation, TOP, solves=is_first) if is_first or histories.is_shared else ()

    write_prior(folder / PRIOR, {name: rows(name) for name in sources}, log_shares(targets), TOP)
    logger.info(f"prior: counted {', '.join(sources)} in {format_duration(time.monotonic() - began)}")


def own_prior(
    path: Path, partition: Partition, device: torch.device, n_items: int, *, weights: Weights | None = None,
    known: Int32s | None = None,
) -> Prior:  # fmt: skip
    """Return the prior of the file `path` for the items of a catalogue that this process ranks (`read_prior`).

    `partition` is that of the model's scorer: with groups of processes, its parts are not in the order of the ranks.
    """
    catalogue = Catalogue(n_items)
    items = range(*catalogue.items(partition.of(len(catalogue.tiles))))
    return read_prior(
        path, n_items, weights, items=items, device=device, known=known, unit=catalogue.together, partition=partition
    )
