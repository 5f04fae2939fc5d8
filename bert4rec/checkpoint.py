"""Weights on disk by torch.distributed.checkpoint: every process writes its own shards, any number reads them."""

import shutil
from pathlib import Path

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn

from bert4rec.parallelize import unwrap


def save_weights(model: nn.Module, folder: Path) -> None:
    """Write the weights of a parallelized model to `folder`, which all hosts share, in place of what was there.

    They are written beside it and renamed when whole; at every moment `folder` or `folder.old` is a whole one.
    """
    unfinished, old = folder.with_name(folder.name + ".tmp"), folder.with_name(folder.name + ".old")
    if dist.get_rank() == 0:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
    dist.barrier()
    dcp.save(unwrap(model).state_dict(), checkpoint_id=unfinished)
    if dist.get_rank() == 0:
        if folder.exists():
            folder.rename(old)
        unfinished.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    dist.barrier()


def load_weights(model: nn.Module, folder: Path) -> None:
    """Read the weights from `folder` into `model`, however either is sharded. A checkpoint is trusted input."""
    state = unwrap(model).state_dict()
    dcp.load(state, checkpoint_id=folder)
    unwrap(model).load_state_dict(state)
