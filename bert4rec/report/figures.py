"""Read the figures of a report: the files of its run, model and baselines, the validation curve; compare reports."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import tomli

from bert4rec.checkpoint.run_folder import BEST_LINK, CHECKPOINTS, CONFIG, ENVIRONMENT, EXAMPLES, PLAN, REPORT, found
from bert4rec.checkpoint.run_settings import how_to_continue
from bert4rec.config.kinds import KINDS, POPULARITY, UNTRAINED, Kind
from bert4rec.config.recognition import what_is
from bert4rec.evaluation import BEST_POSSIBLE
from bert4rec.report.log import flat_numbers, read_records
from bert4rec.runtime.errors import DataError, rounded
from bert4rec.runtime.files import atomic_write

FORMAT_VERSION = 1
MODEL = "model"
SPLITS = ("validation", "test", "popularity_baseline", "best_possible")
MAX_NAMED_DIFFERENCES = 3
TRAINED_TARGETS = "trained_targets"  # in `evaluation` of a report: those of another dataset that were trained on

Report = Mapping[str, Any]
Metrics = Mapping[str, Mapping[str, float]]
"""Protocol → metric → value."""
Settings = Mapping[str, Mapping[str, Any]]
"""Table → key → value."""


def write_json(path: Path, content: Report) -> None:
    """Write indented JSON, all or nothing: a report.json that exists is complete."""
    atomic_write(path, json.dumps(content, indent=2) + "\n")


def read_report(run: Path) -> dict[str, Any]:
    """Return the report of the finished run in the folder `run`. Raises `DataError` if it is missing or damaged."""
    try:
        report = json.loads((run / REPORT).read_text(encoding="utf-8"))
        if not isinstance(report, dict) or "dataset" not in report:
            raise ValueError("it does not name its dataset")
    except FileNotFoundError:
        if (run / CONFIG).is_file():
            measured = f"; or measure its best checkpoint: bert4rec evaluate {run}" if found(run / CHECKPOINTS) else ""
            raise DataError(
                f"{run}: this run is not finished, it has no {REPORT} yet; {how_to_continue(run)}{measured}"
            ) from None
        raise DataError(f"{run}: expected a finished run, with {REPORT}; {what_is(run)}") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{run / REPORT}: cannot be read: {error}") from None
    return report


@dataclass(frozen=True)
class Contents:
    """The contents of the files of a run; files that a run without training lacks are empty.

    `n_evaluated`: how many other checkpoints of the run have been evaluated on the test.
    """

    name: str
    report: dict[str, Any]
    train: list[dict[str, Any]]
    validations: list[dict[str, Any]]
    settings: Settings
    environment: dict[str, Any]
    plan: str
    examples: dict[str, Any]
    n_evaluated: int


def read_contents(folder: Path) -> Contents:
    """Return the files of the finished run in `folder`. Raises `OSError` or `ValueError` if it has no report."""
    return Contents(
        name=folder.absolute().name,
        report=json.loads((folder / REPORT).read_text()),
        train=read_records(folder, "train"),
        validations=read_records(folder, "validation"),
        settings=tomli.loads(_text(folder / CONFIG)),
        environment=json.loads(_text(folder / ENVIRONMENT) or "{}"),
        plan=_text(folder / PLAN),
        examples=json.loads(_text(folder / EXAMPLES) or "{}"),
        n_evaluated=_n_evaluated(folder),
    )


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _n_evaluated(folder: Path) -> int:
    """Return how many checkpoints other than the best have a test by `bert4rec evaluate` in the run folder."""
    names = set()
    for path in folder.glob(f"*/{REPORT}"):
        try:
            evaluated = json.loads(path.read_text())
            if "test" in evaluated:
                names.add(Path(evaluated["evaluation"]["weights"]["checkpoint"]).name)
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return len(names - {BEST_LINK, (folder / CHECKPOINTS / BEST_LINK).resolve().name})


def kind_of(report: Report) -> Kind:
    """Return the kind of the model; an unknown kind counts as bert4rec."""
    return KINDS.get(report.get("kind", ""), KINDS["bert4rec"])


class Candidate(NamedTuple):
    """The test metrics of the model, of a baseline, or of the best possible ranking.

    `intervals`: protocol → metric → (low, high), if known.
    """

    kind: str
    title: str
    metrics: Metrics
    intervals: Mapping[str, Mapping[str, Sequence[float]]]

    def interval(self, protocol: str, metric: str) -> Sequence[float] | None:
        """Return the interval of one figure; None if it is unknown."""
        return self.intervals.get(protocol, {}).get(metric)


def contestants(report: Report) -> list[Candidate]:
    """Return the model, the baselines, and the best possible ranking if it is known; [] without a test."""
    if not report.get("test"):
        return []
    title, intervals = report["model"], report.get("intervals", {})
    metrics = {POPULARITY: report.get("popularity_baseline"), **report.get("baselines", {})}
    baseline_intervals = {POPULARITY: intervals.get("popularity_baseline", {}), **intervals.get("baselines", {})}
    titles = {kind: KINDS[kind].title for kind in UNTRAINED}
    candidates = [
        Candidate(kind, titles.get(kind, kind), metrics[kind], baseline_intervals.get(kind, {}))
        for kind in dict.fromkeys([*UNTRAINED, *metrics])
        if metrics.get(kind)
    ]
    if best := report.get(BEST_POSSIBLE):
        candidates.append(Candidate(BEST_POSSIBLE, "best possible", best, intervals.get(BEST_POSSIBLE, {})))
    others = (one for one in candidates if one.title.lower() != title.lower())
    return [Candidate(MODEL, title, report["test"], intervals.get("test", {})), *others]


def main_protocol(report: Report) -> str | None:
    """Return the protocol whose figures are shown first: the full catalogue, if that was measured."""
    test = report.get("test", {})
    return next((name for name in ("full", *test) if name in test), None)


class Curve(NamedTuple):
    """The `metric` that validations are judged by, its `values`, the `epochs` as text, and `scores` (higher is
    better); all [validations].
    """

    metric: str
    values: list[float]
    epochs: list[str]
    scores: list[float]

    @property
    def best(self) -> int:
        """Return the index of the best validation; ties go to the first."""
        return self.scores.index(max(self.scores))


def curve_of(validations: Sequence[Report]) -> Curve | None:
    """Return the curve of NDCG@10 on the full catalogue, or of the RMSE of ratings; None without validations.

    >>> curve_of([{"epoch": 1.0, "ratings": {"RMSE": 0.5}}, {"epoch": 2.0, "ratings": {"RMSE": 0.25}}])
    Curve(metric='RMSE', values=[0.5, 0.25], epochs=['1', '2'], scores=[2.0, 4.0])
    """
    if not validations:
        return None
    epochs = [rounded(record["epoch"]) for record in validations]
    if all("full" in record for record in validations):
        values = [record["full"]["NDCG@10"] for record in validations]
        return Curve("NDCG@10", values, epochs, values)
    errors = [record["ratings"]["RMSE"] for record in validations]
    return Curve("RMSE", errors, epochs, [1 / error if error else float("inf") for error in errors])


def common_figures(report: Report, other: Report) -> dict[str, tuple[float, float]]:
    """Return every figure that both reports have, by its owner, protocol and metric, with both values."""
    ours, theirs = (
        flat_numbers(
            {split: each.get(split, {}) for split in SPLITS}
            | each.get("baselines", {})
            | {"ratings": {"held-out": each.get("ratings", {})}}
        )
        for each in (report, other)
    )
    return {name.replace("/", " "): (ours[name], theirs[name]) for name in sorted(ours.keys() & theirs.keys())}


def differences(report: Report, other: Report) -> str:
    """Return a line with the first figures that differ, to the last bit; "" if all common figures are equal.

    >>> one = {"test": {"full": {"users": 4, "HR@1": 0.25}}}
    >>> differences(one, {"test": {"full": {"users": 4, "HR@1": 0.5, "HR@5": 1.0}}})
    '1 of 2 figures differ: test full HR@1 0.25, not 0.5'
    """
    figures = common_figures(report, other)
    different = [f"{name} {one:.6g}, not {two:.6g}" for name, (one, two) in figures.items() if one != two]
    if not different:
        return ""
    n_more = len(different) - MAX_NAMED_DIFFERENCES
    more = f" and {n_more} more" if n_more > 0 else ""
    return f"{len(different)} of {len(figures)} figures differ: {'; '.join(different[:MAX_NAMED_DIFFERENCES])}{more}"
