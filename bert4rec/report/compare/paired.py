"""Paired differences: the metrics of the same users under two recommenders."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from bert4rec.dataset.format import LEFT_OUT
from bert4rec.evaluation.intervals import Difference, paired_difference
from bert4rec.evaluation.metrics import gains
from bert4rec.evaluation.ranker import Ranks
from bert4rec.evaluation.slices import rank_file
from bert4rec.report.compare.runs import Column
from bert4rec.runtime.errors import DataError

WHO = ("user", "target")
SEEN_DIFFERS = (
    "some leave out seen items and others do not (evaluation.seen_items); `bert4rec evaluate` measures one again"
)

Ints: TypeAlias = npt.NDArray[np.integer]
Differences: TypeAlias = dict[str, dict[str, Difference]]
"""Protocol → metric → difference."""


class RankedUsers(NamedTuple):
    """The rows of a file of ranks: `users` [U], `targets` [U], and the ranks [U] by protocol."""

    users: Ints
    targets: Ints
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
    if len({run.report["seen_items"] for run in runs}) > 1:
        return Pairs({}, SEEN_DIFFERS)
    if missing := next((run for run in runs if not (run.folder / rank_file(split)).is_file()), None):
        return Pairs(
            {}, f"{missing.folder} has no {rank_file(split)} (`bert4rec evaluate` writes one, into a folder of its own)"
        )
    ours, theirs = ([ranked_users(run.folder, run.report, split) for run in column.runs] for column in (first, other))
    if any(not _are_the_same(ours[0], ranked) for ranked in (*ours, *theirs)):
        return Pairs({}, "they were tested on different users")
    protocols = [name for name in ks if all(name in ranked.ranks for ranked in (*ours, *theirs))]
    return Pairs({name: dict(_differences(name, ours, theirs, ks[name])) for name in protocols})


def _differences(
    protocol: str, ours: Sequence[RankedUsers], theirs: Sequence[RankedUsers], ks: Sequence[int]
) -> Iterator[tuple[str, Difference]]:
    """Yield metric by metric, so that only the values of one are in memory."""
    before, after = ([gains(_counted(ranked.ranks[protocol]), ks) for ranked in column] for column in (ours, theirs))
    for of_before, of_after in zip(zip(*before, strict=True), zip(*after, strict=True), strict=True):
        difference = _mean([values for _, values in of_after]) - _mean([values for _, values in of_before])
        if len(difference):
            yield of_before[0][0], paired_difference(difference)


def _mean(values: Sequence[npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
    return sum(values[1:], values[0]) / len(values)


def _counted(ranks: Ints) -> Ints:
    return ranks[ranks != LEFT_OUT]


def ranked_users(folder: Path, report: Mapping[str, Any], split: str) -> RankedUsers:
    """Return the ranks of a `split` of the run in `folder`. Raises `DataError`."""
    path = folder / rank_file(split)
    try:
        table = pq.read_table(path)
        user, target = (table[name].to_numpy() for name in WHO)
        names = [name for name in report[split] if name in table.column_names]
        ranks = {name: table[name].fill_null(LEFT_OUT).to_numpy() for name in names}
    except (OSError, KeyError, pa.ArrowException) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None
    return RankedUsers(user, target, ranks)


def _are_the_same(one: RankedUsers, other: RankedUsers) -> bool:
    return np.array_equal(one.users, other.users) and np.array_equal(one.targets, other.targets)
