"""Find out which host has which part of a dataset, before the processes of a run work together."""

import json
import os
import socket
from collections.abc import Callable
from dataclasses import replace

import torch.distributed as dist

from bert4rec.dataset.format import EVALUATED
from bert4rec.dataset.placement import Held, place
from bert4rec.dataset.reader import Dataset, of_parts, parts_of
from bert4rec.feed.placed_split import PlacedSplit
from bert4rec.runtime.processes import Processes
from bert4rec.training.agreement import preflight


def keep_own_parts(
    dataset: Dataset, world: Processes, store: dist.Store, check: Callable[[Dataset], Dataset] = lambda dataset: dataset
) -> Dataset:
    """Return the dataset with the parts that belong to this host, and the held-out users of all hosts, after a `check`.

    Every process calls this with a dataset that was opened `parts_by_host`, and says through the `store` which parts
    its host has. Raises the same `UserError` on all processes if a part is missing, or if the check refuses one.
    """
    store = dist.PrefixStore("parts", store)
    counted = dist.PrefixStore("counted", store)  # a process that fails must not let the others wait for its report
    report = preflight(counted, world.rank, world.world_size, lambda: (_held(dataset, world), {}))
    store.set(f"{world.rank}", json.dumps(report))
    reports = [Held(*json.loads(text)) for text in store.multi_get([str(rank) for rank in range(world.world_size)])]

    def own() -> Dataset:
        placement = place(dataset.folder, parts_of(dataset.folder, dataset.metadata), reports, world.rank)
        opened = of_parts(dataset, placement)
        return replace(opened, splits={name: PlacedSplit(split, placement) for name, split in opened.splits.items()})

    return preflight(store, world.rank, world.world_size, lambda: (check(own()), {}))


def _held(dataset: Dataset, world: Processes) -> Held:
    """Return the report of this process on the parts of its host."""
    host = f"{socket.gethostname()}/{os.environ.get('GROUP_RANK', '')}".rstrip("/")
    if world.local_rank:
        return Held(host, {})
    counts = {split: dataset.splits[split].n_by_file for split in EVALUATED}
    return Held(host, {part: {split: counts[split][part] for split in EVALUATED} for part in counts[EVALUATED[0]]})
