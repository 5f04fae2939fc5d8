"""What an evaluation finds, and what the report of a run says of it and of the training."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from bert4rec.checkpoint.store import read_metadata
from bert4rec.config.abilities import TRANSFORMERS, UNTRAINED
from bert4rec.dataset.reader import Bools, Dataset
from bert4rec.dataset.schema import RATINGS
from bert4rec.evaluation.evaluator import Between, Evaluator
from bert4rec.evaluation.ranker import HeldOut
from bert4rec.evaluation.results.hits_by_rank import hits_by_rank
from bert4rec.evaluation.results.ranking import Ranking
from bert4rec.evaluation.scorers import Scorer
from bert4rec.models.kinds import KINDS
from bert4rec.report.figures import FORMAT_VERSION
from bert4rec.report.summary import protocols
from bert4rec.sharding.plan import Plan
from bert4rec.training.loop.trainer import Trainer

WITH_TIMES = {"none": "", "history": " with times", "target": " with the target's time"}  # behind a model's name
FACTS = (
    "users_read", "items_read", "rows_read", "bad_rows", "dropped", "density", "lengths", "time_span", "max_len",
    "train_windows",
)  # fmt: skip
"""What a report repeats of the dataset's metadata, so that it can be read where that is not."""


@dataclass(frozen=True)
class Findings:
    """Holds what an evaluation found: `ranks` by their names in the report, and the `figures`."""

    held_out: Mapping[str, HeldOut]
    ranks: Mapping[str, Ranking]
    figures: Mapping[str, Any]


def find(
    evaluator: Evaluator, model: nn.Module | Scorer, held_out: Mapping[str, HeldOut], between: Between
) -> Findings:
    """Evaluate `model` on all that is `held_out`; every process calls this."""
    ranks = evaluator.ranks(model, held_out, between)
    figures = evaluator.results(ranks, held_out)
    if ratings := evaluator.ratings(model, between):
        figures[RATINGS] = ratings
    return Findings(held_out, ranks, figures)


def make_report(evaluator: Evaluator, found: Findings, *, kind: str, mode: str, times: str = "none") -> dict[str, Any]:
    """Return what the report of any run says of the dataset, of the model and of what was `found`.

    The model is of a `kind`, and uses so much of `times`.
    """
    world_size = evaluator.world.world_size
    report = _about(evaluator.dataset, found.held_out, kind=kind, times=times, mode=mode, world_size=world_size)
    report["seen_items"] = "leave_out" if evaluator.leaves_out_seen else "keep"
    report |= found.figures
    report["protocols"] = protocols(report)
    report["hits_by_rank"] = hits_by_rank({name: of.ranks for name, of in found.ranks.items()})
    return report | ({"baselines_left_out": evaluator.left_out} if evaluator.left_out else {})


def _about(
    dataset: Dataset, held_out: Mapping[str, HeldOut], *, kind: str, times: str, mode: str, world_size: int
) -> dict[str, Any]:
    """Return what the report says before the figures; `kind` and `times` are of the model."""
    metadata, knows_times = dataset.metadata, kind in TRANSFORMERS and times != "none"
    return {
        "format_version": FORMAT_VERSION,
        "dataset": {
            **{key: metadata[key] for key in ("source", "users", "items", "rows", "fingerprint")},
            **{key: metadata["preprocessing"][key] for key in ("split", "n_eval_negatives")},
            **{key: metadata[key] for key in FACTS if key in metadata},
            "file": metadata.get("created_from", {}).get("name", ""),
            "file_sha256": metadata.get("created_from", {}).get("sha256", ""),
            "repeated_targets": {split: _count(users.repeated) for split, users in held_out.items()},
            "left_out": {split: _count(users.left_out) for split, users in held_out.items()},
        },
        "kind": kind,
        "model": (UNTRAINED[kind] if kind in UNTRAINED else KINDS[kind].title) + WITH_TIMES[times] * knows_times,
        **({"times": times} if knows_times else {}),
        "mode": mode,
        "world_size": world_size,
    }


def about_training(trainer: Trainer, peak_memory: list[int], resumed: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how the training went; `peak_memory` in bytes, by rank, `resumed` the notes of where it was."""
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
        "seconds_by_part": state.seconds_by_part,
    }


def about_origin(checkpoint: Path | None) -> dict[str, Any]:
    """Return the `checkpoint` whose weights it began with, and the dataset that these were trained on."""
    if checkpoint is None:
        return {}
    return {"init_from": {"folder": str(checkpoint), "fingerprint": read_metadata(checkpoint)["fingerprint"]}}


def about_plan(plan: Plan) -> dict[str, Any]:
    """Return which process holds which part of which table."""
    return {
        "tables": {
            name: {"rows": table.num_embeddings, "columns": table.embedding_dim}
            for name, table in plan.job.tables.items()
        },
        "shards": [part._asdict() for part in plan.shards],
    }


def _count(users: Bools) -> dict[str, int]:
    """Return the number of users for which it holds."""
    return {"users": int(users.sum()), "of": len(users)}
