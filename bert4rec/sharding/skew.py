"""The load imbalance of a row-wise sharded item table, from the popularity of items."""

import numpy as np
import numpy.typing as npt

from bert4rec.config.abilities import needs_negatives
from bert4rec.dataset.schema import FIRST_ITEM_ID
from bert4rec.sharding.footprint import Job


def skew(job: Job, popularity: npt.NDArray[np.integer]) -> float:
    """Return the load imbalance: rows served by the busiest process in a step over the group's mean; at least 1.

    `popularity` [n_items] counts how often each item comes. A batch asks for an item once, however often it comes: with
    the probability 1 - (1 - p)^n, for n positions that are drawn in proportion to it. So do the targets of a loss
    against negatives, which themselves are taken for even. Takes memory for the rows of a process.
    """
    rows_per_process = -(-job.tables["item"].num_embeddings // job.group_size)
    total = max(1, int(popularity.sum(dtype=np.int64)))
    n_drawn = [job.built.n_ids(n_positions=job.n_positions, n_candidates=0)["item"]]
    if needs_negatives(job.loss):
        n_drawn.append(job.n_targets)
    loads = np.zeros(job.group_size)
    for process in range(job.group_size):
        first = process * rows_per_process - FIRST_ITEM_ID  # the rows of the special ids come before those of items
        p = popularity[max(0, first) : max(0, first + rows_per_process)] / total
        loads[process] = sum(-np.expm1(n * np.log1p(-np.minimum(p, 1 - 1e-12))).sum() for n in n_drawn)
    if needs_negatives(job.loss):
        loads += job.n_train_negatives / job.group_size
    return float(loads.max() / loads.mean()) if loads.any() else 1.0
