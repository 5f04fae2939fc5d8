"""How even the lookups in a row-wise sharded item table are, by the batches of a training on many processes.

    python -m benchmarks.load_balance FOLDER [--processes 8 64 512] [--steps 5] [--loss=softmax|sampled_softmax]
    python -m benchmarks.load_balance --zipf=1000000 …

FOLDER is any prepared dataset; `--zipf=N` makes windows of 50 of N items, the k-th of which is drawn in proportion to
1 / k. Masks and batches are those of config.toml; each process's is another batch of the same order. Counted are the
rows that each process is asked for by all of them in a step: the busiest one's over the mean, and the mean itself.
Three ways: with the mask token as a row and every id as often as it comes; every distinct id once and the token no row,
as it is; popular items alone, without the token, but every id as often as it comes. Nothing is trained.
"""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from bert4rec.config.load import load_config
from bert4rec.dataset.histories import Rows
from bert4rec.dataset.reader import open_dataset
from bert4rec.feed.batch import Batch, Candidates
from bert4rec.feed.batches import TrainingBatches
from bert4rec.feed.negatives import NegativeSampler
from bert4rec.runtime.processes import this_process
from bert4rec.training.build import sampler, training_batches

Ids = npt.NDArray[np.int64]
LENGTH = 50


class ZipfItems:
    """A dataset, and its training windows, of items by Zipf's law, with ids in no order of popularity."""

    typical_length = LENGTH
    histories = SimpleNamespace(kinds=(), target_kinds=())

    def __init__(self, n_items: int) -> None:
        self.n_items = n_items
        self._ends = np.cumsum(1 / np.arange(1, n_items + 1))
        self._ids = np.random.default_rng(0).permutation(n_items)

    def windows(self, *, max_len: int, step: int) -> Self:
        return self

    def __len__(self) -> int:
        return 10_000_000

    def lengths(self, indices: Ids) -> Ids:
        return np.full(len(indices), LENGTH, np.int64)

    def read(self, indices: Ids) -> Rows:
        points = np.random.default_rng(int(indices[0])).random(len(indices) * LENGTH) * self._ends[-1]
        return Rows(self._ids[np.searchsorted(self._ends, points)].astype(np.int32), self.lengths(indices))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--zipf", type=int, metavar="N")
    parser.add_argument("--processes", type=int, nargs="+", default=[8, 64, 512])
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--loss", choices=("softmax", "sampled_softmax"), default="softmax")
    options = parser.parse_args()
    settings = {
        "training.loss": options.loss, "training.num_workers": 0, "training.per_device_train_batch_size": 64,
        "training.n_train_negatives": 256, "training.n_epochs": 10_000,
    }  # fmt: skip
    config = load_config("config.toml", settings)
    assert options.folder or options.zipf, "name a dataset folder, or --zipf=N"
    dataset: Any = open_dataset(options.folder) if options.folder else ZipfItems(options.zipf)
    world = this_process("cpu")
    batches, negatives = training_batches(config, world, dataset), sampler(config, dataset, world)
    print("| processes | mask token in the table | as it is | popular items alone | rows a process: before, now |")
    print("|---:|---:|---:|---:|---:|")
    for n_processes in options.processes:
        ratios, rows = _measure(batches, negatives, dataset.n_items, n_processes, options.steps)
        figures = " | ".join(f"{ratio:.2f}" for ratio in ratios)
        print(f"| {n_processes} | {figures} | {rows[0]:,.0f}, {rows[1]:,.0f} |", flush=True)


def _measure(
    batches: TrainingBatches, negatives: NegativeSampler | None, n_rows: int, n_processes: int, n_steps: int
) -> tuple[list[float], npt.NDArray[np.float64]]:
    """Of each way the busiest process over the mean, and the rows that a process is asked for; means over steps."""
    ways: list[Callable[[Batch], Iterator[torch.Tensor]]] = [_before, _now, _popular]
    served = np.zeros((n_steps, len(ways), n_processes))
    rows_per_process = -(-n_rows // n_processes)
    for step in range(n_steps):
        for process in range(n_processes):
            batch = batches[step * n_processes + process]
            assert isinstance(batch, Batch)
            if negatives:  # all processes have the negatives of the step
                batch = batch._replace(candidates=Candidates.of(batch.targets, negatives.draw(step)))
            for number, way in enumerate(ways):
                owners = torch.cat([*way(batch)]) // rows_per_process
                served[step, number] += np.bincount(owners.numpy(), minlength=n_processes)
    means = served.mean(2)
    return (served.max(2) / means).mean(0).tolist(), means.mean(0)


def _before(batch: Batch) -> Iterator[torch.Tensor]:
    yield torch.cat([batch.items.ids, torch.tensor([0])])[batch.places]  # the token has the first row
    yield from _candidates(batch)


def _now(batch: Batch) -> Iterator[torch.Tensor]:
    yield batch.items.ids
    if batch.candidates:
        yield batch.candidates.items.ids


def _popular(batch: Batch) -> Iterator[torch.Tensor]:
    yield batch.items.ids[batch.places[batch.places < len(batch.items.ids)]]
    yield from _candidates(batch)


def _candidates(batch: Batch) -> Iterator[torch.Tensor]:
    """The items that a sampled loss scores, as often as it does."""
    if batch.candidates:
        yield batch.candidates.items.ids[batch.candidates.positives]
        yield batch.candidates.items.ids[batch.candidates.negatives]


if __name__ == "__main__":
    main()
