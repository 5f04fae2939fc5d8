"""What all processes of a training decide together before a step."""

import itertools
from typing import NamedTuple

import torch
import torch.distributed as dist

from bert4rec.dataset.schema import PAD_ID
from bert4rec.feed.batch import AnyBatch
from bert4rec.runtime.signals import SIGNALS, Interruption


class Decision(NamedTuple):
    """Positions to predict in the global batch; whether to report, to stop since time is up, to save; a signal."""

    positions: int
    report: bool
    out_of_time: bool
    save: bool
    interrupted: int


def decide_together(
    interruption: Interruption, batch: AnyBatch | None, *, report: bool, out_of_time: bool, save: bool
) -> Decision:
    """What holds for all where it does for one; every process calls this.

    One small message between the hosts' CPUs before each step, so that nobody waits for a GPU.
    """
    signals = [interruption.number == number for number in SIGNALS]
    positions = 0 if batch is None else (batch.targets != PAD_ID).sum()
    together = torch.tensor([positions, report, out_of_time, save, *signals], dtype=torch.int64)
    dist.all_reduce(together)
    interruption.answered()
    n_positions, *others = together.tolist()
    report, out_of_time, save, *received = map(bool, others)
    interrupted = next(itertools.compress(SIGNALS, received), 0)
    return Decision(n_positions, report, out_of_time, save, interrupted)
