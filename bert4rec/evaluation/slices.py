"""Metrics of slices of the users: by history length, popularity, repetition and category of the target, and time.

All metrics are those of the full catalogue. The slices of each kind contain every user once. A slice of fewer than
`LEAST_USERS` users has no intervals; where the slices have an order, it is joined with its neighbour.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bert4rec.dataset.format import LEFT_OUT, one_array
from bert4rec.dataset.hidden import Copies
from bert4rec.dataset.reader import Dataset
from bert4rec.evaluation.batches import chunks
from bert4rec.evaluation.intervals import rank_intervals
from bert4rec.evaluation.metrics import ranking_metrics
from bert4rec.evaluation.ranker import Ranks
from bert4rec.runtime.arrays import Bools, Int64s, Integers

LENGTHS = (5, 10, 20, 50, 100, 200)  # the longest history of each slice but the last
AT = 10  # the cut-off
RANKS_AT_ONCE = 65_536
LEAST_USERS = 30  # users of a slice with intervals
SLICE_METRICS = (f"HR@{AT}", f"NDCG@{AT}")
POPULARITY_THIRDS = ("head", "middle", "tail")  # thirds of all training positions, the most popular items first
CATEGORIES = 8  # values of a category that have a slice of their own
THIRDS = ("first", "second", "last")

T = TypeVar("T")
Parts: TypeAlias = Iterator[tuple[str, Bools]]


class TargetFacts(NamedTuple):
    """Facts about U users and their targets.

    - `history_length` [U]: number of items before the target.
    - `train_count` [U]: number of training positions of the target.
    - `is_repeated` [U]: whether the user has seen the target before.
    - `last_time` [U]: the time of the last item before the target, in seconds; None if the dataset has no times.
    - `is_tied` [U]: whether the target has the time of the item before it; None if that is unknown.
    - `copies`: whether the target's item is in the input; None without kinds of events that are predicted.
    - `users_of_several` [U]: their users, if a user may have several targets, else None.
    - `categories`: for each item feature of the kind category the values [U] of the targets; "" for one without.
    """

    history_length: Int64s
    train_count: Integers
    is_repeated: Bools
    last_time: Int64s | None
    categories: Mapping[str, Sequence[str]] = MappingProxyType({})
    is_tied: Bools | None = None
    copies: Copies | None = None
    users_of_several: Integers | None = None

    @classmethod
    def of(cls, dataset: Dataset, split: str, is_repeated: Bools) -> "TargetFacts":
        """Return the facts about all users of a split."""
        rows = dataset.splits[split].everything
        indices = np.arange(len(rows))
        targets = rows.targets(indices)
        categories = {} if dataset.features is None else dataset.features.categories_of(targets.astype(np.int64))
        return cls(
            rows.lengths(indices),
            dataset.popularity[targets],
            is_repeated,
            rows.last_times,
            categories,
            rows.are_tied,
            users_of_several=dataset.splits[split].users_of_several,
        )


def slices(
    facts: TargetFacts, ranks: Integers, popularity: Integers, baselines: Mapping[str, Integers] | None = None
) -> dict[str, list[dict[str, Any]]]:
    """Return kind → slices, each with name, users, metrics and, if it is not too small, their intervals.

    There are no empty slices.

    `ranks` [U] are those of the targets, `popularity` [V] the training positions of all items. With the ranks [U] of
    `baselines`, a slice has the same figures for its `strongest_baseline`: the one with the highest NDCG@10 there.
    """
    kinds = {
        "history_length": _joined(_by_length(facts.history_length), _name_of_lengths),
        "item_popularity": _joined(_by_popularity(facts.train_count, popularity), " and ".join),
        "target": iter([("known", facts.train_count > 0), ("cold", facts.train_count == 0)]),
        "repeated": iter([("new", ~facts.is_repeated), ("repeated", facts.is_repeated)]),
        "ties": _by_ties(facts.is_tied),
        "answer_in_input": _by_copies(facts.copies),
        "time": _joined(_by_time(facts.last_time), _name_of_thirds),
        **{f"category: {name}": _by_category(values) for name, values in facts.categories.items()},
    }
    several = facts.users_of_several
    found = {
        kind: [
            {"name": name, "users": int(part.sum())}
            | _figures(ranks[part], users := None if several is None else several[part])
            | _strongest({kind: ranks[part] for kind, ranks in (baselines or {}).items()}, users)
            for name, part in parts
            if part.any()
        ]
        for kind, parts in kinds.items()
    }
    return {kind: parts for kind, parts in found.items() if parts}


def _figures(ranks: Integers, users: Integers | None) -> dict[str, Any]:
    metrics = ranking_metrics(ranks, [AT])
    figures: dict[str, Any] = {metric: metrics[metric] for metric in SLICE_METRICS}
    if len(ranks) >= LEAST_USERS:
        intervals = rank_intervals(ranks, [AT], users)
        figures["intervals"] = {metric: intervals[metric] for metric in SLICE_METRICS}
    return figures


def _strongest(baselines: Mapping[str, Integers], users: Integers | None) -> dict[str, Any]:
    if not baselines:
        return {}
    kind = max(baselines, key=lambda name: ranking_metrics(baselines[name], [AT])[f"NDCG@{AT}"])
    return {"strongest_baseline": {"kind": kind, **_figures(baselines[kind], users)}}


def _joined(parts: Iterable[tuple[T, Bools]], name: Callable[[list[T]], str]) -> Parts:
    """Yield ordered parts of the users, each joined with the next ones until it has `LEAST_USERS` users, none empty.

    The last ones are joined with the one before if they are too few. `name` names a slice by the labels of its parts.
    """
    joined: list[tuple[list[T], Bools]] = []
    for label, part in parts:
        if not part.any():
            continue
        if joined and joined[-1][1].sum() < LEAST_USERS:
            labels, users = joined.pop()
            joined.append(([*labels, label], users | part))
        else:
            joined.append(([label], part))
    if len(joined) > 1 and joined[-1][1].sum() < LEAST_USERS:
        (labels, users), (last_labels, last) = joined[-2:]
        joined[-2:] = [(labels + last_labels, users | last)]
    yield from ((name(labels), users) for labels, users in joined)


def _by_length(lengths: Integers) -> Iterator[tuple[tuple[int, int], Bools]]:
    """Yield slices of the users by history length: the shortest and the longest, or 0.

    >>> [(name, part.tolist()) for name, part in _by_length(np.array([5, 6, 201])) if part.any()]
    [((1, 5), [True, False, False]), ((6, 10), [False, True, False]), ((201, 0), [False, False, True])]
    """
    shortest = 1
    for longest in LENGTHS:
        yield (shortest, longest), (lengths >= shortest) & (lengths <= longest)
        shortest = longest + 1
    yield (shortest, 0), lengths >= shortest


def _name_of_lengths(limits: Sequence[tuple[int, int]]) -> str:
    """Return the name of joined slices by history length.

    >>> _name_of_lengths([(6, 10), (11, 20)]), _name_of_lengths([(101, 200), (201, 0)])
    ('6 to 20', 'more than 100')
    """
    shortest, longest = limits[0][0], limits[-1][1]
    return f"{shortest} to {longest}" if longest else f"more than {shortest - 1}"


def _by_popularity(counts: Integers, popularity: Integers) -> Parts:
    """Yield slices of the users by the popularity of their target, in thirds of all training positions.

    >>> [(name, part.tolist()) for name, part in _by_popularity(np.array([0, 4, 3]), np.array([4, 0, 3, 2, 0]))]
    [('head', [False, True, False]), ('middle', [False, False, True]), ('tail', [True, False, False])]
    """
    distinct, n_items = np.unique(popularity, return_counts=True)
    positions = distinct.astype(np.int64) * n_items
    total = int(positions.sum())
    # Items with the same count stay together, since their order would be arbitrary.
    third = np.minimum(3 * (total - positions.cumsum()) // max(1, total), 2)
    target_thirds = np.where(counts > 0, third[np.searchsorted(distinct, counts)], 2)
    yield from ((name, target_thirds == number) for number, name in enumerate(POPULARITY_THIRDS))


def _by_category(values: Sequence[str]) -> Parts:
    """Yield slices of the users by a category of their target: the most frequent values, then all others.

    >>> [(name, part.tolist()) for name, part in _by_category(["a", "b", "a"])]
    [('a', [True, False, True]), ('b', [False, True, False]), ('others', [False, False, False])]
    """
    array = np.array(values)
    most = [name for name, _ in Counter(value for value in values if value).most_common(CATEGORIES)]
    yield from ((name, array == name) for name in most)
    yield "others", ~np.isin(array, most)


def _by_ties(is_tied: Bools | None) -> Parts:
    """Yield slices of the users by whether only the file orders the target and the item before; none without ties."""
    if is_tied is not None and is_tied.any():
        yield from (("at a new time", ~is_tied), ("tied with the item before", is_tied))


def _by_copies(copies: Copies | None) -> Parts:
    """Yield slices of the users by whether the target's item is in the input; none if it is in no user's."""
    if copies is not None and copies.either.any():
        yield "in the same visit", copies.in_visit
        yield "since the last target", copies.since_last & ~copies.in_visit
        yield "no", ~copies.either


def _by_time(times: Integers | None) -> Iterator[tuple[tuple[str, int, int], Bools]]:
    """Yield thirds of the users by query time, with their first and last times; equal times stay together."""
    if times is None or not len(times):
        return
    ordered = np.sort(times)
    limits = [ordered[0] - 1, *(ordered[-(-len(ordered) * part // 3) - 1] for part in (1, 2)), ordered[-1]]
    for name, after, last in zip(THIRDS, limits, limits[1:], strict=False):
        part = (times > after) & (times <= last)
        if part.any():
            yield (name, int(times[part].min()), int(last)), part


def _name_of_thirds(thirds: Sequence[tuple[str, int, int]]) -> str:
    """Return the name of joined thirds.

    >>> _name_of_thirds([("first", 0, 86_400), ("second", 90_000, 172_800)])
    'first and second third: 1970-01-01 to 1970-01-03'
    """
    days = (datetime.fromtimestamp(time, UTC).date() for time in (thirds[0][1], thirds[-1][2]))
    return f"{' and '.join(name for name, *_ in thirds)} third: {' to '.join(map(str, days))}"


def rank_file(split: str) -> str:
    """Return the name of the file with the ranks of a split."""
    return f"ranks-{split}.parquet"


def write_ranks(folder: Path, dataset: Dataset, ranks: Mapping[str, Ranks], facts: Mapping[str, TargetFacts]) -> None:
    """Write `ranks-<split>.parquet` of each split of `facts` into `folder` atomically.

    `ranks`: of the model, by split. Raises `OSError`.
    """
    for split, split_facts in facts.items():
        rows, unfinished = _rows(dataset, split, ranks[split], split_facts), folder / f"{rank_file(split)}.tmp"
        try:
            first = next(rows)
            with pq.ParquetWriter(unfinished, first.schema) as writer:
                writer.write_batch(first)
                for batch in rows:
                    writer.write_batch(batch)
            unfinished.replace(folder / rank_file(split))
        finally:
            unfinished.unlink(missing_ok=True)


def _rows(dataset: Dataset, split: str, ranks: Ranks, facts: TargetFacts) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a split, some at a time."""
    held_out = dataset.splits[split].everything
    users = held_out.users
    distinct = np.unique(held_out.targets(np.arange(len(users)))).astype(np.int64)
    original_items = one_array(dataset.item_rows(distinct, ["original"])["original"])
    for some in chunks(len(users), RANKS_AT_ONCE):
        rows = np.arange(some.start, some.stop)
        targets = held_out.targets(rows)
        yield pa.RecordBatch.from_pydict(
            {
                "user": users[rows],
                "original_user": one_array(dataset.user_table.rows(users[rows], ["original"])["original"]),
                "target": targets,
                "original_item": original_items.take(pa.array(np.searchsorted(distinct, targets))),
                "is_repeated": facts.is_repeated[rows],
                "history_length": facts.history_length[rows].astype(np.int32),
                "train_count": facts.train_count[rows].astype(np.int32),
                **({} if facts.last_time is None else {"last_time": pa.array(facts.last_time[rows], pa.int64())}),
                **{n: pa.array(v[rows], pa.int32(), mask=v[rows] == LEFT_OUT) for n, v in ranks.items()},
            }
        )
