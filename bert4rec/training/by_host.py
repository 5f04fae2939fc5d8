"""Find out which host has which part of a dataset, before the processes of a run work together."""

import json
import logging
import os
import socket
from dataclasses import replace

import torch.distributed as dist

from bert4rec.dataset.format import EVALUATED
from bert4rec.dataset.placement import Held, place
from bert4rec.dataset.reader import Dataset, of_parts, parts_of
from bert4rec.feed.placed_split import PlacedSplit
from bert4rec.runtime.processes import Processes

logger = logging.getLogger(__name__)


def keep_own_parts(dataset: Dataset, world: Processes, store: dist.Store) -> Dataset:
    """Return the dataset with the parts that belong to this host, and the held-out users of all hosts.

    Every process calls this with a dataset that was opened `parts_by_host`, and says through the `store` which parts
    its host has. Raises the same `DataError` on all processes if a part is missing.
    """
    here: dict[str, dict[str, int]] = {}
    if world.local_rank == 0:
        counts = {split: dataset.splits[split].n_by_file for split in EVALUATED}
        here = {part: {split: counts[split][part] for split in EVALUATED} for part in dataset.histories.parts or ()}
    report = Held(f"{socket.gethostname()}/{os.environ.get('GROUP_RANK', '')}".rstrip("/"), here)
    store.set(f"{world.rank}", json.dumps(report))
    reports = [Held(*json.loads(text)) for text in store.multi_get([str(rank) for rank in range(world.world_size)])]
    placement = place(dataset.folder, parts_of(dataset.folder, dataset.metadata), reports, world.rank)
    own = of_parts(dataset, placement)
    return replace(own, splits={name: PlacedSplit(split, placement) for name, split in own.splits.items()})
