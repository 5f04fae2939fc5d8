"""Add items without interactions to a dataset folder: its catalogue grows, its histories stay the same files."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import datasets
import numpy as np
import polars as pl

from bert4rec.config.sources import SOURCES
from bert4rec.dataset.format import DATASET_CARD, FOLDERS, ITEMS, PREVIOUS, dataset_card, fingerprints_of
from bert4rec.dataset.reader import open_dataset
from bert4rec.prepare.ordering import item_ids, read_known
from bert4rec.prepare.writer import new_dataset, write_items, write_metadata
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
    items are numbered after them. Histories and negatives are links to the same files, or copies on another disk.
    Raises `DataError`, in one line, for a file that cannot be used; then no folder is written.
    """
    dataset = open_dataset(previous)
    metadata, known, fitted = dict(dataset.metadata), read_known(previous).items, read_fitted(previous)
    columns = {"item": "item", **SOURCES[metadata["source"]].columns, **metadata.get("columns", {})}
    item_type = known["original"].dtype
    items = pl.read_parquet(previous / ITEMS, glob=False)
    texts = [name for name, dtype in items.schema.items() if dtype == pl.String]
    file = read_item_file(path, {}, item_column=columns["item"], item_type=item_type, fitted=fitted, texts=texts)
    is_known = file.rows["original"].is_in(known["original"].implode())
    added = AddedItems(int((~is_known).sum()), int(is_known.sum()))
    if not added.new:
        raise DataError(f"{path}: has no new items: {previous} has all {pluralize(added.known, 'item')} of the file")
    file = replace(file, rows=file.rows.filter(~is_known).sort("original"))
    logger.info("\n".join([f"the new items of {path}:", *file.lines()]))
    if (titles := file.titles(columns.get("title", ""))) is not None:
        rows = file.rows.drop("title", strict=False).join(titles, left_on="original", right_on="item", how="left")
        file = replace(file, rows=rows.sort("original"))
        if "title" not in items.columns:
            items.insert_column(items.columns.index("train_count") + 1, pl.lit(None, pl.String).alias("title"))
    ids = item_ids(file.rows["original"], np.ones(added.new, bool), seed=metadata["preprocessing"]["seed"], known=known)
    file = replace(file, rows=file.rows.with_columns(item=ids).sort("item"))
    n_items = metadata["items"] + added.new
    with new_dataset(folder) as new:
        write_items(new, _item_table(items, file.rows, path))
        features = append_features(new, file, file.rows["original"], previous, metadata["items"])
        metadata |= {
            "extends": True,
            PREVIOUS: {"fingerprints": fingerprints_of(metadata), "validation_users": metadata["validation_users"]},
            "items": n_items,
            "density": metadata["rows"] / (metadata["users"] * n_items),
            "item_features": features,
            "negative_items": metadata.get("negative_items", metadata["items"]),
        }
        linked = {
            name: file for name, file in metadata["files"].items() if not (new / name).exists() and name != DATASET_CARD
        }
        for name in linked:
            link_or_copy(previous / name, new / name)
        written = {name: datasets.load_from_disk(str(previous / name)) for name in FOLDERS}
        folders = {name: (rows.num_rows, rows.column_names) for name, rows in written.items()}
        tables = {path.stem for path in new.glob("*.parquet")}
        (new / DATASET_CARD).write_text(dataset_card(metadata, folders, tables), encoding="utf-8")
        about = {name: value for name, value in metadata.items() if name not in OF_THE_FOLDER}
        write_metadata(new, about, known=linked)
    return added


def _item_table(items: pl.DataFrame, rows: pl.DataFrame, path: str) -> pl.DataFrame:
    """Return `items` and after them the `rows` of the file at `path`, with the columns of `items`."""
    rows = rows.with_columns(item=pl.col("item").cast(items["item"].dtype), count=0, train_count=0)
    parts = []
    for name, column in items.to_dict().items():
        more = rows[name] if name in rows.columns else pl.repeat(None, len(rows), eager=True)
        if column.dtype != more.dtype and column.dtype.is_nested() != more.dtype.is_nested() and more.count():
            has, expected = ("lists", "texts") if more.dtype.is_nested() else ("texts", "lists")
            raise DataError(f"{path}: {name} has {has}, in the dataset it has {expected}; write it as {expected}")
        parts.append(pl.concat([column.to_frame(), more.alias(name).to_frame()], how="vertical_relaxed"))
    return pl.concat(parts, how="horizontal")
