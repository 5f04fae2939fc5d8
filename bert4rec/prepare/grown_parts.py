"""Tasks that give the histories of a dataset new rows, and split and write them again, range by range of users."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from bert4rec.config.tables import Preprocessing
from bert4rec.dataset.format import (
    EVALUATED,
    FOLDERS,
    NEGATIVES,
    NO_TARGET,
    TEST_TIED,
    history_columns,
    kinds_of,
    negative_columns,
    numbers_of_kinds,
)
from bert4rec.dataset.hidden import HiddenEvents
from bert4rec.prepare.histories import with_visible
from bert4rec.prepare.negatives import count_held_out
from bert4rec.prepare.ordering import LIST_COLUMNS, in_time_order, to_histories
from bert4rec.prepare.rows import filters_in_order
from bert4rec.prepare.split import VALIDATION_STREAM, SplitRule, Targets, after_first, by_time, mark, with_offsets
from bert4rec.prepare.ties import is_tied, mix
from bert4rec.prepare.writer import PartWriter

MERGED, ITEM_CHANGES, TRAINED = "merged.arrow", "counted.arrow", "trained.arrow"
"""Files of tasks: histories with new rows; changes in the rows and in the training interactions of items."""
OF_OFFSETS = ("n_train", *EVALUATED, TEST_TIED)


class Cut(NamedTuple):
    """Split histories at an `instant` in seconds, with targets of these `kinds` of events, [] = all.

    Users from `first_new` on are validated by chance, with the probability `validated`, by the `seed`; those before
    stay validated or not.
    """

    instant: int
    kinds: Sequence[int]
    hidden: HiddenEvents | None
    validated: float
    seed: int
    first_new: int

    @classmethod
    def at(cls, instant: int, metadata: Mapping[str, Any], first_new: int, *, validated: float = 0.0) -> "Cut":
        """Return the cut at an `instant`, with the targets, hidden events and seed of the `metadata` of a dataset."""
        settings, kinds = Preprocessing.from_saved(metadata["preprocessing"]), kinds_of(metadata)
        targets = numbers_of_kinds("preprocessing.target_events", settings.target_events, kinds)
        hidden = HiddenEvents.of(metadata["preprocessing"], kinds)
        return cls(instant, targets, hidden, validated, settings.seed, first_new)

    def split(self, histories: pl.DataFrame) -> pl.DataFrame:
        """Return the histories with their offsets; the column `validated` says it of known users."""
        users = histories["user"].to_numpy()
        drawn = mix(self.seed, VALIDATION_STREAM, users) >> np.uint64(11) < self.validated * 2**53
        chosen = np.where(users < self.first_new, histories["validated"].fill_null(value=False).to_numpy(), drawn)
        histories = histories.with_columns(validated=pl.Series(chosen, dtype=pl.Boolean))
        return self._marked(histories, by_time(self.instant, self._targets))

    def split_new(self, histories: pl.DataFrame) -> pl.DataFrame:
        """Return the histories of users who were not there before, tested on what comes after their first row."""
        return self._marked(histories, after_first(self._targets))

    @property
    def _targets(self) -> Targets:
        return Targets(self.kinds, hides=self.hidden is not None)

    def _marked(self, histories: pl.DataFrame, rule: SplitRule) -> pl.DataFrame:
        if self.hidden is not None:
            histories = with_visible(histories, self.hidden)
        return with_offsets(mark(histories, rule, None))


def merge_rows(
    folder: Path, users: tuple[int, int], part: Path | None, day: Path, repeats: str, last: int
) -> dict[str, Any]:
    """Write the histories of those of `users` (first, before the last) who are in the file `day`, with its rows.

    `part`: the file with the older histories of these users, None for new ones. Returns how many `rows` there were, the
    `new` ones and those of them that are `late`, not after `last`, the time of the older last row, and `events`: how
    many more there are of each kind.
    """
    fresh = pl.scan_ipc(day).filter(pl.col("user").is_between(users[0], users[1] - 1)).collect()
    lists = [name for name in fresh.columns if name != "user"]
    older = _of_users(pl.read_ipc_stream(part), fresh["user"]) if part else fresh.clear()
    old, rows = (_rows(histories, lists) for histories in (older, fresh))
    copies = [frame.with_columns(copy=pl.int_range(pl.len()).over(rows.columns)) for frame in (old, rows)]
    new = copies[1].join(copies[0], on=copies[0].columns, how="anti", nulls_equal=True, maintain_order="left")
    merged = in_time_order(pl.concat([old, new.drop("copy")]))
    merged = merged.filter(*filters_in_order(Preprocessing(repeats=repeats)).values())  # type: ignore[arg-type]
    is_validated = pl.col("validation") > NO_TARGET if part else pl.lit(value=False)
    validated = older.select("user", validated=is_validated)
    histories = to_histories(merged).join(validated, on="user", how="left", maintain_order="left")
    histories.write_ipc(folder / MERGED, compression="lz4")
    _changes("item", merged, old).write_ipc(folder / ITEM_CHANGES, compression="lz4")
    events = Counter[int]()
    if "event" in merged.columns:
        events.update(dict(_changes("event", merged, old).iter_rows()))
    n_late = new.filter(pl.col("time") <= last).height
    return {"rows": len(rows), "new": len(new), "late": n_late, "events": [*events.items()]}


def _changes(name: str, rows: pl.DataFrame, before: pl.DataFrame) -> pl.DataFrame:
    """Return how many rows more than before have each value of a column, as `n`, where there are more or fewer."""
    counts = [frame.group_by(name).agg(n=pl.len().cast(pl.Int64) * sign) for frame, sign in ((rows, 1), (before, -1))]
    return pl.concat(counts).group_by(name).agg(pl.col("n").sum()).filter(pl.col("n") != 0).sort(name)


def _of_users(histories: pl.DataFrame, users: pl.Series) -> pl.DataFrame:
    return histories.filter(pl.col("user").is_in(users.implode()))


def _rows(histories: pl.DataFrame, lists: Sequence[str]) -> pl.DataFrame:
    """Return a row for each element of the `lists`, with their names as columns of rows."""
    names = {many: one for one, many in LIST_COLUMNS.items()}
    return histories.select("user", *lists).explode(lists, empty_as_null=False).rename(names, strict=False)


def write_grown(
    folder: Path, users: tuple[int, int], parts: Sequence[Path], merged: Sequence[Path], cut: Cut, has_ties: bool
) -> dict[str, Any]:
    """Write the part of a grown dataset with the `users` (first, before the last), and what changes in the counts.

    Their older histories are in the `parts`; the `merged` ones replace them.
    """
    is_inside = pl.col("user").is_between(users[0], users[1] - 1)
    changed = [found for path in merged if len(found := pl.read_ipc(path).filter(is_inside))]
    has_new = pl.concat([pl.Series("user", [], pl.Int32), *(frame["user"].cast(pl.Int32) for frame in changed)])
    frames, trained = [*changed], [pl.DataFrame(schema={"items": pl.Int32, "n": pl.Int64})]
    for path in parts:
        old = pl.read_ipc_stream(path).filter(is_inside)
        trained.append(trained_on(old).with_columns(-pl.col("n")))
        same = old.filter(~pl.col("user").is_in(has_new.implode()))
        frames.append(same.with_columns(validated=pl.col("validation") > NO_TARGET).drop(OF_OFFSETS, strict=False))
    histories = pl.concat([frame.cast({"user": pl.Int32}) for frame in frames], how="diagonal_relaxed").sort("user")
    split = cut.split(histories)
    counts = pl.concat([*trained, trained_on(split)]).group_by("items").agg(pl.col("n").sum()).sort("items")
    counts.filter(pl.col("n") != 0).write_ipc(folder / TRAINED, compression="lz4")
    return write_split(folder, users[0], split, has_ties=has_ties)


def write_scored(folder: Path, first: int, merged: Path, cut: Cut, has_ties: bool) -> dict[str, Any]:
    """Write the `merged` histories alone, as a part whose first user may be `first`; they are all known or all new."""
    histories = pl.read_ipc(merged).with_columns(validated=pl.lit(value=False))
    split = cut.split_new if first >= cut.first_new else cut.split
    return write_split(folder, first, split(histories), has_ties=has_ties)


def write_split(folder: Path, first: int, histories: pl.DataFrame, *, has_ties: bool) -> dict[str, Any]:
    """Write a part of both folders from histories with offsets; no user has negatives."""
    if has_ties:  # fractions of seconds are not known any more
        tied = is_tied(pl.col("times"), pl.when(pl.col("test") > NO_TARGET).then("test")).fill_null(value=False)
        histories = histories.with_columns(tied.cast(pl.Int8).alias(TEST_TIED))
    no_items = pl.lit([], pl.List(pl.Int32))
    negatives = evaluated_of(histories).select("user", *(no_items.alias(name) for name in NEGATIVES))
    columns = columns_of(histories.columns)
    writers = {name: PartWriter(folder / name, first, columns[name]) for name in FOLDERS}
    for writer, frame in zip(writers.values(), (histories, negatives), strict=True):
        writer.add(frame)
    files = {name: writer.close() for name, writer in writers.items()}
    return {"rows": int(histories["items"].list.len().sum()), "files": files, "held_out": _held_out(histories)}


def columns_of(names: Sequence[str]) -> dict[str, Any]:
    """Return the columns of both folders with their types, for histories with the columns `names`."""
    has = {f"has_{name}": name in names for name in ("times", "ratings", "events")}
    types = history_columns(**has, has_ties=TEST_TIED in names), negative_columns()
    return dict(zip(FOLDERS, types, strict=True))


def count_kept(folder: Path, part: Path) -> dict[str, Any]:
    """Return the counts of held-out users of a part that stays as it is."""
    return {"held_out": _held_out(pl.read_ipc_stream(part))}


def evaluated_of(histories: pl.DataFrame) -> pl.DataFrame:
    """Return the histories that have a target."""
    return histories.filter(pl.max_horizontal(EVALUATED) > NO_TARGET)


def _held_out(histories: pl.DataFrame) -> list[list[Any]]:
    """Return the counts of `count_held_out`; no user has negatives."""
    evaluated = evaluated_of(histories)
    counts = count_held_out(evaluated, np.zeros(len(evaluated), np.int64), 0)
    return [[*key, n] for key, n in counts.items()]


def trained_on(histories: pl.DataFrame) -> pl.DataFrame:
    """Return the number `n` of training interactions of each of `items` that has some."""
    trained = histories.select(pl.col("items").list.head("n_train").explode(empty_as_null=False))
    return trained["items"].value_counts(name="n").cast({"items": pl.Int32, "n": pl.Int64})
