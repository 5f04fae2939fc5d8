"""What a finished training is worth: the metrics of its report, and what else the report says."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from bert4rec.dataset.reader import Bools
from bert4rec.evaluation.ranker import HeldOut, Metrics, Ranker, Ranks, to_metrics, with_unseen
from bert4rec.evaluation.scorers import ModelScorer, PopularityScorer, Scorer
from bert4rec.models.kinds import KINDS
from bert4rec.report.page import FORMAT_VERSION
from bert4rec.runtime.collectives import Partition, on_rank_zero
from bert4rec.sharding.parallelize import unwrap
from bert4rec.training.context import Context
from bert4rec.training.loop.trainer import Between, Trainer

EVALUATED = ("validation", "test")


def held_out_of(context: Context) -> dict[str, HeldOut]:
    """Of each split that holds somebody out, what is known of its users; every process calls this."""
    splits = [split for split in EVALUATED if context.holds_out(split)]
    return on_rank_zero(lambda: {split: HeldOut.of(context.dataset.splits[split]) for split in splits})


def validation_metrics(context: Context, model: nn.Module, between: Between) -> Metrics:
    """Over the full catalogue, of the model as it is; {} where there is nobody to validate on."""
    return to_metrics(_rank(context, _scorer(context, model), "validation", ["full"], between), context.ks)


def measure(
    context: Context, model: nn.Module, held_out: Mapping[str, HeldOut], between: Between
) -> dict[str, Metrics]:
    """The model on both splits, and on the test split what popularity and the best possible would have got.

    What the dataset holds nobody out for is left out.
    """
    dataset, protocols, world = context.dataset, context.config.evaluation.protocols, context.world

    def metrics(ranks: Ranks, split: str) -> Metrics:
        return to_metrics(with_unseen(ranks, held_out[split].repeated), context.ks)

    def rank(scorer: Scorer, split: str) -> Metrics:
        return metrics(_rank(context, scorer, split, protocols, between), split)

    results = {split: rank(_scorer(context, model), split) for split in held_out}
    if "test" in results:
        popularity = PopularityScorer(dataset.popularity, Partition(world.rank, world.world_size))
        results["popularity_baseline"] = rank(popularity, "test")
        if oracle := dataset.oracle_ranks():
            results["best_possible"] = metrics({name: oracle[name] for name in protocols}, "test")
    return results


def about(context: Context, held_out: Mapping[str, HeldOut]) -> dict[str, Any]:
    """What the report says before the figures."""
    metadata, config = context.dataset.metadata, context.config
    return {
        "format_version": FORMAT_VERSION,
        "dataset": {
            **{key: metadata[key] for key in ("source", "users", "items", "rows", "fingerprint")},
            "split": config.preprocessing.split,
            "n_eval_negatives": config.preprocessing.n_eval_negatives,
            "repeated_targets": {split: _count(users.repeated) for split, users in held_out.items()},
            "left_out": {split: _count(users.left_out) for split, users in held_out.items()},
        },
        "model": KINDS[config.model.kind].title,
        "mode": config.parallelism.mode,
        "world_size": context.world.world_size,
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


def _scorer(context: Context, model: nn.Module) -> ModelScorer:
    """The model as it is now."""
    config = context.config
    return ModelScorer(
        unwrap(model), device=context.world.device, max_len=config.model.max_len, precision=config.training.precision
    )


def _rank(context: Context, scorer: Scorer, split: str, protocols: Sequence[str], between: Between) -> Ranks:
    batch_size = context.config.evaluation.per_device_eval_batch_size
    ranker = Ranker(scorer, batch_size=batch_size, device=context.world.device, between=between)
    return ranker.rank(context.dataset.splits[split], protocols)


def _count(users: Bools) -> dict[str, int]:
    """Of how many users it is so."""
    return {"users": int(users.sum()), "of": len(users)}
