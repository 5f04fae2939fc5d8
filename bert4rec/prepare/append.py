"""Append rows to a dataset: all numbers stay, and only the parts of users with new rows are written again.

The new rows are read as the first log was. They join the histories of their users by time, after older rows of the same
second. A row that the dataset has already, with the same user, item, time, rating and kind of event, is not doubled: of
equal rows, there are then as many as the input or the dataset has, whichever has more. The limits for the interactions
of users and items are those of the first preparation: every user and item of the new rows is kept.

The grown dataset is split by time: what comes from an instant on is held out, with the first row of each user as the
target, and everything before it is for training. So the rows that the older dataset holds out are trained on now, and
parts with such rows are written again, too. There are no negatives.
"""

import shutil
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from bert4rec.config.load import Overrides, load_and_recognize
from bert4rec.config.tables import Config
from bert4rec.dataset.format import LISTS
from bert4rec.dataset.reader import read_metadata
from bert4rec.prepare.about_items import read_about_items, read_items_of_file
from bert4rec.prepare.catalogue import number_all_items
from bert4rec.prepare.engine import TASK_BYTES, WORK, Opened, about_work, look_at_rows, open_input
from bert4rec.prepare.executors import open_executor
from bert4rec.prepare.folder import new_dataset, work_folder
from bert4rec.prepare.grown_folder import Day, GrownFolder
from bert4rec.prepare.histories import NumberedHistories
from bert4rec.prepare.inherit import with_inherited
from bert4rec.prepare.ordering import ExistingIds, item_ids
from bert4rec.prepare.raw_rows import read_rows
from bert4rec.prepare.rows import order_rows
from bert4rec.prepare.runs import read_known_once
from bert4rec.prepare.stages import Stages, saved, whole_file
from bert4rec.runtime.errors import DataError
from bert4rec.sources.interactions import Interactions
from bert4rec.sources.progress import Progress
from bert4rec.sources.remote import LocalFiles, local_files
from bert4rec.sources.times import DAY

NO_LIMITS = {"min_user_interactions": 1, "max_user_interactions": 0, "min_item_interactions": 1, "repeats": "keep"}


class Appended(NamedTuple):
    """The numbers of what was appended to a dataset.

    `rows` that could be used; of them those that are `new`; of these the `late` ones, not later than the last row of
    the dataset. `bad` rows, and `guests`, rows without a user. `users` and `items` with rows, and the new ones among
    them. `span`: first and last time of the rows, `last`: that of the last row before; `future`: rows later than now,
    which are left out; `largest`: the largest share of the rows that a user has; `shift`: by how much the rows are of
    other items, by popularity, than those that were trained on (`popularity_shift`). The rows from `instant` on are
    held out.
    """

    rows: int
    new: int
    late: int
    bad: int
    guests: int
    users: int
    new_users: int
    items: int
    new_items: int
    span: tuple[int, int]
    last: int
    future: int
    largest: float
    shift: float
    instant: int


def settings_to_append(previous: Path, given: Mapping[str, Any]) -> Config:
    """Return the settings to append an input to the dataset `previous`: `given` names it, the rest is as it was read.

    Raises `SettingsError` and `DataError`, in one line, for an input that is not there.
    """
    fixed = {"data.extends": str(previous), "preprocessing.split": "none"}
    typed = given.typed if isinstance(given, Overrides) else {}
    config, _ = load_and_recognize(None, with_inherited(None, Overrides({**given, **fixed}, typed)))
    return config


def append(
    previous: Path, config: Config, folder: Path, *, tail: float, scored: Path, overlap_hours: float = 0.0
) -> Appended:
    """Write the dataset `previous` with the rows that `config` names to `folder`, and return what they are.

    In a query, {since} is the time of the last row of `previous`, less `overlap_hours`; of a lake, rows before it are
    not read. Of the rows that are later than `previous`, the last share `tail` is held out. `scored` gets a dataset of
    the users with new rows alone, in which all rows later than `previous` are held out, but for the first one of each
    new user. Raises `DataError`, in one line, for rows that cannot be read as those of `previous`; then nothing is
    written.
    """
    metadata, settings = read_metadata(previous), config.preprocessing
    if not metadata["has_times"]:
        raise DataError(
            f"{previous}: has no times, by which new rows find their places; prepare the log again with --time=COLUMN"
        )
    since = int(metadata["time_span"][1] - 3600 * overlap_hours)
    known, progress = read_known_once(previous, metadata["fingerprint"]), Progress()
    with (
        ExitStack() as after,
        new_dataset(folder) as new,
        new_dataset(scored) as new_scored,
        local_files(config.data, new / WORK / "copies", progress, since=since) as local,
    ):
        opened = open_input(local.data, settings, known, progress, needs_features=False)
        about = about_work(config, opened.source, local, known) | {"tail": tail}
        work = after.enter_context(work_folder(folder, about, progress))
        n_bytes = opened.source.n_bytes if isinstance(opened.source, Interactions) else 0
        with open_executor(settings.engine, settings.workers, n_bytes=n_bytes, memory=TASK_BYTES) as executor:
            stages = Stages(work, executor, progress)
            day = _read(opened, known, previous, config, local, stages, progress)
            shutil.rmtree(new / WORK, ignore_errors=True)  # copies of a remote input
            grown = GrownFolder(previous, metadata, known, settings, stages, tail)
            grown.write(day, new)
            grown.write_scored(day, new, new_scored)
    read_known_once.cache_clear()
    times, n_rows = day.times, day.histories["items"].list.len().to_numpy()
    return Appended(
        **grown.counts, bad=day.bad.total(), guests=day.guests, users=len(day.histories), new_users=len(day.new_users),
        items=day.n_items, new_items=len(day.new_items), span=(int(times.min()), int(times.max())),
        last=int(metadata["time_span"][1]),
        future=day.future, largest=float(n_rows.max() / n_rows.sum()),
        shift=grown.shift(day), instant=grown.instant(day),
    )  # fmt: skip


def _read(
    opened: Opened, known: ExistingIds, previous: Path, config: Config, local: LocalFiles, stages: Stages,
    progress: Progress,
) -> Day:  # fmt: skip
    """Return the rows of the input, with the numbers of their users and items."""
    # Local times are up to 14 hours ahead of UTC. One wrong clock must not decide what is late from now on.
    until = {"time_until": str(int(time.time()) + DAY)}
    source, data, settings = opened.source, local.data, config.preprocessing.model_copy(update=NO_LIMITS | until)
    extends = (previous, known.fingerprints[0])
    raw = read_rows(source, settings, known, stages, extends)
    look_at_rows(raw, source.bad, local, progress)
    if more := [kind for kind in opened.kinds if kind not in known.kinds]:
        has = f"has kinds of events that {previous} does not have: {', '.join(more)}"
        raise DataError(f"{config.data.path}: {has}; give these rows one of its kinds: {', '.join(known.kinds[1:])}")
    file = read_items_of_file(data, source, raw.item_type, opened.fitted, opened.others)
    originals, in_file = known.items["original"], file.rows["original"] if file else None
    catalogue = number_all_items(raw, [originals], in_file, stages, with_prints=settings.ties == "shuffle")
    about = read_about_items(data, source, raw.item_type, catalogue, file, opened.others, opened.fitted, progress)
    ordered = order_rows(raw, catalogue, settings, source.order, stages, extends=extends)
    n_future = ordered.dropped["time_until"]
    if not ordered.counts.any():
        future = f"; {n_future:,} are in the future: a clock or the format of the times is wrong" if n_future else ""
        raise DataError(f"{config.data.path}: none of its {len(raw):,} rows passes the filters of {previous}{future}")
    kept = (ordered.counts > 0) | catalogue.are_cold
    by_code = catalogue.codes(originals), known.items["item"].to_numpy()
    ids = saved(stages.work / "item_ids.npy", item_ids(kept, seed=settings.seed, known=by_code))
    numbered = NumberedHistories(ordered, ids, known=known.users["original"], hidden=None)
    users = pl.concat(frame.filter(pl.col("user") >= len(known.users)) for frame in numbered.users(stages))
    items = pl.DataFrame({"item": np.load(ids), "original": pl.concat(catalogue.ranges("item"))["item"]})
    items = items.filter(pl.col("item") >= len(known.items))
    titles = about.titles.rename({"item": "original"}) if about.titles is not None else None
    for more_of_items in (titles, about.table.rows.drop("title", strict=False) if about.table else None):
        if more_of_items is not None:
            more_of_items = more_of_items.cast({"original": items.schema["original"]})
            items = items.join(more_of_items, on="original", how="left", maintain_order="left")
    histories = pl.concat(part.histories() for part in numbered.parts).sort("user")
    histories = histories.select("user", *(name for name in LISTS if name in histories.columns))
    with whole_file(stages.work / "day.arrow") as unfinished:
        histories.write_ipc(unfinished)
    return Day(
        histories, stages.work / "day.arrow", users.select("user", "original"), items, about.table, source.bad.counts,
        source.bad.guests, n_future,
    )  # fmt: skip
