"""Read the runs of a comparison, put those that differ only in the seed in one column, and pair the columns by user."""

import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tomli

from bert4rec.checkpoint.models_folder import run_at
from bert4rec.checkpoint.run_folder import CONFIG, METRICS_FILE
from bert4rec.config.load import flat
from bert4rec.dataset.format import LEFT_OUT
from bert4rec.evaluation.intervals import Difference, paired_difference
from bert4rec.evaluation.metrics import gains
from bert4rec.evaluation.ranker import Ranks
from bert4rec.evaluation.slices import rank_file
from bert4rec.report.figures import Report, read_report
from bert4rec.report.log import read_records
from bert4rec.runtime.arrays import Integers
from bert4rec.runtime.errors import DataError

SEED_SETTING = "training.seed"
DATASET_SETTINGS = ("data.dataset_dir", "data.path")  # the fingerprint identifies the dataset better
EMPTY_CELL = "–"
SEPARATOR = "; "
WHO = ("user", "target")
SEEN_DIFFERS = "not all leave out the same seen items (evaluation.seen_items); `bert4rec evaluate` measures one again"

Differences: TypeAlias = dict[str, dict[str, Difference]]
"""Protocol → metric → difference."""


@dataclass(frozen=True)
class Run:
    """A finished run or an evaluation, with its settings by "table.key", {} if they are unknown.

    `curve`: the epoch and the metrics of each validation.
    """

    folder: Path
    report: Report
    settings: Mapping[str, Any]
    curve: list[tuple[float, Mapping[str, float]]]

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of the dataset."""
        return str(self.report["dataset"]["fingerprint"])

    @property
    def seed(self) -> Any:
        """Return the seed of the training."""
        return self.settings.get(SEED_SETTING)


def read_run(folder: Path) -> Run:
    """Return the run in `folder`, or the evaluation with the settings of its parent run. Raises `DataError`.

    A models folder means the run of its champion.
    """
    folder = run_at(folder)
    return Run(folder, read_report(folder), _settings(folder), _curve(folder))


def _settings(folder: Path) -> dict[str, Any]:
    path = next((path for path in (folder / CONFIG, folder.parent / CONFIG) if path.is_file()), None)
    if path is None:
        return {}
    try:
        return flat(tomli.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, AttributeError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None


def _curve(folder: Path) -> list[tuple[float, Mapping[str, float]]]:
    try:
        records = read_records(folder, "validation")
        return [(float(record["epoch"]), record["full"]) for record in records if "full" in record]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder / METRICS_FILE}: cannot be read: {error}") from None


@dataclass(frozen=True)
class Column:
    """The runs of one setting, named by a letter."""

    letter: str
    runs: Sequence[Run]

    @property
    def title(self) -> str:
        """Return the head of the column."""
        return self.letter if len(self.runs) == 1 else f"{self.letter} ({len(self.runs)} runs)"

    @property
    def first(self) -> Run:
        """Return the first run: what all runs have in common is read from it."""
        return self.runs[0]

    @property
    def model(self) -> str:
        """Return the name of the model."""
        return str(self.first.report["model"])

    @property
    def trainings(self) -> list[Mapping[str, Any]]:
        """Return the training facts of each report; evaluations have none."""
        return [run.report["training"] for run in self.runs if "training" in run.report]


def columns(runs: Sequence[Run]) -> list[Column]:
    """Return the columns, in the order of their first runs."""
    groups: list[tuple[dict[str, Any], list[Run]]] = []
    for run in runs:
        key = {"fingerprint": run.fingerprint, "settings": bool(run.settings), **_comparable(run, with_seed=False)}
        equal = (group for other, group in groups if other == key and run.seed not in [one.seed for one in group])
        group = next(equal, None) if run.settings else None
        if group is None:
            groups.append((key, [run]))
        else:
            group.append(run)
    letters = string.ascii_uppercase  # A, B, …, Z, A1, B1, …
    return [Column(f"{letters[n % 26]}{n // 26 or ''}", group) for n, (_, group) in enumerate(groups)]


def differing_settings(compared: Sequence[Column]) -> dict[str, list[str]]:
    """Return setting → its value in each column, or all values of its runs, for settings that differ."""
    values = [[_comparable(run, with_seed=True) for run in column.runs] for column in compared]
    names = dict.fromkeys(name for column in values for run in column for name in run)
    found = {name: [_distinct(run.get(name) for run in column) for column in values] for name in names}
    return {name: shown for name, shown in found.items() if len({*shown}) > 1 or SEPARATOR in shown[0]}


def _distinct(values: Iterable[Any]) -> str:
    return SEPARATOR.join(dict.fromkeys(map(_shown, values)))


def _comparable(run: Run, *, with_seed: bool) -> dict[str, Any]:
    """Return the settings that can change the figures, the number of processes, and the dataset."""
    settings = {
        name: value
        for name, value in run.settings.items()
        if not name.startswith("run.") and name not in DATASET_SETTINGS and (with_seed or name != SEED_SETTING)
    }
    dataset = f"{run.report['dataset']['source']} {run.fingerprint[:12]}"
    return settings | {"processes": run.report["world_size"], "dataset": dataset}


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return EMPTY_CELL if value is None else str(value)


class RankedUsers(NamedTuple):
    """The rows of a file of ranks: users and targets [2, U], and the ranks [U] by protocol."""

    who: Integers
    ranks: Ranks


class Pairs(NamedTuple):
    """The differences of a column from the first one, positive if it is better; or why they are unknown."""

    differences: Differences
    problem: str = ""


def pairs(first: Column, other: Column, ks: Mapping[str, Sequence[int]], *, split: str) -> Pairs:
    """Return the differences by all common protocols at their cut-offs `ks`; a user's value is the mean over the runs.

    Raises `DataError` for a file that cannot be read.
    """
    runs = [*first.runs, *other.runs]
    if len({run.fingerprint for run in runs}) > 1:
        return Pairs({}, "they were measured on different datasets")
    if len({(run.report["seen_items"], run.report.get("items_again")) for run in runs}) > 1:
        return Pairs({}, SEEN_DIFFERS)
    if missing := next((run for run in runs if not (run.folder / rank_file(split)).is_file()), None):
        return Pairs({}, f"{missing.folder} has no {rank_file(split)}; create it with `bert4rec evaluate`")
    ours, theirs = ([ranked_users(run.folder, run.report, split) for run in column.runs] for column in (first, other))
    if not all(np.array_equal(ours[0].who, ranked.who) for ranked in (*ours, *theirs)):
        return Pairs({}, "they were tested on different users")
    protocols = [name for name in ks if all(name in ranked.ranks for ranked in (*ours, *theirs))]
    return Pairs({name: dict(_differences(name, ours, theirs, ks[name])) for name in protocols})


def _differences(
    protocol: str, ours: Sequence[RankedUsers], theirs: Sequence[RankedUsers], ks: Sequence[int]
) -> Iterator[tuple[str, Difference]]:
    """Yield the difference of each metric, one by one, so that the values of only one metric are in memory."""
    before, after = (
        [gains(ranks[ranks != LEFT_OUT], ks) for ranks in (ranked.ranks[protocol] for ranked in column)]
        for column in (ours, theirs)
    )
    for gains_before, gains_after in zip(zip(*before, strict=True), zip(*after, strict=True), strict=True):
        mean_before, mean_after = (
            np.mean([values for _, values in column], axis=0) for column in (gains_before, gains_after)
        )
        if len(mean_before):
            yield gains_before[0][0], paired_difference(mean_after - mean_before)


def ranked_users(folder: Path, report: Mapping[str, Any], split: str) -> RankedUsers:
    """Return the ranks of a `split` of the run in `folder`. Raises `DataError`."""
    path = folder / rank_file(split)
    try:
        table = pq.read_table(path)
        who = np.stack([table[name].to_numpy() for name in WHO])
        names = [name for name in report[split] if name in table.column_names]
        ranks = {name: table[name].fill_null(LEFT_OUT).to_numpy() for name in names}
    except (OSError, KeyError, pa.ArrowException) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None
    return RankedUsers(who, ranks)
