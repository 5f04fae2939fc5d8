"""Batches of a training from a dataset folder, beside Python lists that a function masks and pads."""

import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from benchmarks.bench.plain_model import IGNORED, MASK, PADDING
from benchmarks.bench.timing import OURS, Case, timed
from benchmarks.evaluation_speed import make_folder, open_folder
from bert4rec.dataset.histories import TrainingWindows
from bert4rec.feed.batches import TrainingBatches, Windows
from bert4rec.feed.masking import Masking
from bert4rec.runtime.collectives import Partition

BATCH, MAX_LEN = 128, 50
EPOCHS = 1_000_000  # more than anybody waits for
LISTS = "plain, lists"


@contextmanager
def loader_case(n_workers: int, n_batches: int, **sizes: int) -> Iterator[Case]:
    """The next `n_batches`, from as many loader processes; the dataset has the `sizes` of random data."""
    with tempfile.TemporaryDirectory() as folder:
        dataset = open_folder(make_folder(Path(folder, "dataset"), MAX_LEN, **sizes))
        windows = dataset.windows(max_len=MAX_LEN, step=MAX_LEN)
        endless = {
            OURS: our_batches(windows, dataset.n_items).batches(num_workers=n_workers),
            LISTS: plain_batches(windows, n_workers),
        }
        contestants = {name: timed(partial(_take, batches, n_batches)) for name, batches in endless.items()}
        what = f"{BATCH} of {len(windows):,} windows, {n_workers} loader processes"
        yield Case(f"loader-{n_workers}", what, "batches", n_batches, contestants)
        for batches in endless.values():
            batches.close()  # with its processes


def _take(batches: Iterator[Any], n: int) -> None:
    for _ in range(n):
        next(batches)


def our_batches(
    windows: TrainingWindows, n_items: int, *, n_epochs: int = EPOCHS, mask_prob: float = 0.2
) -> TrainingBatches:
    """Those of a training on one process."""
    masking = Masking(
        1, n_items, mask_prob=mask_prob, last_item_mask_prob=0.1, mask_token_share=1.0,
        random_token_share=0.0,
    )  # fmt: skip
    return TrainingBatches(Windows(windows, masking), Partition(), n_epochs=n_epochs, per_device=BATCH, seed=1)


def plain_batches(
    windows: TrainingWindows, n_workers: int, *, n_epochs: int = EPOCHS, mask_prob: float = 0.2
) -> Iterator[tuple[Tensor, Tensor]]:
    """The same from Python lists, which are a Dataset as they are."""
    rows = windows.read(np.arange(len(windows)))
    sequences = [part.tolist() for part in np.split(rows.items, rows.lengths.cumsum()[:-1])]
    loader: DataLoader[Any] = DataLoader(
        sequences, batch_size=BATCH, shuffle=True, collate_fn=partial(collate, mask_prob=mask_prob),
        num_workers=n_workers, persistent_workers=n_workers > 0,
    )  # fmt: skip
    for _ in range(n_epochs):
        yield from loader


def collate(sequences: Sequence[Sequence[int]], mask_prob: float) -> tuple[Tensor, Tensor]:
    """Items and targets [B, L] of masked sequences, padded on the left; targets count from the first item."""
    inputs, targets = [], []
    for sequence in sequences:
        masked = [random.random() < mask_prob for _ in sequence]
        if random.random() < 0.1 or not any(masked):
            masked = [False] * (len(sequence) - 1) + [True]
        pairs = list(zip(sequence, masked, strict=True))
        inputs.append(torch.tensor([MASK if is_masked else item for item, is_masked in pairs]))
        targets.append(torch.tensor([item if is_masked else IGNORED for item, is_masked in pairs]))
    return _pad(inputs, PADDING), _pad(targets, IGNORED)


def _pad(sequences: Sequence[Tensor], filling: int) -> Tensor:
    return pad_sequence(list(sequences), batch_first=True, padding_value=filling, padding_side="left")
