"""Prepare a dataset folder, from reading the source to writing the metadata."""

import hashlib
import logging
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from bert4rec.config.addresses import is_url
from bert4rec.config.tables import Config, Data, Preprocessing
from bert4rec.dataset.findings import findings
from bert4rec.dataset.format import (
    DATASET_CARD,
    EVENTS,
    FOLDERS,
    ITEMS,
    METADATA,
    ORACLE,
    PREVIOUS,
    READING,
    USERS,
    dataset_card,
    describe,
    fingerprint_of,
    lengths_of,
    numbers_of_kinds,
)
from bert4rec.dataset.hidden import HiddenEvents
from bert4rec.dataset.id_tables import IdTable
from bert4rec.dataset.reader import read_metadata
from bert4rec.dataset.runs import named, runs_of
from bert4rec.prepare.about_items import (
    AboutItems,
    OtherColumns,
    look_at_other_columns,
    read_about_items,
    read_items_of_file,
)
from bert4rec.prepare.catalogue import Catalogue, compare_with_known, number_all_items
from bert4rec.prepare.destination import destination_of, origin_of
from bert4rec.prepare.executors import open_executor
from bert4rec.prepare.folder import new_dataset, work_folder, work_in_storage, write_metadata
from bert4rec.prepare.histories import HistoryStats, NumberedHistories, history_stats
from bert4rec.prepare.id_files import item_rows, write_items, write_table, write_users
from bert4rec.prepare.inherit import reading_of
from bert4rec.prepare.negatives import held_out_metadata, left_out_warning
from bert4rec.prepare.ordering import ExistingIds, item_ids, read_ids
from bert4rec.prepare.raw_rows import RawRows, read_rows
from bert4rec.prepare.rows import FILTERS, OrderedRows, limit_rows, order_rows
from bert4rec.prepare.runs import read_known_once
from bert4rec.prepare.shared_work import SharedWork
from bert4rec.prepare.split import choose_split, read_known_split
from bert4rec.prepare.stages import Stages, saved
from bert4rec.prepare.survey import survey_ids
from bert4rec.prepare.ties import has_ties
from bert4rec.prepare.writer import Split, Written, hugging_face, write_histories
from bert4rec.runtime.arrays import Bools, Int32s, Int64s
from bert4rec.runtime.errors import DataError
from bert4rec.runtime.files import sample_sha256, sha256
from bert4rec.runtime.storage import is_stored
from bert4rec.sources.attributes import ItemValues
from bert4rec.sources.first_look import first_look, order_options
from bert4rec.sources.interactions import Interactions, open_source
from bert4rec.sources.item_features import Fitted, read_fitted, write_features
from bert4rec.sources.progress import BadRows, Progress
from bert4rec.sources.remote import LocalFiles, local_files
from bert4rec.sources.synthetic import GeneratedSource, oracle_ranks

MOST_HASHED = 2**28  # bytes, about a second; files of public datasets are smaller
WORK = ".work"  # folder for temporary files, inside the new dataset folder
TASK_BYTES = 1 << 30  # memory of a task that Ray plans with
logger = logging.getLogger(__name__)


def describe_rows(
    config: Config, source: Interactions | GeneratedSource, ordered: OrderedRows, survey: HistoryStats,
    columns: Mapping[str, Any], version: Mapping[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """Return the metadata of the rows: their origin, how many were read, dropped and kept, and their statistics.

    `columns`: those of events and sessions that no setting names. `version`: the state of what was copied to be read.
    """
    n_rows, n_users, n_items = int(ordered.counts.sum()), len(survey.lengths), len(survey.train_counts)
    bad = source.bad
    kinds = source.kinds if isinstance(source, Interactions) and "event" in source.columns else []
    return {
        "created_from": origin_of(config.data) | _checksum(config.data.path) | dict(version),
        "source": config.data.source,
        "preprocessing": config.preprocessing.recipe,
        "extends": bool(config.data.extends),
        "order": dict(source.order),
        **({READING: reading} if (reading := reading_of(config)) else {}),
        **_about_log(source, ordered, survey, columns),
        "rows_read": ordered.n_rows_read + bad.total + bad.guests,
        "users_read": ordered.n_users_read,
        "items_read": ordered.catalogue.n_read,
        "bad_rows": dict(sorted(bad.counts.items())),
        "guests": bad.guests,
        "dropped": {name: ordered.dropped[name] for name in FILTERS if ordered.dropped[name]},
        "rows": n_rows,
        "users": n_users,
        "items": n_items,
        "density": n_rows / (n_users * n_items),
        "lengths": lengths_of(survey.lengths[survey.lengths > 0]),
        "time_span": list(survey.time_span) if survey.time_span else None,
        "train_positions": int(survey.train_counts.sum()),
        "has_times": "time" in ordered.columns,
        "has_ratings": "rating" in ordered.columns,
        **({"has_ties": True} if has_ties(ordered.columns) else {}),
        **({EVENTS: dict(zip_longest(kinds, survey.event_counts, fillvalue=0))} if kinds else {}),
    }


def _about_log(
    source: Interactions | GeneratedSource, ordered: OrderedRows, survey: HistoryStats, columns: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the columns of a table, the format of its times, and the `log` of `findings`; {} for generated data."""
    if isinstance(source, GeneratedSource):
        return {}
    table = {"columns": dict(source.columns), "time_format": source.times.time_format}
    named = {name: value for name, value in table.items() if value and source.source.form == "table"}
    log = survey.log.result(survey.lengths, ordered.counts, survey.known_span(time.time()), columns)
    unordered = {"unordered": dict(source.n_unordered)} if source.n_unordered else {}
    return named | {"log": log | {"order_options": order_options(source)} | unordered}


def _checksum(name: str) -> dict[str, str]:
    """Return the SHA-256 of one local file that is not too large; a report uses it to find published results."""
    path = Path(name)
    if is_url(name) or not path.is_file() or path.stat().st_size > MOST_HASHED:
        return {}
    return {"sha256": sha256(path)}


def prepare(config: Config) -> str:
    """Make the dataset that `config` describes, log the progress, and return its folder or address.

    A dataset that a run was trained on is not replaced by another one, unless `data.replace` is set: the new one gets
    the folder -2, -3, …, if no setting names the folder. Raises `DataError` or `SettingsError`, with one line, if it
    cannot be prepared; then no files are left.
    """
    destination = destination_of(config)
    destination.clear()
    destination.refuse_early()
    extends = (older := Path(config.data.extends), fingerprint_of(older)) if config.data.extends else None
    known = read_known_once(*extends) if extends else None
    progress = Progress()
    with (
        ExitStack() as after,  # the files of tasks are removed when the dataset is in its place
        new_dataset(folder := destination.folder, target=destination.receive) as new,
        local_files(config.data, new / WORK / "copies", progress) as local,
    ):
        settings = config.preprocessing
        opened = open_input(local.data, settings, known, progress)
        about = about_work(config, opened.source, local, known)
        work, shared = after.enter_context(_open_work(config, folder, opened.source, extends, about, progress))
        n_bytes = opened.source.n_bytes if isinstance(opened.source, Interactions) else 0
        with open_executor(settings.engine, settings.workers, n_bytes=n_bytes, memory=TASK_BYTES) as executor:
            stages = Stages(work, executor, progress, shared)
            metadata, written = _make_dataset(config, opened, local, new, known, stages, progress)
        destination.delivered = stages.delivered
        size = _finish(new, metadata, written, progress)
        if slowest := stages.slowest():
            progress.log(slowest)
    read_known_once.cache_clear()  # a program that goes on does not need these ids
    logger.info(f"\n{describe(metadata)}\n")
    for finding in findings(metadata):
        logger.info(str(finding))
    progress.repeat_warnings()
    if destination.place != config.data.place:
        runs = named(runs_of(folder))
        logger.info(f"{folder} is kept, since {runs} trained on it; --replace replaces it")
    logger.info(f"dataset folder: {destination.place} ({size / 1e6:,.1f} MB)")
    return destination.place


class Opened(NamedTuple):
    """The input: its `source`, the list of its `kinds` of events, its `others` (columns), features `fitted` before."""

    source: Interactions | GeneratedSource
    kinds: Sequence[str]
    others: OtherColumns
    fitted: Mapping[str, Fitted]


def open_input(
    data: Data, settings: Preprocessing, known: ExistingIds | None, progress: Progress, *, needs_features: bool = True
) -> Opened:
    """Return the input that `data` describes, and log its first rows; `known`: ids of the dataset to extend.

    Unless it `needs_features`, it may lack those that the items of that dataset have.
    """
    source = open_source(data, settings, usual_times=known.time_format if known else "")
    kinds = _kinds_of_events(data, settings, source, known)
    source.item_titles(data.titles_path, dtype=pl.String())  # fail now rather than after minutes
    if not isinstance(source, GeneratedSource):
        _look(source, progress)
    fitted = read_fitted(Path(data.extends)) if data.extends else {}
    if not needs_features and not data.items_path and isinstance(source, Interactions):
        present = source.open(source.files[0]).columns if source.source.form == "table" else {}
        fitted = {name: feature for name, feature in fitted.items() if name in present}
    others = look_at_other_columns(data, source, fitted)
    if isinstance(source, Interactions) and others.first.columns:
        if lines := others.lines(others.why, "the first rows"):
            logger.info("\n".join(lines))
        source = replace(source, others=ItemValues(others.candidates))
    return Opened(source, kinds, others, fitted)


def _make_dataset(
    config: Config, opened: Opened, local: LocalFiles, new: Path, known: ExistingIds | None, stages: Stages,
    progress: Progress,
) -> tuple[dict[str, Any], Written]:  # fmt: skip
    """Run all stages; return the metadata without the checksums, and what was written to the folder `new`.

    `local` has the files that `config` names, `known` the ids of the dataset to extend.
    """
    data, settings, work = local.data, config.preprocessing, stages.work
    source, kinds, others, fitted = opened
    extends = (Path(data.extends), known.fingerprints[0]) if known else None
    raw = read_rows(source, settings, known, stages, extends)
    look_at_rows(raw, source.bad, local, progress)
    file = read_items_of_file(data, source, raw.item_type, fitted, others)
    has_whole_catalogue = data.source == "random" and settings.min_item_interactions == 1
    also = [known.items["original"]] if known else []
    also += [pl.Series(range(1, data.n_items + 1))] if has_whole_catalogue else []
    file_ids = file.rows["original"] if file else None
    catalogue = number_all_items(raw, also, file_ids, stages, with_prints=settings.ties == "shuffle")
    known_codes = catalogue.codes(known.items["original"]) if known else np.zeros(0, np.int64)
    if known:
        compare_with_known(raw, catalogue, known, known_codes, config.data, progress)
    about_items = read_about_items(data, source, raw.item_type, catalogue, file, others, fitted, progress)

    ordered = order_rows(raw, catalogue, settings, source.order, stages, extends=extends)
    source.check(ordered.n_users_read)
    limit_rows(ordered, settings, stages)

    kept = (ordered.counts > 0) | has_whole_catalogue | catalogue.are_cold  # random data keep all data.n_items items
    by_code = (known_codes, known.items["item"].to_numpy()) if known else None
    ids = _item_numbers(data, settings, catalogue, kept, by_code)
    targets = numbers_of_kinds("preprocessing.target_events", settings.target_events, kinds)
    hidden, known_users = HiddenEvents.of(settings.recipe, kinds), known.users["original"] if known else None
    histories = NumberedHistories(ordered, saved(work / "item_ids.npy", ids), known=known_users, hidden=hidden)
    segments: dict[str, Any] = {USERS: write_users(new, histories.users(stages), known)}
    rule, instant = choose_split(settings, ordered, stages, targets)
    n_items = int(ids.max()) + 1
    before = read_known_split(Path(data.extends), n_users=len(known.users), n_items=n_items) if known else None
    survey = history_stats(histories, rule, settings, stages, n_items=n_items, known=before, targets=targets)
    progress.warn(*survey.warnings(is_table=data.source == "table", now=time.time()))
    rows = _with_columns(item_rows(ordered, ids, survey.train_counts, known, known_codes), about_items)
    segments[ITEMS] = write_items(new, rows, survey.train_counts, known, seed=settings.seed)
    users, items = _written(new, USERS, segments), _written(new, ITEMS, segments)
    features = {}
    if (table := about_items.table) and table.features:
        originals = pl.DataFrame(pl.from_arrow(items.in_order(["original"])))["original"]
        features = {"item_features": write_features(new, table, originals, survey.train_counts)}
    split = Split(
        saved(work / "cumulated.npy", survey.train_counts.cumsum()), saved(work / "validated.npy", survey.validated),
        survey.tested, rule, settings.n_eval_negatives, settings.seed,
        targets if settings.split == "leave_last_basket" else None,
    )  # fmt: skip
    written = write_histories(new, histories, split, survey.lengths, stages)
    progress.warn(left_out_warning(written.held_out, settings.n_eval_negatives))
    _write_oracle(source, new, users, items, settings.split, progress)

    metadata = describe_rows(config, source, ordered, survey, about_items.survey, local.version)
    metadata |= {"segments": segments, **({} if instant is None else {"split_instant": instant})}
    if known:
        n_kept = int(survey.validated[: len(known.users)].sum())
        metadata[PREVIOUS] = {"fingerprints": list(known.fingerprints), "validation_users": n_kept}
        metadata |= known.forgotten
    if "log" in metadata:
        metadata["log"] |= survey.log.shift(survey.known_span(time.time()), items)
        metadata["log"] |= survey_ids(users, items, survey.lengths)
    metadata |= held_out_metadata(written.held_out) | features
    return metadata, written


@contextmanager
def _open_work(
    config: Config, folder: Path, source: Interactions | GeneratedSource, extends: tuple[Path, str] | None,
    about: Mapping[str, Any], progress: Progress,
) -> Iterator[tuple[Path, SharedWork | None]]:  # fmt: skip
    """Yield the folder for the files of tasks, and the work in a bucket if they go there.

    They do if the tasks run on Ray, whose machines may share no disk, and the dataset goes to a bucket. Then what the
    first tasks read is sent, too: the files of the log, and the ids of the dataset to extend.
    """
    place = config.data.place
    if not (is_stored(place) and config.preprocessing.engine == "ray" and isinstance(source, Interactions)):
        with work_folder(folder, about, progress) as work:
            yield work, None
        return
    with work_in_storage(place, about, progress) as shared:
        for path in source.files:
            shared.add_input(path)
        if extends:
            files = read_metadata(extends[0])["files"]
            ids = [name for name in files if name.startswith((f"{USERS}/", f"{ITEMS}/"))]
            shared.add_input(extends[0], [METADATA, *ids])
        yield shared.root, shared


def about_work(
    config: Config, source: Interactions | GeneratedSource, local: LocalFiles, known: ExistingIds | None
) -> dict[str, Any]:
    """Return all that the files of tasks depend on: the input, the settings, and the version of this program."""
    files = source.files if isinstance(source, Interactions) else ()
    paths = [path for path in (*files, Path(local.data.items_path)) if path.is_file()]
    copied = {path: local.names[str(path)] for path in paths if str(path) in local.names}  # anew in each run
    version = {path: sample_sha256(path) if path in copied else path.stat().st_mtime_ns for path in paths}
    return {
        "files": [(copied.get(path, str(path)), path.stat().st_size, version[path]) for path in paths],
        "data": config.data.model_dump(mode="json"),
        "preprocessing": config.preprocessing.model_dump(mode="json", exclude={"engine", "workers"}),
        "extends": list(known.fingerprints) if known else [],
        "program": [pl.__version__, _digest_of_code()],
    }


@cache
def _digest_of_code() -> str:
    """Return a checksum of this package: files of tasks are not shared by two versions of it."""
    paths = sorted(Path(__file__).parents[1].rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


def _item_numbers(
    data: Data, settings: Preprocessing, catalogue: Catalogue, kept: Bools, known: tuple[Int64s, Int32s] | None
) -> Int32s:
    """Return the dense id of each code, as `item_ids` does. Raises `DataError` for one item."""
    ids = item_ids(kept, seed=settings.seed, known=known)
    if ids.max() == 0:
        item = catalogue.original(int(kept.argmax()))
        advice = "name the column of the items: --item=…" if data.source == "table" else "bring other rows"
        raise DataError(f'{data.path}: all rows have one item, "{item}", so there is nothing to choose from; {advice}')
    return ids


def _written(new: Path, name: str, segments: Mapping[str, Any]) -> IdTable:
    """Return a table of the folder `new`, which has no metadata yet; `segments` has those of all tables."""
    files = [path.relative_to(new).as_posix() for path in (new / name).iterdir()]
    return IdTable(new, {"fingerprint": "", "files": files, "segments": segments}, name)


def _with_columns(segments: Iterable[Iterable[pl.DataFrame]], about: AboutItems) -> Iterator[Iterator[pl.DataFrame]]:
    """Yield the rows of the items with their titles and other columns."""
    others = about.table.rows.drop("title", strict=False) if about.table else None
    titles = about.titles.rename({"item": "original"}) if about.titles is not None else None

    def joined(frame: pl.DataFrame) -> pl.DataFrame:
        for table in (titles, others):
            if table is not None:
                table = table.cast({"original": frame.schema["original"]})
                frame = frame.join(table, on="original", how="left", maintain_order="left")
        return frame

    yield from (map(joined, frames) for frames in segments)


def _kinds_of_events(
    data: Data, settings: Preprocessing, source: Interactions | GeneratedSource, known: ExistingIds | None
) -> Sequence[str]:
    """Return the list that gets the kinds of events while rows are read; those of the dataset to extend come first.

    Raises `DataError` if the settings need kinds of events that the source or that dataset does not have.
    """
    column = data.event_column
    if column and data.source != "table":
        raise DataError(f"data.event_column = {column}: only tables have such a column, not {data.source}; remove it")
    if column == "auto":
        raise DataError("data.event_column = auto: it is not recognized; name the column, or remove it")
    if settings.target_events and not column:
        numbers_of_kinds("preprocessing.target_events", settings.target_events, ())
    if known and bool(known.kinds) != bool(column):
        has, advice = ("kinds", "name their column") if known.kinds else ("no kinds", "leave out")
        raise DataError(f"data.extends: {data.extends} has {has} of events; {advice}: --data.event_column=…")
    if not column or isinstance(source, GeneratedSource):
        return ()
    source.kinds[1:] = known.kinds[1:] if known else []
    return source.kinds


def _look(interactions: Interactions, progress: Progress) -> None:
    """Log the first rows, and the warnings about them, before all rows are read."""
    lines, warnings = first_look(interactions)
    if lines:
        logger.info("\n".join(lines))
    progress.warn(*warnings)


def look_at_rows(raw: RawRows, bad: BadRows, local: LocalFiles, progress: Progress) -> None:
    """Log the first unusable rows. Raises `DataError` if no row is usable."""
    for line in bad.shown:
        progress.log(f"unusable: {local.named(line)}")
    if hidden := bad.total - len(bad.shown):
        progress.log(f"unusable: {hidden:,} rows more")
    if not len(raw):
        raise DataError(f"{local.data.path}: holds no interactions; name another file in data.path")


def _write_oracle(
    source: Interactions | GeneratedSource, new: Path, users: IdTable, table: IdTable, split: str,
    progress: Progress,
) -> None:  # fmt: skip
    """Write `oracle.parquet` for synthetic data, unless rows were dropped: the oracle needs complete histories."""
    oracle = source.oracle if isinstance(source, GeneratedSource) else None
    if oracle is None or split != "leave_one_out":
        return
    items = pl.DataFrame(pl.from_arrow(table.in_order(["item", "original", "count"])))
    if items["count"].sum() < source.n_bytes:
        return
    with hugging_face() as datasets:
        histories, negatives = (datasets.load_from_disk(str(new / name)).to_polars() for name in FOLDERS)
    target = pl.col("items").list.get(pl.col("test"))
    tested = histories.filter(pl.col("test") >= 0).select("user", pl.col("items").list.head("test"), target=target)
    test = tested.join(negatives, on="user", maintain_order="left")
    ranks = oracle_ranks(oracle, test, users=read_ids(users, ["original"]), items=items)
    if ranks is None:
        progress.log(f"left {ORACLE} out: too many users × items to rank")
        return
    write_table(new / ORACLE, [ranks])


def _finish(new: Path, metadata: dict[str, Any], written: Written, progress: Progress) -> int:
    """Remove the temporary files, write the card and the checksums, and return the size of the folder in bytes."""
    shutil.rmtree(new / WORK, ignore_errors=True)  # copies of a remote input
    tables = {path.stem for path in new.glob("*.parquet")}
    (new / DATASET_CARD).write_text(dataset_card(metadata, written.folders, tables), encoding="utf-8")
    size = write_metadata(new, metadata, known=written.files)
    progress.log("checksums")
    return size
