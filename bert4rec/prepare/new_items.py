"""Add items without interactions to a dataset folder: its catalogue grows, its histories stay the same files."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from bert4rec.config.sources import SOURCES
from bert4rec.dataset.format import (
    DATASET_CARD,
    FOLDERS,
    ITEMS,
    PREVIOUS,
    TRAIN_COUNTS,
    dataset_card,
    fingerprints_of,
)
from bert4rec.dataset.id_tables import UNKNOWN
from bert4rec.dataset.reader import Dataset, open_dataset
from bert4rec.dataset.segments import Segments
from bert4rec.prepare.folder import new_dataset, write_metadata
from bert4rec.prepare.id_files import by_segment, write_ids
from bert4rec.prepare.ordering import id_types
from bert4rec.prepare.writer import hugging_face
from bert4rec.runtime.errors import DataError, pluralize
from bert4rec.runtime.files import link_or_copy
from bert4rec.sources.item_features import append_features, read_fitted, read_item_file

OF_THE_FOLDER = ("format_version", "created_at", "files", "fingerprint")  # of `metadata.json`, made anew

logger = logging.getLogger(__name__)


class AddedItems(NamedTuple):
    """The number of `new` items of a file, and of those that the dataset had before."""

    new: int
    known: int


def add_items(previous: Path, path: str, folder: Path) -> AddedItems:
    """Write the dataset at `previous` with the new items of the file at `path` to `folder`, and return their number.

    All ids and features of `previous` are kept, and its items keep their features even if the file has others. New
    items are numbered after them. Histories, negatives and, unless columns change, the rows of older items are links to
    the same files, or copies on another disk. Raises `DataError`, in one line, for a file that cannot be used; then no
    folder is written.
    """
    dataset = open_dataset(previous)
    metadata, table, fitted = dict(dataset.metadata), dataset.item_table, read_fitted(previous)
    columns = {"item": "item", **SOURCES[metadata["source"]].columns, **metadata.get("columns", {})}
    items = pl.DataFrame(pl.from_arrow(table.schema.empty_table()))
    texts = [name for name, dtype in items.schema.items() if dtype == pl.String]
    item_type = items["original"].dtype
    file = read_item_file(path, {}, item_column=columns["item"], item_type=item_type, fitted=fitted, texts=texts)
    is_known = pl.Series(table.find(file.rows["original"].to_arrow()) != UNKNOWN)
    added = AddedItems(int((~is_known).sum()), int(is_known.sum()))
    if not added.new:
        raise DataError(f"{path}: has no new items: {previous} has all {pluralize(added.known, 'item')} of the file")
    file = replace(file, rows=file.rows.filter(~is_known).sort("original"))
    logger.info("\n".join([f"the new items of {path}:", *file.lines()]))
    if (titles := file.titles(columns.get("title", ""))) is not None:
        rows = file.rows.drop("title", strict=False).join(titles, left_on="original", right_on="item", how="left")
        file = replace(file, rows=rows.sort("original"))
        if "title" not in items.columns:
            items.insert_column(items.columns.index("train_count") + 1, pl.Series("title", [], pl.String))
    seed, n_known = metadata["preprocessing"]["seed"], metadata["items"]
    numbers = n_known + Segments([added.new], [seed]).numbers(np.arange(added.new))
    rows = rows_like(items, file.rows.with_columns(item=numbers), path)
    with new_dataset(folder) as new:
        _write_items(new, dataset, rows)
        features = append_features(new, file, file.rows["original"].gather(np.argsort(numbers)), previous, n_known)
        segments = metadata["segments"]
        metadata |= {
            "extends": True,
            PREVIOUS: {"fingerprints": fingerprints_of(metadata), "validation_users": metadata["validation_users"]},
            "items": n_known + added.new,
            "segments": segments | {ITEMS: [*segments[ITEMS], [added.new, seed]]},
            "density": metadata["rows"] / (metadata["users"] * (n_known + added.new)),
            "item_features": features,
            "negative_items": metadata.get("negative_items", n_known),
        }
        _finish(new, previous, metadata)
    return added


def rows_like(items: pl.DataFrame, rows: pl.DataFrame, path: str) -> pl.DataFrame:
    """Return the `rows` of the file at `path`, with the columns of `items` and types that can hold both."""
    rows = rows.with_columns(item=pl.col("item").cast(items["item"].dtype), count=0, train_count=0)
    columns = []
    for name, column in items.to_dict().items():
        more = rows[name] if name in rows.columns else pl.repeat(None, len(rows), eager=True)
        if column.dtype != more.dtype and column.dtype.is_nested() != more.dtype.is_nested() and more.count():
            has, expected = ("lists", "texts") if more.dtype.is_nested() else ("texts", "lists")
            raise DataError(f"{path}: {name} has {has}, in the dataset it has {expected}; write it as {expected}")
        columns.append(pl.concat([column.to_frame(), more.alias(name).to_frame()], how="vertical_relaxed"))
    return pl.concat(columns, how="horizontal")


def _write_items(new: Path, dataset: Dataset, rows: pl.DataFrame) -> None:
    """Write the `rows` of new items, sorted by id, and those of `dataset` again if they get other columns or types."""
    table = dataset.item_table
    if pl.DataFrame(pl.from_arrow(table.schema.empty_table())).schema != rows.schema:
        parts = (pl.DataFrame(pl.from_arrow(part)) for part in table.parts(table.schema.names))
        frames = (pl.concat([rows.clear(), part], how="diagonal_relaxed").select(rows.columns) for part in parts)
        sizes = [n for n, _ in dataset.metadata["segments"][ITEMS]]
        write_ids(new / ITEMS, by_segment(frames, sizes, id_types(table)))
    write_ids(new / ITEMS, [[rows]], first=dataset.n_items)
    np.save(new / TRAIN_COUNTS, np.concatenate([dataset.popularity, np.zeros(len(rows), np.int32)]))


def _finish(new: Path, previous: Path, metadata: dict[str, Any]) -> None:
    """Link the files of the dataset `previous` that the folder `new` lacks, and write the card and the `metadata`."""
    files = metadata["files"]
    linked = {name: file for name, file in files.items() if not (new / name).exists() and name != DATASET_CARD}
    for name in linked:
        link_or_copy(previous / name, new / name)
    with hugging_face() as datasets:
        written = {name: datasets.load_from_disk(str(previous / name)) for name in FOLDERS}
    folders = {name: (rows.num_rows, rows.column_names) for name, rows in written.items()}
    tables = {path.stem for path in new.glob("*.parquet")}
    (new / DATASET_CARD).write_text(dataset_card(metadata, folders, tables), encoding="utf-8")
    about = {name: value for name, value in metadata.items() if name not in OF_THE_FOLDER}
    write_metadata(new, about, known=linked)
