"""One dataset, from settings to its folder: the stages in their order, and what is said of them."""

import logging
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import polars as pl
from numpy.typing import NDArray

from bert4rec.config.source_of_path import has_sequences
from bert4rec.config.tables import OWN_DATA, Config, Preprocessing
from bert4rec.config.values import instant
from bert4rec.dataset.card import dataset_card
from bert4rec.dataset.schema import CARD, FIRST_ITEM_ID, ITEMS, MIN_EVALUATED, ORACLE, SPLITS, TEST, USERS, columns
from bert4rec.dataset.statistics import describe, lengths_of, order_line
from bert4rec.prepare.order.chunks import chunked
from bert4rec.prepare.order.ids import Known, item_ids, read_known
from bert4rec.prepare.progress import Progress
from bert4rec.prepare.read.fields import DECIMAL
from bert4rec.prepare.read.first_look import first_look, order_of
from bert4rec.prepare.read.sources import Interactions, open_interactions
from bert4rec.prepare.read.synthetic import GENERATORS, Generated, everything
from bert4rec.prepare.split.held_out import HeldOutCounts
from bert4rec.prepare.split.negatives import USERS_PER_BLOCK
from bert4rec.prepare.split.oracle import oracle_ranks
from bert4rec.prepare.split.splits import all_for_training, by_time, instant_of_share, leave_one_out
from bert4rec.prepare.stages import (
    Cutter,
    Filters,
    Histories,
    Ordered,
    Raw,
    Split,
    Survey,
    in_order,
    limit,
    order,
    read,
    survey,
)
from bert4rec.prepare.writer import (
    SplitWriter,
    TableWriter,
    clear_target,
    created_from,
    new_dataset,
    refuse_another_input,
    write_metadata,
)
from bert4rec.runtime.errors import DataError

WORK = ".work"  # folder, beside the new splits, of what goes over the disk
RUNS = 24  # runs fit into the memory: one is held some six times while it is sorted or cut
BLOCKS = 128  # blocks of text fit into the memory: as fields, a block takes some ten times its bytes
N_THREADS = 2  # blocks of users cut at once

FILTERS = (
    "only_read", "min_rating", "time_from", "time_until", "repeats", "drop_consecutive_duplicates",
    "min_item_interactions", "min_user_interactions", "max_user_interactions",
)  # fmt: skip

Ids = NDArray[np.int32]
Written = dict[str, tuple[int, list[str]]]

logger = logging.getLogger(__name__)


def prepare(config: Config) -> Path:
    """Make the dataset folder that `config` describes, logging the progress, and return its path.

    Raises `DataError` or `SettingsError`, in one line, for what cannot be prepared; then nothing is left behind.
    """
    datasets.disable_progress_bars()
    folder = config.data.folder
    clear_target(folder)
    _refuse_another_input(config)
    known = read_known(Path(config.data.extends)) if config.data.extends else None
    with new_dataset(folder) as new:
        preparation = Preparation(config, new, known)
        metadata, size = preparation.complete()
        _refuse_another_input(config)  # again: another preparation may have ended meanwhile
    logger.info(f"\n{describe(metadata)}\n")
    _warn(preparation.warnings)  # again: above the progress they are soon forgotten
    logger.info(f"dataset folder: {folder} ({size / 1e6:,.1f} MB)")
    return folder


class Preparation:
    """One dataset in the making, in the folder `new`; `known`: the ids that it keeps."""

    def __init__(self, config: Config, new: Path, known: Known | None) -> None:
        self._data, self._settings, self._config = config.data, config.preprocessing, config
        self._new, self._work, self._known = new, new / WORK, known
        self._progress = Progress()
        self._source = _source(config, known)
        self._order_of_rows = _order_of(config, self._source)
        self.warnings: list[str] = []
        self._source.titles(config.data.titles_path, dtype=pl.String())  # rather refused now than after minutes

    def complete(self) -> tuple[dict[str, Any], int]:
        """Write everything; what `metadata.json` says besides the checksums, and the size of the folder in bytes."""
        self._look()
        raw = self._read()
        titles = self._source.titles(self._data.titles_path, dtype=raw.item_type)
        ordered = self._order(raw)
        item_ids = self._item_ids(ordered)
        histories = Histories(ordered, item_ids, known=None if self._known is None else self._known.users["original"])
        n_users = self._write_users(histories)
        split, about_split = self._split(ordered)
        found = self._survey(histories, split, n_users=n_users, n_items=int(item_ids.max()) + 1 - FIRST_ITEM_ID)
        items = self._write_items(ordered, item_ids, found, titles)
        written, held_out = self._write_splits(histories, split, found)
        self._write_oracle(items)
        names = {"train": "train_windows", "validation": "validation_users", "test": "test_users"}
        sizes = {names[name]: n_rows for name, (n_rows, _) in written.items()}
        metadata = self._about(raw, ordered, found) | about_split | sizes | held_out.metadata()
        return metadata, self._finish(metadata, written)

    @property
    def _has_whole_catalogue(self) -> bool:
        """Noise is for catalogues of a given size: its items count whether taken or not."""
        return self._data.source == "random" and self._settings.min_item_interactions == 1

    def _look(self) -> None:
        """Show what can be told from the first rows, before minutes are spent on all."""
        if isinstance(self._source, Generated):
            logger.info(order_line(self._data.source, self._order_of_rows))
            return
        lines, self.warnings = first_look(self._source, self._order_of_rows)
        logger.info("\n".join(lines))
        _warn(self.warnings)

    def _read(self) -> Raw:
        raw = read(
            self._source, self._source.bad, folder=self._work, run_bytes=int(self._settings.memory_gb * 1e9) // RUNS,
            n_bytes=self._source.n_bytes, max_bad_rows=self._settings.max_bad_rows,
            few_bad_rows=self._settings.few_bad_rows, progress=self._progress,
            known=None if self._known is None else self._known.users,
        )  # fmt: skip
        bad = self._source.bad
        for line in bad.shown:
            self._progress.log(f"unusable: {line}")
        if hidden := bad.total - len(bad.shown):
            self._progress.log(f"unusable: {hidden:,} rows more")
        if self._known is not None and len(raw) and not raw.known.n_rows:
            n = len(self._known.users)
            self.warnings.append(
                f"data.extends: none of its {n:,} users has a row here; are the ids written otherwise?"
            )
            _warn(self.warnings[-1:])
        if not len(raw):
            raise DataError(f"{self._data.path}: holds no interactions; name another file in data.path")
        return raw

    def _order(self, raw: Raw) -> Ordered:
        also = [] if self._known is None else [self._known.items["original"]]
        if self._has_whole_catalogue:
            also.append(everything(self._data.n_items))
        filters = _filters(self._config)
        ordered = order(raw, filters, folder=self._work / "parts", progress=self._progress, also=also)
        self._source.check(ordered.n_users_read)
        limit(ordered, filters, progress=self._progress)
        if not ordered.counts.any():
            raise DataError(_nothing_left(raw, ordered, self._settings))
        return ordered

    def _item_ids(self, ordered: Ordered) -> Ids:
        """The dense id of each code; 0 for what is dropped."""
        kept = ordered.counts > 0
        if self._has_whole_catalogue:
            kept[:] = True
        known = self._known.items if self._known is not None else None
        return item_ids(ordered.items, kept, seed=self._settings.seed, known=known)

    def _write_users(self, histories: Histories) -> int:
        """`users.parquet`; how many there are."""
        n_users, writer = 0, TableWriter(self._new / USERS)
        for users in histories.users():
            writer.add(users)
            n_users += len(users)
        writer.close()
        return n_users

    def _split(self, ordered: Ordered) -> tuple[Split, dict[str, Any]]:
        """The split, and what is to be known of it."""
        if self._settings.split == "none":
            return all_for_training, {}
        if self._settings.split == "leave_one_out":
            return leave_one_out, {}
        if "time" not in ordered.parts.columns:
            raise DataError('preprocessing.split = "time": the source has no times; choose "leave_one_out" or "none"')
        at = self._settings.split_at
        moment = (
            instant(at)
            if isinstance(at, str)
            else instant_of_share(lambda: (part["time"] for part in ordered.parts.read("time")), at)
        )
        return partial(by_time, instant=moment), {"split_instant": moment}

    def _survey(self, histories: Histories, split: Split, *, n_users: int, n_items: int) -> Survey:
        found = survey(
            histories, split, n_users=n_users, n_items=n_items, n_validated=self._settings.validation_users,
            seed=self._settings.seed, progress=self._progress,
        )  # fmt: skip
        if not found.n_tested and self._settings.split != "none":
            raise DataError(_no_test(self._settings.split, n_users))
        return found

    def _write_items(self, ordered: Ordered, ids: Ids, found: Survey, titles: pl.DataFrame | None) -> pl.DataFrame:
        """`items.parquet`; its content."""
        codes = np.flatnonzero(ids)
        codes = codes[np.argsort(ids[codes])]
        table = pl.DataFrame(
            [
                pl.Series("item", ids[codes]),
                ordered.items.gather(codes).alias("original"),
                pl.Series("count", ordered.counts[codes]),
                pl.Series("train_count", found.train_counts),
            ]
        )
        if titles is not None:
            table = table.join(titles, left_on="original", right_on="item", how="left", maintain_order="left")
        writer = TableWriter(self._new / ITEMS)
        writer.add(table)
        writer.close()
        return table

    def _about(self, raw: Raw, ordered: Ordered, found: Survey) -> dict[str, Any]:
        n_rows, n_users, n_items = int(ordered.counts.sum()), len(found.lengths), len(found.train_counts)
        bad = self._source.bad
        return {
            "created_from": created_from(self._data.source, self._data.path),
            "source": self._data.source,
            "max_len": self._config.model.max_len,
            "preprocessing": self._settings.recipe,
            "extends": self._known is not None,
            "order": self._order_of_rows,
            "rows_read": len(raw) + bad.total,
            "users_read": ordered.n_users_read,
            "items_read": ordered.n_items_read,
            "bad_rows": dict(sorted(bad.counts.items())),
            "dropped": {name: ordered.dropped[name] for name in FILTERS if ordered.dropped[name]},
            "rows": n_rows,
            "users": n_users,
            "items": n_items,
            "density": n_rows / (n_users * n_items),
            "lengths": lengths_of(found.lengths[found.lengths > 0]),
            "time_span": list(found.time_span) if found.time_span else None,
            "train_positions": int(found.train_counts.sum()),
            "has_times": "time" in ordered.parts.columns,
            "has_ratings": "rating" in ordered.parts.columns,
        }

    def _write_splits(self, histories: Histories, split: Split, found: Survey) -> tuple[Written, HeldOutCounts]:
        """The three splits; how many rows and which columns each has, and what is counted of those evaluated."""
        there_are = {"has_times": "time" in histories.columns, "has_ratings": "rating" in histories.columns}
        writers = {name: SplitWriter(self._new / name, columns(name, **there_are)) for name in SPLITS}
        cutter = Cutter(
            split, found, max_len=self._config.model.max_len, step=self._config.window_step,
            n_negatives=self._settings.n_eval_negatives, seed=self._settings.seed,
        )  # fmt: skip
        held_out = HeldOutCounts.none(self._settings.n_eval_negatives)
        with self._progress.stage("write", int(found.lengths.sum())) as stage:
            for block in in_order(cutter, enumerate(chunked(histories, USERS_PER_BLOCK)), n_threads=N_THREADS):
                for name, writer in writers.items():
                    writer.add(block.rows[name])
                held_out += block.held_out
                stage.advance(stage.n_rows + block.n_rows, block.n_rows)
            for writer in writers.values():
                writer.close()
        if warning := held_out.warning():
            self.warnings.append(warning)
            _warn([warning])
        return {name: (writer.n_rows, writer.columns) for name, writer in writers.items()}, held_out

    def _write_oracle(self, items: pl.DataFrame) -> None:
        """`oracle.parquet` of synthetic data of which nothing was dropped: the oracle knows the walks that it made."""
        oracle = self._source.oracle if isinstance(self._source, Generated) else None
        if oracle is None or items["count"].sum() < self._source.n_bytes or self._settings.split != "leave_one_out":
            return
        test = datasets.load_from_disk(str(self._new / TEST)).to_polars()
        users = pl.read_parquet(self._new / USERS, glob=False)
        ranks = oracle_ranks(oracle, test, users=users, items=items)
        if ranks is None:
            self._progress.log(f"left {ORACLE} out: too many users × items to rank")
            return
        writer = TableWriter(self._new / ORACLE)
        writer.add(ranks)
        writer.close()

    def _finish(self, metadata: dict[str, Any], written: Written) -> int:
        """The card and the checksums; the size of the folder in bytes."""
        shutil.rmtree(self._work)
        tables = {path.stem for path in self._new.glob("*.parquet")}
        (self._new / CARD).write_text(dataset_card(metadata, written, tables), encoding="utf-8")
        size = write_metadata(self._new, metadata)
        self._progress.log("checksums")
        return size


def _refuse_another_input(config: Config) -> None:
    data = config.data
    if not data.replace:
        origin = created_from(data.source, data.path)
        refuse_another_input(data.folder, origin, is_own_data=data.source in OWN_DATA)


def _warn(warnings: Sequence[str]) -> None:
    for warning in warnings:
        logger.warning(warning)


def _source(config: Config, known: Known | None) -> Interactions | Generated:
    data, settings = config.data, config.preprocessing
    counts = {"n_users", "n_items", "n_rows"}
    if data.source in GENERATORS:
        return Generated(data.source, **data.model_dump(include=counts), seed=settings.seed)
    interactions = open_interactions(
        **data.model_dump(exclude={"dataset_dir", "replace", "titles_path", "extends", *counts}),
        only_read=settings.only_read,
        text_ids=_text_ids(known),
        block_bytes=int(settings.memory_gb * 1e9) // BLOCKS,
    )
    first = interactions.files[0]
    if data.source.startswith("ml-") and has_sequences(first):
        raise DataError(
            f"{first}: has lines of a user and items, not the ratings of {data.source}; read them with "
            "--data.source=sequences"
        )
    return interactions


def _text_ids(known: Known | None) -> set[str]:
    """The fields of which an older dataset has ids like "7.0", which must stay what they are."""
    if known is None:
        return set()
    originals = {"user": known.users["original"], "item": known.items["original"]}
    return {name for name, ids in originals.items() if ids.dtype == pl.String and ids.str.ends_with(DECIMAL).any()}


def _order_of(config: Config, source: Interactions | Generated) -> dict[str, Any]:
    if isinstance(source, Generated):
        return {"by": "time", "column": None, "newest_first": False}
    return order_of(source, newest_first=_is_newest_first(config))


def _is_newest_first(config: Config) -> bool:
    backwards = config.preprocessing.reverse_file_order
    return config.data.source == "goodreads" if backwards == "auto" else backwards


def _filters(config: Config) -> Filters:
    settings = config.preprocessing
    return Filters(
        newest_first=_is_newest_first(config),
        time_from=instant(settings.time_from) if settings.time_from else None,
        time_until=instant(settings.time_until) if settings.time_until else None,
        **{name: getattr(settings, name) for name in FILTERS if not name.startswith("time_")},
        k_core=settings.k_core,
    )


def _nothing_left(raw: Raw, ordered: Ordered, settings: Preprocessing) -> str:
    set_ = [f"{name} = {getattr(settings, name)}" for name in FILTERS if getattr(settings, name) != _default(name)]
    shown = ", ".join(set_) or "as it is"
    return f"0 of {len(raw)} rows and {ordered.n_users_read} users pass [preprocessing] {shown}; relax these filters"


def _default(name: str) -> Any:
    return Preprocessing.model_fields[name].default


def _no_test(split: str, n_users: int) -> str:
    if split == "time":
        return (
            f"none of the {n_users} users has interactions both before and after preprocessing.split_at: no test could "
            "be made; choose another instant or share"
        )
    return (
        f"none of the {n_users} users has {MIN_EVALUATED} interactions, as leave-one-out needs: no test could be made; "
        'bring longer histories, relax the filters of [preprocessing], or train on all with split = "none"'
    )
