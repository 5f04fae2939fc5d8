"""How fast users are ranked, beyond the model's forward pass: all protocols, with lists, on one process.

    python -m benchmarks.evaluation_speed [--rounds=5] [--dataset=FOLDER] [--max_len=50]

Without a dataset folder one of ML-1M's shape is made up: 6,040 users, 3,416 items, a million interactions. The model
has the shape of config.toml with random weights. The forward pass alone (batches as they are ranked, one candidate a
user) and the whole ranking take turns; so does a ranking whose hidden states are remembered, which is what the ranker
itself takes: reading histories and negatives, vectors, scores, ranks, lists. Medians of the rounds; the seconds of the
processor tell what they would be on a machine that has nothing else to do, at most.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.large_catalogue import ROOT
from bert4rec.config.load import load_config
from bert4rec.config.resolve import Facts, resolve_model
from bert4rec.dataset.held_out import EvaluationSplit
from bert4rec.dataset.histories import Rows
from bert4rec.dataset.reader import Dataset, open_dataset
from bert4rec.evaluation.metrics import Lists
from bert4rec.evaluation.ranker import Ranker
from bert4rec.evaluation.scorers import ModelScorer, Scorer
from bert4rec.feed.batch import Lookup
from bert4rec.models.baselines import PopularityScorer
from bert4rec.models.sequence_model import Bert4Rec
from bert4rec.runtime.collectives import Partition
from bert4rec.sharding.parallelize import initialize

SHAPE = {"data.source": "random", "data.n_users": 6040, "data.n_items": 3416, "data.n_rows": 1_000_209,
         "preprocessing.validation_users": 1}  # fmt: skip
SHAPE_OF_MODEL = {"embed_dim", "n_heads", "n_layers", "ffn_dim", "max_len", "dropout", "head"}
PROTOCOLS = ["full", "popular", "uniform"]
CPU = torch.device("cpu")


class Remembered(ModelScorer):
    """Scores by the model, whose hidden states are computed once and then remembered, batch by batch."""

    _states: "list[Tensor] | None" = None
    _turn: "Iterator[Tensor] | None" = None

    def remember(self, split: EvaluationSplit, batch_size: int) -> None:
        """Compute the hidden states of the batches as the ranker makes them."""
        self._states = [hidden for hidden, _ in map(self.forward, batches(split, batch_size))]

    def start(self) -> None:
        """From the first batch on again."""
        self._turn = iter(self._states or [])

    def forward(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Hidden states of users, and the vectors of their targets."""
        assert rows.targets is not None
        targets = torch.from_numpy(rows.targets.astype(np.int64))
        return self._model.encode_queries(self._model.inference_batch(rows, self._max_len), Lookup.of(targets))

    def encode(self, rows: Rows, ids: Tensor) -> tuple[Tensor, Tensor]:
        """As `ModelScorer` has it."""
        if self._turn is None:
            return super().encode(rows, ids)
        hidden, vectors = next(self._turn), self.items(ids.flatten())
        return hidden, (vectors.view(*ids.shape, -1) * hidden[:, None]).sum(2)


def main() -> None:
    """Print one line a contestant."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dataset", type=Path)
    parser.add_argument("--max_len", type=int, default=50)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        dataset = open_folder(options.dataset or make_folder(Path(temporary, "dataset"), options.max_len))
        measure(dataset, options.max_len, options.rounds)


@torch.no_grad()
def measure(dataset: Dataset, max_len: int, n_rounds: int) -> None:
    """Time each of the parts in turn."""
    split, batch_size = dataset.splits["test"], load_config("config.toml").evaluation.per_device_eval_batch_size
    scorer = Remembered(random_model(dataset.n_items, max_len), device=CPU, max_len=max_len)
    popularity = PopularityScorer(dataset.popularity, Partition())
    scorer.remember(split, batch_size)
    all_batches = list(batches(split, batch_size))

    def whole() -> None:
        scorer._turn = None
        rank(scorer, dataset, split, batch_size)

    def remembered() -> None:
        scorer.start()
        rank(scorer, dataset, split, batch_size)

    parts: dict[str, Callable[[], object]] = {
        "forward pass": lambda: [scorer.forward(rows) for rows in all_batches],
        "whole ranking": whole,
        "ranking beyond the forward pass": remembered,
        "ranking by popularity": lambda: rank(popularity, dataset, split, batch_size),
    }
    seconds: dict[str, list[float]] = {name: [] for name in parts}
    processor_seconds: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(n_rounds):
        for name, part in parts.items():
            began, began_processor = time.perf_counter(), time.process_time()
            part()
            seconds[name].append(time.perf_counter() - began)
            processor_seconds[name].append(time.process_time() - began_processor)
    print(f"{len(split):,} users, {dataset.n_items:,} items, max_len {max_len}, {torch.get_num_threads()} threads")
    for name, part_seconds in seconds.items():
        median = statistics.median(part_seconds)
        spread = f"{min(part_seconds):.2f} to {max(part_seconds):.2f}"
        work = statistics.median(processor_seconds[name])
        print(f"{name:32} {median:6.2f} s ({spread}; {work:.2f} of the processor)  {len(split) / median:8,.0f} users/s")


def rank(scorer: Scorer, dataset: Dataset, split: EvaluationSplit, batch_size: int) -> None:
    """As the evaluation at the end of a run does it."""
    lists = Lists(len(split), [1, 5, 10], dataset.popularity, Partition())
    Ranker(scorer, batch_size=batch_size, device=CPU).rank(split, PROTOCOLS, lists)


def batches(split: EvaluationSplit, batch_size: int) -> Iterator[Rows]:
    """Rows of like length together, as the ranker has them, of a split that it ranks in one pass."""
    order = np.argsort(split.lengths(np.arange(len(split))), kind="stable")
    for first in range(0, len(order), batch_size):
        yield split.read(order[first : first + batch_size])


def random_model(n_items: int, max_len: int) -> Bert4Rec:
    """Of the shape of config.toml."""
    settings = resolve_model(load_config("config.toml"), Facts(n_items, typical_length=max_len)).model
    model = Bert4Rec(n_items=n_items, device="cpu", **settings.model_dump(include=SHAPE_OF_MODEL))
    initialize(model, seed=1)
    return model.eval()


def make_folder(folder: Path, max_len: int, **sizes: int) -> Path:
    """The made-up dataset; `sizes` in place of ML-1M's: keys of [data]."""
    settings = SHAPE | {f"data.{name}": size for name, size in sizes.items()} | {"model.max_len": max_len}
    options = [f"--{name}={value}" for name, value in settings.items()]
    # As a process of its own, so that this one has neither its threads nor its memory.
    command = [sys.executable, "preprocessing.py", "--config=config.toml", f"--data.dataset_dir={folder}", *options]
    subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    return folder


def open_folder(folder: Path) -> Dataset:
    """A dataset, whatever its settings."""
    return open_dataset(folder)


if __name__ == "__main__":
    main()
