"""Read what is known of the items besides their ids, and encode it as numbers for the model.

A feature has a kind: `category` (one value), `categories` (several), `number` (quantiles), `words` (of a text, hashed)
or `vector` (ready-made numbers). Vocabularies and quantiles are fitted on the items with training positions alone; a
value that is missing, or that no such item has, is the feature's value 0.
"""

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from bert4rec.config.recognition import format_of
from bert4rec.dataset.format import METADATA
from bert4rec.dataset.item_features import FOLDER, VALUES, Bags, write_bags
from bert4rec.prepare.column_inference import item_columns
from bert4rec.runtime.errors import DataError

VALUES_SCHEMA = {"feature": pl.String, "number": pl.Int64, "name": pl.String}
N_QUANTILES = 16
N_WORDS = 4096  # buckets of hashed words
FEWEST = 2  # items that must have a word
MOST_CATEGORIES = 0.5  # largest share of distinct values among those of a category that is guessed
MOST_PARTS = 0.75  # the same among the parts of a text with a separator
FEWEST_WORDS = 3.0  # fewest words on average in a text that is guessed to be a title
SEPARATORS = ("|", ";", ", ")
WORD = re.compile(r"[^\W_]+")
MISSING = ("", "(no genres listed)")
TAKEN = ("item", "original", "count", "train_count")  # columns of items.parquet


class Feature(NamedTuple):
    """Hold a column that is used: its `kind`, and what separates the values of `categories` in a text."""

    column: str
    kind: str
    separator: str = ""


@dataclass(frozen=True)
class ItemFile:
    """Hold the rows of an item file: `rows` (`original` and the columns), the features, and why others are not used."""

    rows: pl.DataFrame
    features: Sequence[Feature]
    unused: Mapping[str, str] = field(default_factory=dict)

    @property
    def titles(self) -> pl.DataFrame | None:
        """Return `item` and `title` of the items with a title, if there is such a column."""
        if "title" not in self.rows.columns:
            return None
        return self.rows.select(item="original", title=pl.col("title").cast(pl.String)).drop_nulls()

    def lines(self) -> list[str]:
        """Return lines that show how each column is understood: kind, coverage, distinct values, three examples."""
        lines = []
        for column, kind, separator in self.features:
            values = _values(self.rows[column], kind, separator)
            coverage = 1 - values.null_count() / len(values)
            distinct = "" if kind == "vector" else f"{values.explode().drop_nulls().n_unique():,} values, "
            examples = ", ".join(str(value)[:40] for value in self.rows[column].drop_nulls().head(3).to_list())
            note = f' at "{separator}"' if separator else ""
            lines.append(f"  {column}: {kind}{note}, {coverage:.0%} of the items, {distinct}as {examples[:80]}")
        return [*lines, *(f"  {column}: not used ({why})" for column, why in self.unused.items())]


def read_item_file(path: str, kinds: Mapping[str, str], *, item_column: str, item_type: pl.DataType) -> ItemFile:
    """Return the item file at `path`, with ids of `item_type`; the features are those of `kinds` or, if empty, guessed.

    The ids are in the column `item_column`, or in one that is recognized. Raises `DataError`, in one line, for a file
    that cannot be used.
    """
    table = _read(Path(path))
    column = _id_column(path, table, item_column)
    if table.width == 1:
        raise DataError(f"{path}: has no column but {column}, so it says nothing of them; leave data.items_path out")
    if unknown := next((name for name in kinds if name not in table.columns), None):
        raise DataError(f"data.item_features.{unknown}: {path} has no such column; it has: {', '.join(table.columns)}")
    if column in kinds:
        raise DataError(f"data.item_features.{column}: is the id of the items; leave it out")
    if clash := next((name for name in table.columns if name in TAKEN and name != column), None):
        raise DataError(f'{path}: a column cannot be called "{clash}", as one of the dataset is; rename it')
    rows = table.with_columns(original=pl.col(column).cast(item_type, strict=False)).drop(column)
    if (bad := rows["original"].null_count()) and (
        value := table.filter(rows["original"].is_null())[column][0]
    ) is not None:
        raise DataError(f'{path}: {column} "{value}": not an id like those of the log, which are numbers')
    if bad:
        raise DataError(f"{path}: {bad:,} rows have no {column}; every row needs the id of its item")
    rows = rows.unique(maintain_order=True) if not _has_lists(rows) else rows
    if len(twice := rows.filter(pl.col("original").is_duplicated())):
        raise DataError(f'{path}: item "{twice["original"][0]}" has two rows; leave one row for each item')
    features, unused = _features(path, rows, kinds)
    return ItemFile(rows, features, unused)


def _has_lists(rows: pl.DataFrame) -> bool:
    return any(dtype.is_nested() for dtype in rows.dtypes)


def _read(path: Path) -> pl.DataFrame:
    """Return the table in the file at `path`, with typed columns."""
    try:
        kind = format_of(path)
        if path.suffix.lower() == ".dat":
            lines = pl.DataFrame({"line": _text(path).split("\n")}).filter(pl.col("line").str.strip_chars() != "")
            parts = lines["line"].str.strip_chars_end("\r").str.split("::").list
            return pl.DataFrame(
                {"movieId": parts.get(0), "title": parts.get(1), "genres": parts.get(2, null_on_oob=True)}
            )
        if kind == "parquet":
            table = pl.read_parquet(path, glob=False)
        elif kind in ("arrow file", "arrow stream"):
            table = (pl.read_ipc if kind == "arrow file" else pl.read_ipc_stream)(path)
        elif kind == "json lines" or path.suffix.lower() == ".json":
            table = _read_json(path)
        else:
            first = _text(path).partition("\n")[0]
            separator = max(("\t", ";", ",", "|"), key=first.count)
            table = pl.read_csv(_text(path).encode(), separator=separator, infer_schema_length=None)
    except (pl.exceptions.PolarsError, ValueError, OSError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise DataError(f"{path}: cannot be read as a table of items: {reason}; correct data.items_path") from None
    if not len(table):
        raise DataError(f"{path}: holds no items; name another file in data.items_path")
    return table.with_columns(pl.col(pl.String).replace(dict.fromkeys(MISSING)))


def _text(path: Path) -> str:
    content = path.read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")  # the encoding of the older MovieLens files


def _read_json(path: Path) -> pl.DataFrame:
    """Return JSON lines, or one object {item: values}, as the attribute files of S3-Rec have."""
    text = _text(path)
    try:
        content = json.loads(text)
    except ValueError:
        return pl.read_ndjson(text.encode(), infer_schema_length=None)
    if not isinstance(content, dict) or not all(isinstance(values, list) for values in content.values()):
        raise ValueError("expected one object a line, or one object with a list of values for each item")
    return pl.DataFrame({"item": [*content], "attributes": [*content.values()]})


def _id_column(path: str, table: pl.DataFrame, item_column: str) -> str:
    if item_column in table.columns:
        return item_column
    likely = item_columns(table)
    if len(likely) != 1:
        raise DataError(
            f"{path}: no column {item_column}, and which column has the ids of the items cannot be told; it has: "
            f"{', '.join(table.columns)}; rename that column to {item_column}"
        )
    return likely[0]


def _features(path: str, rows: pl.DataFrame, kinds: Mapping[str, str]) -> tuple[list[Feature], dict[str, str]]:
    """Return the features of the columns, named by `kinds` or guessed, and why other columns are not used."""
    features, unused = [], {}
    for column in rows.drop("original"):
        kind, separator, why = _guess(column)
        if kinds:
            named = kinds.get(column.name, "ignore")
            why = "data.item_features does not name it" if column.name not in kinds else "data.item_features"
            separator = separator or _separator(column) or "|" if named == "categories" else ""
            kind = named
        if kind == "ignore":
            unused[column.name] = why
            continue
        feature = Feature(column.name, kind, separator if column.dtype == pl.String else "")
        _check(path, column, feature)
        features.append(feature)
    return features, unused


def _guess(column: pl.Series) -> tuple[str, str, str]:
    """Return the kind of a column, the separator of its categories, and why it is ignored, if it is."""
    values = column.drop_nulls()
    if not len(values):
        return "ignore", "", "empty"
    if column.dtype.is_nested():
        inner = getattr(column.dtype, "inner", None)
        if inner is None or inner.is_nested():
            return "ignore", "", f"{column.dtype} is no value or list of values"
        return ("vector" if inner.is_float() else "categories"), "", ""
    n_values = values.n_unique()
    if n_values == 1:
        return "ignore", "", f"the same for all items: {values[0]}"
    if column.dtype == pl.Boolean:
        return "category", "", ""
    if column.dtype.is_numeric():
        return ("category" if column.dtype.is_integer() and n_values <= N_QUANTILES else "number"), "", ""
    if column.dtype.is_temporal():
        return "number", "", ""
    if separator := _separator(column):
        return "categories", separator, ""
    n_words = values.str.count_matches(WORD.pattern).mean()
    if n_values <= MOST_CATEGORIES * len(values):
        return "category", "", ""
    if (isinstance(n_words, float) and n_words >= FEWEST_WORDS) or column.name == "title":
        return "words", "", ""
    return "ignore", "", "nearly a different value for each item"


def _separator(column: pl.Series) -> str:
    """Return the separator of a text of categories: one that leaves far fewer distinct values; "" if there is none."""
    if column.dtype != pl.String:
        return ""
    values = column.drop_nulls()
    for separator in SEPARATORS:
        has_it = values.str.contains(separator, literal=True)
        if has_it.mean() and float(has_it.sum()) >= 0.1 * len(values):
            parts = values.str.split(separator).explode()
            if parts.n_unique() <= MOST_PARTS * len(parts):
                return separator
    return ""


def _check(path: str, column: pl.Series, feature: Feature) -> None:
    """Raise `DataError` if the values of a column do not fit the kind of the feature."""
    place = f"{path}: data.item_features.{column.name}"
    values = column.drop_nulls()
    if not len(values):
        raise DataError(f"{place}: the column is empty; leave it out")
    is_list = column.dtype.is_nested()
    if feature.kind == "vector":
        if not is_list:
            raise DataError(f'{place} = "vector": must be a list of numbers, not "{values[0]}"')
        lengths = values.cast(pl.List(pl.Float32), strict=False).list.len()
        if lengths.n_unique() > 1 or lengths[0] == 0:
            shown = sorted(lengths.unique().to_list())[:3]
            raise DataError(f'{place} = "vector": the vectors have different lengths, {shown}; all must have the same')
        each = values.cast(pl.List(pl.Float32), strict=False).explode()
        if each.null_count() or not each.is_finite().all():
            raise DataError(f'{place} = "vector": some numbers are missing or not finite; leave such items empty')
    elif feature.kind == "number":
        numbers = None if is_list else values.cast(pl.Float64, strict=False)
        if numbers is None or numbers.null_count():
            first = (values if numbers is None else values.filter(numbers.is_null())).to_list()[0]
            raise DataError(f'{place} = "number": "{first}" is no number; choose another kind')
        if not numbers.is_finite().all():
            raise DataError(f'{place} = "number": some numbers are not finite; leave the values of such items empty')
    elif is_list and feature.kind != "categories":
        raise DataError(f'{place} = "{feature.kind}": has lists; choose categories')


def _values(column: pl.Series, kind: str, separator: str) -> pl.Series:
    """Return the values of each item as a list, null where it has none; numbers and vectors unchanged."""
    if kind == "vector":
        return column
    if kind == "number":
        return column.cast(pl.Float64)
    if kind == "category":
        return column.cast(pl.String).str.strip_chars().replace("", None)
    if kind == "words":
        lists = column.cast(pl.String).str.to_lowercase().str.extract_all(WORD.pattern)
    elif column.dtype.is_nested():
        lists = column.cast(pl.List(pl.String))
    else:
        lists = column.cast(pl.String).str.split(separator).list.eval(pl.element().str.strip_chars())
    lists = lists.list.eval(pl.element().filter(~pl.element().is_in(MISSING))).list.unique(maintain_order=True)
    return lists.set(lists.list.len() == 0, None) if lists.null_count() < len(lists) else lists


Fitted: TypeAlias = Mapping[str, Any]  # what `metadata.json` says of a feature, and the `names` of its values


def read_fitted(folder: Path) -> dict[str, Fitted]:
    """Return the features of the dataset at `folder`, by name. Raises `DataError` if it cannot be read."""
    try:
        about = json.loads((folder / METADATA).read_text(encoding="utf-8")).get("item_features", {})
        file = folder / FOLDER / VALUES
        named = pl.read_parquet(file) if file.exists() else pl.DataFrame(schema=VALUES_SCHEMA)
    except (OSError, ValueError, pl.exceptions.PolarsError) as error:
        raise DataError(f"{folder}: its features cannot be read: {error}; correct data.extends") from None
    names = {name: part["name"].to_list() for (name,), part in named.group_by("feature", maintain_order=True)}
    return {name: {**of, "names": of.get("words", names.get(name, []))} for name, of in about.items()}


class Encoded(NamedTuple):
    """Hold the values of a feature as pairs of an item and a value number, and what `metadata.json` says of it."""

    items: npt.NDArray[np.int64]
    values: npt.NDArray[np.int64]
    about: dict[str, Any]
    names: list[str]


def write_features(
    folder: Path, file: ItemFile, originals: pl.Series, train_counts: npt.NDArray[np.integer[Any]],
    fitted: Mapping[str, Fitted],
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Write the features of the items, in the order of `originals`; return the entries of `metadata.json` by feature.

    `fitted` are the features of the dataset that this one extends, whose numbers count; {} if there is none.
    """
    rows = pl.DataFrame({"original": originals}).join(file.rows, on="original", how="left", maintain_order="left")
    is_trained = pl.Series(train_counts > 0)
    about: dict[str, dict[str, Any]] = {}
    bags, names, vectors, n_values = [], [], [], 0
    for feature in file.features:
        values = _values(rows[feature.column], feature.kind, feature.separator)
        entry = {"kind": feature.kind, "coverage": 1 - values.null_count() / len(values)}
        if feature.kind == "vector":
            vectors.append(_unit_vectors(values))
            about[feature.column] = entry | {"width": vectors[-1].shape[1]}
            continue
        before = fitted.get(feature.column)
        encoded = _encode(feature, values, is_trained, before)
        bags.append((encoded.items, n_values + encoded.values))
        about[feature.column] = entry | {"first": n_values, "separator": feature.separator} | encoded.about
        numbers = range(n_values + 1, n_values + 1 + len(encoded.names))
        names += [(feature.column, number, name) for number, name in zip(numbers, encoded.names, strict=True)]
        n_values += encoded.about["n_values"]
    (folder / FOLDER).mkdir()
    write_bags(folder, Bags.of(bags, n_items=len(originals)), vectors)
    if names:
        pl.DataFrame(names, schema=VALUES_SCHEMA, orient="row").write_parquet(folder / FOLDER / VALUES)
    return about


def _unit_vectors(column: pl.Series) -> npt.NDArray[np.float32]:
    """Return the vectors [n, width] scaled to length 1; zeros for an item without one."""
    values = column.cast(pl.List(pl.Float32))
    width = int(values.list.len().max() or 0)  # type: ignore[arg-type]
    vectors = np.zeros((len(values), width), np.float32)
    is_there = values.is_not_null().to_numpy()
    vectors[is_there] = values.drop_nulls().explode().to_numpy().reshape(-1, width)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.divide(vectors, lengths, out=vectors, where=lengths > 0)


def _encode(feature: Feature, values: pl.Series, is_trained: pl.Series, fitted: Fitted | None) -> Encoded:
    """Return the value numbers, from 1; 0 is for an item without any value that a trained item has."""
    pairs = pl.DataFrame({"item": np.arange(len(values)), "value": values}).drop_nulls()
    if feature.kind == "number":
        trained = values.filter(is_trained).drop_nulls().to_numpy()
        edges = fitted["edges"] if fitted else _quantiles(trained)
        numbers = 1 + np.searchsorted(edges, pairs["value"].to_numpy(), side="right")
        about = {"n_values": len(edges) + 2, "edges": list(edges)}
        return _with_missing(pairs["item"].to_numpy(), numbers, len(values), about, [])
    pairs = pairs.explode("value") if pairs["value"].dtype.is_nested() else pairs
    fewest = FEWEST if feature.kind == "words" else 1
    if fitted:
        names = list(fitted["names"])
    else:
        counts = pairs.filter(is_trained.gather(pairs["item"]))["value"].value_counts()
        names = (
            counts.filter(pl.col("count") >= fewest).sort("count", "value", descending=[True, False])["value"].to_list()
        )
    codes = [
        1 + zlib.crc32(name.encode()) % N_WORDS if feature.kind == "words" else 1 + i for i, name in enumerate(names)
    ]
    known = pl.DataFrame({"value": names, "number": codes}, schema={"value": pl.String, "number": pl.Int64})
    found = pairs.join(known, on="value", maintain_order="left").unique(["item", "number"], maintain_order=True)
    n_values = 1 + (N_WORDS if feature.kind == "words" else len(names))
    about = {"n_values": n_values} | ({"words": names} if feature.kind == "words" else {})
    names = [] if feature.kind == "words" else names
    return _with_missing(found["item"].to_numpy(), found["number"].to_numpy(), len(values), about, names)


def _quantiles(trained: npt.NDArray[np.float64]) -> list[float]:
    if not len(trained):
        return []
    return np.unique(np.quantile(trained, np.arange(1, N_QUANTILES) / N_QUANTILES)).tolist()


def _with_missing(
    items: npt.NDArray[np.int64], values: npt.NDArray[np.int64], n: int, about: dict[str, Any], names: list[str]
) -> Encoded:
    """Return the pairs, with the value 0 for each of `n` items that has none."""
    missing = np.setdiff1d(np.arange(n), items)
    return Encoded(np.concatenate([items, missing]), np.concatenate([values, 0 * missing]), about, names)
