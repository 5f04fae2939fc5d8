"""What else the report of a training says beside its metrics."""

from collections.abc import Mapping
from typing import Any

from bert4rec.config.abilities import UNTRAINED
from bert4rec.dataset.reader import Bools, Dataset
from bert4rec.evaluation.ranker import HeldOut
from bert4rec.models.kinds import KINDS
from bert4rec.report.page import FORMAT_VERSION
from bert4rec.training.loop.trainer import Trainer


def about(
    dataset: Dataset, held_out: Mapping[str, HeldOut], *, kind: str, mode: str, world_size: int
) -> dict[str, Any]:
    """What the report says before the figures; `kind`: of the model."""
    metadata = dataset.metadata
    return {
        "format_version": FORMAT_VERSION,
        "dataset": {
            **{key: metadata[key] for key in ("source", "users", "items", "rows", "fingerprint")},
            **{key: metadata["preprocessing"][key] for key in ("split", "n_eval_negatives")},
            "repeated_targets": {split: _count(users.repeated) for split, users in held_out.items()},
            "left_out": {split: _count(users.left_out) for split, users in held_out.items()},
        },
        "kind": kind,
        "model": UNTRAINED[kind] if kind in UNTRAINED else KINDS[kind].title,
        "mode": mode,
        "world_size": world_size,
    }


def about_training(trainer: Trainer, peak_memory: list[int], resumed: list[dict[str, Any]]) -> dict[str, Any]:
    """How the training went; `peak_memory` in bytes, by rank, `resumed` the notes of where it was."""
    state = trainer.state
    return {
        "epochs": trainer.epoch,
        "steps": state.step,
        "seconds": state.seconds,
        "best_epoch": state.best_epoch,
        "stopped_by": state.stopped_by,
        "sequences_per_second": trainer.meter.rate,
        "peak_memory_bytes": peak_memory,
        "resumed": [(record["step"], record["world_size"]) for record in resumed],
    }


def _count(users: Bools) -> dict[str, int]:
    """Of how many users it is so."""
    return {"users": int(users.sum()), "of": len(users)}
