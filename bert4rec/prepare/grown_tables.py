"""Write the tables of users and items of a grown dataset, and the features of its new items."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from bert4rec.dataset.format import ITEMS, TRAIN_COUNTS, USERS
from bert4rec.dataset.item_features import FEATURES_FOLDER
from bert4rec.prepare.id_files import write_ids
from bert4rec.prepare.new_items import rows_like
from bert4rec.runtime.arrays import Int32s, Int64s
from bert4rec.runtime.files import link_or_copy
from bert4rec.sources.item_features import Feature, ItemFile, append_features, read_fitted


class GrownTables:
    """The tables of the dataset `previous` with this `metadata`, which grow into the folder `new`."""

    def __init__(self, previous: Path, metadata: Mapping[str, Any], new: Path) -> None:
        self._previous, self._metadata, self._new = previous, metadata, new

    def write_users(self, lengths: Int64s, users: pl.DataFrame, *, forgotten: Int64s | None = None) -> None:
        """Write all users: `lengths` are their numbers of interactions, `users` the new ones (`user`, `original`).

        Those with the numbers `forgotten` lose their ids.
        """
        gone = pl.Series([] if forgotten is None else forgotten, dtype=pl.Int64).implode()
        schema = self._last(USERS).schema
        rows = users.with_columns(count=pl.Series(lengths[users["user"].to_numpy()])).select(schema.names())
        types = {**schema, "original": pl.String() if schema["original"] == pl.String else rows.schema["original"]}
        rows = rows.cast(types)  # type: ignore[arg-type]

        def with_counts(frame: pl.DataFrame) -> pl.DataFrame:
            counts = pl.Series(lengths[frame["user"].to_numpy()], dtype=frame.schema["count"])
            is_known = ~pl.col("user").is_in(gone)
            return frame.with_columns(pl.when(is_known).then("original").alias("original"), counts.alias("count"))

        self._write(USERS, with_counts, rows)

    def write_items(
        self, n_more: Int64s, popularity: Int32s, items: pl.DataFrame, *, forgotten: Int64s | None = None
    ) -> None:
        """Write all items, which have `n_more` [V] rows than before; `items` are the new ones, with `original`.

        Those with the numbers `forgotten` lose all but their counts.
        """
        before = self._last(ITEMS).clear()
        numbers = items["item"].to_numpy()
        counts = {"count": n_more[numbers], "train_count": popularity[numbers]}
        rows = rows_like(before, items, "the new items").with_columns(
            pl.Series(name, values, dtype=before.schema[name]) for name, values in counts.items()
        )
        if before.schema["original"] == pl.String:
            rows = rows.cast({"original": pl.String})
        types = [pl.col(name).cast(dtype) for name, dtype in rows.schema.items() if name != "original"]

        def with_counts(frame: pl.DataFrame) -> pl.DataFrame:
            numbers = frame["item"].to_numpy()
            counts = pl.Series("train_count", popularity[numbers], dtype=frame.schema["train_count"])
            frame = frame if forgotten is None else with_counts_alone(frame, forgotten)
            return frame.with_columns(pl.col("count") + n_more[numbers], counts).with_columns(types)

        self._write(ITEMS, with_counts, rows.sort("original"))
        np.save(self._new / TRAIN_COUNTS, popularity)

    def write_features(self, table: ItemFile | None, items: pl.DataFrame) -> dict[str, Any]:
        """Write the features of all items, if there are any, and return their entry of `metadata.json`.

        `table` has some of those of the new `items`; what it lacks is not known of them.
        """
        about = self._metadata.get("item_features")
        if not about:
            return {}
        if not len(items):
            for name in self._metadata["files"]:
                if name.startswith(f"{FEATURES_FOLDER}/"):
                    link_or_copy(self._previous / name, self._new / name)
            return {"item_features": about}
        originals = items.sort("item")["original"]
        rows, known = (table.rows, table.features) if table else (pl.DataFrame({"original": originals}), ())
        features = {name: Feature(name, one["kind"], one.get("separator", "")) for name, one in about.items()}
        features |= {one.column: one for one in known}
        missing = [name for name in features if name not in rows.columns]
        rows = rows.with_columns(pl.lit(None, _type_of(features[name].kind)).alias(name) for name in missing)
        file = ItemFile(rows, [*features.values()], fitted=read_fitted(self._previous))
        return {"item_features": append_features(self._new, file, originals, self._previous, self._metadata["items"])}

    def _files(self, name: str) -> list[Path]:
        return sorted(self._previous / file for file in self._metadata["files"] if file.startswith(f"{name}/"))

    def _last(self, name: str) -> pl.DataFrame:
        """Return the schema of the table: that of its last file."""
        return pl.read_parquet(self._files(name)[-1], n_rows=0)

    def _write(self, name: str, change: Callable[[pl.DataFrame], pl.DataFrame], rows: pl.DataFrame) -> None:
        """Write the files of a table that `change` changes, link the others, and write the new `rows` after them."""
        n_known = 0
        for path in self._files(name):
            frame = pl.read_parquet(path)
            changed = change(frame)
            if changed.equals(frame) and changed.schema == frame.schema:
                link_or_copy(path, self._new / name / path.name)
            else:
                write_ids(self._new / name, [[changed]], first=n_known)
            n_known += len(frame)
        write_ids(self._new / name, [[rows]], first=n_known)


def with_counts_alone(items: pl.DataFrame, forgotten: Int64s) -> pl.DataFrame:
    """Return rows of a table of items, with nothing but counts for those with the numbers `forgotten`."""
    is_known = ~pl.col("item").is_in(pl.Series(forgotten).implode())
    return items.with_columns(pl.when(is_known).then(pl.exclude("item", "count", "train_count")).name.keep())


def _type_of(kind: str) -> pl.DataType:
    if kind == "vector":
        return pl.List(pl.Float32)
    return pl.Float64() if kind == "number" else pl.List(pl.String) if kind == "categories" else pl.String()
