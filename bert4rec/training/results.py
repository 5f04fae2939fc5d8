"""The results of an evaluation, and the report of a run."""

import logging
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from bert4rec.checkpoint.run_folder import (
    COMES_AGAIN,
    EXAMPLES,
    HTML_PAGE,
    PAGE,
    RECENT_COUNTS,
    REPORT,
    read_metadata,
)
from bert4rec.config.kinds import KINDS
from bert4rec.config.tables import Config, Model
from bert4rec.dataset.findings import findings
from bert4rec.dataset.format import METADATA_DEFAULTS, PREVIOUS, RATINGS
from bert4rec.dataset.reader import Dataset
from bert4rec.evaluation.evaluator import BatchCallback, Evaluator, Example, Fallback
from bert4rec.evaluation.intervals import Ranking, hits_by_rank
from bert4rec.evaluation.metrics import MISSED
from bert4rec.evaluation.scorers import Scorer
from bert4rec.evaluation.seen_items import rule_of
from bert4rec.report.figures import FORMAT_VERSION, write_json
from bert4rec.report.log import MetricsLog, flat_numbers, read_records
from bert4rec.report.pages import report_page, write_html
from bert4rec.report.summary import checks, prior, protocols, result_line, verdict, warnings
from bert4rec.runtime.arrays import Bools, Int64s
from bert4rec.runtime.errors import in_one_line
from bert4rec.sharding.plan import Plan
from bert4rec.training.state import State

WITH_TIMES = {"none": "", "history": " with times", "target": " with the target's time"}  # behind a model's name
FACTS = (
    "users_read", "items_read", "rows_read", "bad_rows", "guests", "dropped", "density", "lengths", "time_span",
    "train_positions", "targets", PREVIOUS,
)  # fmt: skip
"""Keys of the dataset's metadata that a report copies, so that it can be read without the dataset."""
RESULTS = ("test", "validation", "ratings")  # the parts of a report that go to the trackers
N_EXAMPLE_ITEMS = 8  # number of history items in `examples.json`

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class EvaluationResult:
    """The result of an evaluation: `ranks` by their names in the report, `figures`, `fallback` if measured."""

    held_out: Mapping[str, Bools]
    ranks: Mapping[str, Ranking]
    figures: Mapping[str, Any]
    fallback: Fallback | None = None


def evaluate_model(
    evaluator: Evaluator, model: nn.Module | Scorer, held_out: Mapping[str, Bools], between: BatchCallback, *,
    with_fallback: bool = False,
) -> EvaluationResult:  # fmt: skip
    """Return the ranks and figures of `model` on everything that is `held_out`; every rank calls this.

    `with_fallback`: also what users without a history get.
    """
    ranks = evaluator.ranks(model, held_out, between)
    figures = evaluator.results(ranks, held_out)
    if features := evaluator.feature_differences(model, ranks, between):
        figures["features"] = features
    if about_prior := evaluator.prior_figures(model, ranks, between):
        figures["prior"] = about_prior
    if ratings := evaluator.ratings(model, between):
        figures[RATINGS] = ratings
    if fallback := evaluator.fallback(between) if with_fallback else None:
        figures["fallback"] = fallback.figures
    return EvaluationResult(held_out, ranks, figures, fallback)


def make_report(evaluator: Evaluator, result: EvaluationResult, model: Model, *, mode: str) -> dict[str, Any]:
    """Return the part of a report that every run has: the dataset, the `model` and the `result`."""
    report: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "dataset": _about_dataset(evaluator.dataset, result.held_out.keys()),
        "kind": model.kind,
        "model": KINDS[model.kind].title + WITH_TIMES[model.times] * model.knows_times,
        **({"times": model.times} if model.knows_times else {}),
        "mode": mode,
        "world_size": evaluator.world.world_size,
        "seen_items": rule_of(evaluator.leaves_out_seen),
        **_about_again(evaluator, result),
        **result.figures,
    }
    report["protocols"] = protocols(report)
    report["hits_by_rank"] = hits_by_rank({name: ranking.ranks for name, ranking in result.ranks.items()})
    reasons = {"baselines_left_out": evaluator.left_out, "features_not_tested": evaluator.features_not_tested}
    return report | {name: reason for name, reason in reasons.items() if reason}


def _about_again(evaluator: Evaluator, result: EvaluationResult) -> dict[str, Any]:
    """Return how many items people take again, and how many seen targets are missed, by split; {} for other rules."""
    if evaluator.again is None:
        return {}
    missed = {
        split: {"users": int((repeated & (result.ranks[split].ranks["full"] == MISSED)).sum()), "of": len(repeated)}
        for split, repeated in result.held_out.items()
        if "full" in result.ranks[split].ranks
    }
    return {"items_again": int(evaluator.again.sum()), "seen_missed": missed}


def _about_dataset(dataset: Dataset, splits: Iterable[str]) -> dict[str, Any]:
    metadata = dataset.metadata
    return {
        **{key: metadata[key] for key in ("source", "users", "items", "rows", "fingerprint")},
        **{key: metadata["preprocessing"][key] for key in ("split", "n_eval_negatives")},
        **{key: metadata[key] for key in FACTS if key in metadata},
        **{key: value for key, value in metadata["preprocessing"].items() if key in METADATA_DEFAULTS},
        "findings": [finding._asdict() for finding in findings(metadata)],
        "file": metadata.get("created_from", {}).get("name", ""),
        "file_sha256": metadata.get("created_from", {}).get("sha256", ""),
        **{name: {split: metadata[name][split] for split in splits} for name in ("repeated_targets", "left_out")},
    }


def about_training(
    state: State, *, epochs: float, peak_memory: list[int], origin: Path | None = None, rate: float = 0.0,
    resumed: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:  # fmt: skip
    """Return the report's facts about the training.

    `peak_memory` is in bytes, by rank; `origin` the checkpoint that the weights were initialized from; `resumed` holds
    the log's records of each resume.
    """
    return {
        **(
            {"init_from": {"folder": str(origin), "fingerprint": read_metadata(origin)["fingerprint"]}}
            if origin
            else {}
        ),
        "epochs": epochs,
        "steps": state.step,
        "seconds": state.seconds,
        "best_epoch": state.best_epoch,
        "stopped_by": state.stopped_by,
        "sequences_per_second": rate,
        "peak_memory_bytes": peak_memory,
        "resumed": [(record["step"], record["world_size"]) for record in resumed],
        "seconds_by_part": state.seconds_by_part,
    }


def about_plan(plan: Plan) -> dict[str, Any]:
    """Return the sizes of the tables, and which rank holds which shard."""
    return {
        "tables": {
            name: {"rows": table.num_embeddings, "columns": table.embedding_dim}
            for name, table in plan.job.tables.items()
        },
        "shards": [part._asdict() for part in plan.shards],
    }


def described(dataset: Dataset, examples: Sequence[Example]) -> dict[str, Any]:
    """Return the content of `examples.json`: each user's last items, target and recommendations, with original ids."""
    shown = [[example.target, *example.history[-N_EXAMPLE_ITEMS:], *example.items] for example in examples]
    distinct = np.unique(np.concatenate([np.zeros(0, np.int64), *map(np.asarray, shown)]).astype(np.int64))
    rows = dataset.item_rows(distinct, ["original", "title"]).to_pylist()
    by_item = dict(zip(distinct.tolist(), rows, strict=True))
    names = _names(dataset, [example.user for example in examples])

    def items(numbers: Iterable[int]) -> list[dict[str, Any]]:
        rows = [by_item[int(number)] for number in numbers]
        return [{"item": row["original"], "title": row.get("title") or ""} for row in rows]

    users = [
        {
            "user": names[example.user],
            "rank": example.rank,
            "n_history": len(example.history),
            "history": items(example.history[-N_EXAMPLE_ITEMS:]),
            "target": items([example.target])[0],
            "recommendations": [
                item | {"score": score}
                for item, score in zip(items(example.items), example.scores.tolist(), strict=True)
            ],
        }
        for example in examples
    ]
    return {"n_items": dataset.n_items, "n_test_users": len(dataset.splits["test"]), "users": users}


def _names(dataset: Dataset, users: Sequence[int]) -> dict[int, Any]:
    """Return the original ids of `users`, by index."""
    names = dataset.user_table.rows(np.array(users, np.int64), ["original"])["original"]
    return dict(zip(users, names.to_pylist(), strict=True))


def write_files(
    folder: Path, report: dict[str, Any], evaluator: Evaluator, result: EvaluationResult, examples: Sequence[Example],
    log: MetricsLog,
) -> None:  # fmt: skip
    """Write the files of the run in `folder`, and log its results; `report.json` makes it a finished run.

    It comes before the ranks and examples, which need more memory: a kill must not cost the report.
    """
    recent = result.fallback.recent_counts if result.fallback else None
    for path, facts in ((folder / RECENT_COUNTS, recent), (folder / COMES_AGAIN, evaluator.again)):
        with optional(path):
            write_facts(path, facts)
    report["warnings"] = warnings(checks(report, read_records(folder, "validation")))
    with optional(folder / PAGE):
        (folder / PAGE).write_text(report_page(report))
    write_json(folder / REPORT, report)
    with optional(folder / "ranks-*.parquet"):
        evaluator.write_ranks(folder, result.ranks, result.held_out)
    shown: dict[str, Any] = {"users": []}
    if examples:
        with optional(folder / EXAMPLES):
            shown = described(evaluator.dataset, examples)
            write_json(folder / EXAMPLES, shown)
    with optional(folder / HTML_PAGE, f"; bert4rec report {shlex.quote(str(folder))} writes it"):
        write_html(folder, Config().model_dump(mode="json"))
    tracked = {name: report[name] for name in RESULTS if name in report}
    files = [folder / name for name in (REPORT, PAGE, HTML_PAGE) if (folder / name).exists()]
    log.finish(flat_numbers(tracked), files)
    for warning in report["warnings"]:
        if warning["name"] != "below_baseline":  # the verdict says so
            logger.warning(warning["text"])
    logger.info(result_line(report))
    if added := prior(report):
        logger.info(added)
    if "test" in report and KINDS[report["kind"]].is_trained:
        _, text, baseline = verdict(report)
        logger.info(text)
        if baseline:
            command = ["bert4rec", "train", str(evaluator.dataset.folder), f"--model.kind={baseline}"]
            logger.info(f"to use {KINDS[baseline].title}: {shlex.join(command)}")
    logger.info(f"report: {files[-1]}")
    if not KINDS[report["kind"]].learns_pairs:
        user = str(shown["users"][0]["user"]) if shown["users"] else ""
        whom = [f"--user={user}"] if user.startswith("-") else ["--user", user] if user else ["--all"]
        logger.info(f"next: {shlex.join(['bert4rec', 'recommend', str(folder), *whom])}")


def write_facts(path: Path, facts: Int64s | Bools | None) -> None:
    """Write what a run knows of its items [n_items], bools or counts, as int32; None removes the file."""
    if facts is None:
        path.unlink(missing_ok=True)
    else:
        np.save(path, facts if facts.dtype == bool else facts.astype(np.int32))


@contextmanager
def optional(path: Path, advice: str = "") -> Iterator[None]:
    """Log one line instead of raising if `path` cannot be written, so that `report.json` is written anyway."""
    try:
        yield
    except Exception as error:
        reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {in_one_line(error)}"
        logger.warning(f"{path}: cannot be written: {reason}{advice}")
