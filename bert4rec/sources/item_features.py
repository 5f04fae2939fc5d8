"""Read what is known of the items besides their ids, and encode it as numbers for the model.

A feature has a kind: `category` (one value), `categories` (several), `number` (quantiles), `words` (of a text, hashed)
or `vector` (ready-made numbers). Vocabularies and quantiles are fitted on the items with training positions alone; a
value that is missing, or that no such item has, is the feature's value 0.
"""

import json
import re
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import polars as pl

from bert4rec.dataset.format import METADATA
from bert4rec.dataset.item_features import ARRAYS, FEATURES_FOLDER, VALUES, Bags, write_bags
from bert4rec.runtime.arrays import Float32s, Int64s, Integers
from bert4rec.runtime.errors import DataError, nearest
from bert4rec.sources.text_values import MISSING_TEXTS, number_problem, shown
from bert4rec.sources.user_tables import id_column, one_row_an_item, read_table

VALUES_SCHEMA = {"feature": pl.String, "number": pl.Int64, "name": pl.String}
N_QUANTILES = 16
N_WORDS = 4096  # buckets of hashed words
FEWEST = 2  # items that must have a word
MOST_CATEGORIES = 0.5  # largest share of distinct values among those of a category that is guessed
MOST_PARTS = 0.75  # the same among the parts of a text with a separator
FEWEST_WORDS = 3.0  # fewest words on average in a text that is guessed to be a title
VALUE_SEPARATORS = ("|", ";", ", ")
TEXT_WORD = re.compile(r"[^\W_]+")
LIST_AS_TEXT = r"^\s*\[.*\]\s*$"
RESERVED_COLUMNS = ("item", "original", "count", "train_count")  # columns of `items/`


Fitted: TypeAlias = Mapping[str, Any]  # what `metadata.json` says of a feature, and the `names` of its values


class Feature(NamedTuple):
    """A column that is used: its `kind`, and what separates the values of `categories` in a text."""

    column: str
    kind: str
    separator: str = ""


@dataclass(frozen=True)
class ItemFile:
    """The rows of an item file: `rows` (`original` and the columns), the features, and why others are not used.

    `fitted` are the features of the dataset that is extended, whose numbers count; {} if there is none.
    """

    rows: pl.DataFrame
    features: Sequence[Feature]
    unused: Mapping[str, str] = field(default_factory=dict)
    fitted: Mapping[str, Fitted] = field(default_factory=dict)

    def titles(self, log_title: str = "") -> pl.DataFrame | None:
        """Return `item` and `title` of the items with a title, by the column `title` or that of the log, `log_title`.

        None if the file has neither.
        """
        column = next((name for name in ("title", log_title) if name in self.rows.columns), "")
        if not column or self.rows[column].dtype.is_nested():
            return None
        return self.rows.select(item="original", title=pl.col(column).cast(pl.String)).drop_nulls()

    def described(self) -> dict[str, str]:
        """Return how each feature is understood, by column: kind, coverage, distinct values, three examples."""
        lines = {}
        for column, kind, separator in self.features:
            values = _values(self.rows[column], kind, separator)
            distinct = "" if kind == "vector" else f"{values.explode().drop_nulls().n_unique():,} values, "
            if column in self.fitted and kind not in ("vector", "number"):
                present = values.explode().drop_nulls().unique()
                n_unknown = int((~present.is_in(self.fitted[column]["names"])).sum())
                distinct += f"{n_unknown:,} of them unknown to the dataset, " if n_unknown else ""
            note = f' at "{separator}"' if separator else ""
            lines[column] = f"{kind}{note}, {coverage(values)}, {distinct}as {examples(self.rows[column])}"
        return lines

    def lines(self) -> list[str]:
        """Return lines that show how each column is understood, or why it is not used."""
        unused = {column: f"not used ({why})" for column, why in self.unused.items()}
        return [f"  {column}: {text}" for column, text in (self.described() | unused).items()]


def coverage(values: pl.Series) -> str:
    """Return the share of the items that have a value."""
    return f"{1 - values.null_count() / len(values):.0%} of the items"


def examples(column: pl.Series) -> str:
    """Return the first three values of a column."""
    return ", ".join(str(value)[:40] for value in column.drop_nulls().head(3).to_list())[:80]


def read_item_file(
    path: str, kinds: Mapping[str, str], *, item_column: str, item_type: pl.DataType,
    fitted: Mapping[str, Fitted] = MappingProxyType({}), texts: Collection[str] = (), log: Collection[str] = (),
) -> ItemFile:  # fmt: skip
    """Return the item file at `path`, with ids of `item_type`; the features are those of `kinds` or, if empty, guessed.

    The ids are in the column `item_column`, or in one that is recognized. With `fitted`, the features of a dataset to
    extend, the features are those, in their order. Of the columns `texts` of a CSV file, "007" is not 7. Features that
    the file does not have may be in columns of the `log`. Raises `DataError`, in one line, for a file that cannot be
    used.
    """
    kinds = {name: feature["kind"] for name, feature in fitted.items()} or kinds
    table = read_table(Path(path), item_column=item_column, texts=texts)
    table = table.with_columns(pl.col(pl.String).replace(dict.fromkeys(MISSING_TEXTS)))
    column = id_column(path, table, item_column)
    if table.width == 1:
        raise DataError(f"{path}: has only the column {column}, so items have no features; remove data.items_path")
    if unknown := next((name for name in kinds if name not in table.columns and name not in log), None):
        raise no_column(unknown, path, table.columns)
    if column in kinds:
        raise DataError(f"data.item_features.{column}: is the id of the items; remove it")
    if clash := next((name for name in table.columns if name in RESERVED_COLUMNS and name != column), None):
        raise DataError(f'{path}: a column cannot be called "{clash}", as one of the dataset is; rename it')
    rows = one_row_an_item(path, table, column, item_type)
    features, unused = features_of(path, rows, kinds, fitted)
    if not features and not (kinds.keys() & log):
        why = ", ".join(f"{name} ({reason})" for name, reason in unused.items())
        advice = "name a kind, as in --data.item_features.COLUMN=category, or remove data.items_path"
        raise DataError(f"{path}: none of its columns can be used: {why}; {advice}")
    return ItemFile(rows, features, unused, fitted)


def no_column(name: str, path: str, columns: Sequence[str]) -> DataError:
    """Return the error that the table at `path`, which has `columns`, does not have the one of a feature."""
    return DataError(
        f"data.item_features.{name}: {path} has no such column; it has: {', '.join(columns)}{nearest(name, columns)}"
    )


def features_of(
    path: str, rows: pl.DataFrame, kinds: Mapping[str, str], fitted: Mapping[str, Fitted]
) -> tuple[list[Feature], dict[str, str]]:
    """Return the features of the columns, named by `kinds` or guessed, and why other columns are not used."""
    features, unused = [], {}
    for column in rows.drop("original"):
        kind, why = (kinds.get(column.name, "ignore"), "") if kinds else _guess(column)
        if kind == "ignore":
            named = "data.item_features" if column.name in kinds else "data.item_features does not name it"
            unused[column.name] = why or ("the dataset has no such feature" if fitted else named)
            continue
        before = fitted.get(column.name, {}).get("separator")
        is_split = kind == "categories" and not column.dtype.is_nested()
        feature = Feature(column.name, kind, before or _separator(column) or "|" if is_split else "")
        _check(path, rows.select("original", column).drop_nulls(), feature, fitted.get(column.name))
        features.append(feature)
    return sorted(features, key=lambda feature: [*fitted].index(feature.column) if fitted else 0), unused


def _guess(column: pl.Series) -> tuple[str, str]:
    """Return the kind of a column, and why it is ignored, if it is."""
    values = column.drop_nulls()
    if not len(values) or (isinstance(column.dtype, pl.List) and not values.list.len().max()):
        return "ignore", "empty"
    if column.dtype.is_nested() or column.dtype == pl.Binary:
        inner = getattr(column.dtype, "inner", None)
        if inner is None or inner.is_nested():
            return "ignore", f"{column.dtype} is no value or list of values"
        return ("vector" if inner.is_float() else "categories"), ""
    n_values = values.n_unique()
    if n_values == 1:
        return "ignore", f"the same for all items: {shown(values[0])}"
    if column.dtype == pl.Boolean or (column.dtype.is_integer() and n_values <= N_QUANTILES):
        return "category", ""
    if column.dtype.is_numeric() or column.dtype.is_temporal():
        return "number", ""
    if values.str.contains(LIST_AS_TEXT).all():
        return "ignore", f"lists written as text, as {shown(values[0])}; write the values as a|b"
    if _separator(column):
        return "categories", ""
    if n_values > N_QUANTILES and (problem := number_problem(values)):
        return "ignore", problem
    n_words = values.str.count_matches(TEXT_WORD.pattern).mean()
    if n_values <= MOST_CATEGORIES * len(values):
        return "category", ""
    if (isinstance(n_words, float) and n_words >= FEWEST_WORDS) or column.name == "title":
        return "words", ""
    return "ignore", number_problem(values) or "nearly a different value for each item"


def _separator(column: pl.Series) -> str:
    """Return the separator of a text of categories: one that leaves far fewer distinct values; "" if there is none."""
    if column.dtype != pl.String:
        return ""
    values = column.drop_nulls()
    for separator in VALUE_SEPARATORS:
        has_it = values.str.contains(separator, literal=True)
        if has_it.mean() and float(has_it.sum()) >= 0.1 * len(values):
            parts = values.str.split(separator).explode()
            if parts.n_unique() <= MOST_PARTS * len(parts):
                return separator
    return ""


def _check(path: str, rows: pl.DataFrame, feature: Feature, fitted: Fitted | None) -> None:
    """Raise `DataError` if the values of a column do not fit the kind of the feature, naming the first that does not.

    `rows` are those with a value; `fitted` is the feature of the dataset to extend, where others have values.
    """
    column, kind, _ = feature
    place = f'{path}: data.item_features.{column} = "{kind}"'
    values, dtype = rows[column], rows[column].dtype
    inner = getattr(dtype, "inner", pl.Struct({}) if dtype.is_nested() else None)
    is_bad, expected = pl.repeat(True, len(values), eager=True), ""
    if pl.Binary in (dtype, inner) or (inner is not None and inner.is_nested()):
        expected = "a value or a list of values, or the kind ignore"
    elif kind == "vector":
        expected = "a list of finite numbers, none of them missing"
        if inner is not None and inner.is_numeric():
            numbers = values.cast(pl.List(pl.Float32))
            is_bad = ~numbers.list.eval(pl.element().is_finite().fill_null(value=False)).list.all()
            lengths = numbers.list.len()
            if not is_bad.any():
                width = fitted["width"] if fitted else int(lengths.head(1).sum())
                is_bad, expected = lengths != max(1, width), f"all vectors of one length, such as {width}"
    elif inner is not None:
        is_bad, expected = is_bad & (kind != "categories"), "one value; for lists choose categories"
    elif kind == "number":
        expected = "a finite number, or another kind"
        if dtype != pl.Boolean:
            is_bad = ~_numbers(values).is_finite().fill_null(value=False)
    elif dtype == pl.String:
        is_bad = is_bad & (kind != "words" and values.str.contains(LIST_AS_TEXT).all())
        expected = "no list written as text; write the values as a|b, or the file as JSON lines or Parquet"
    elif kind == "category":
        is_bad, expected = ~values.cast(pl.Float64, strict=False).is_finite(), "a finite number, or nothing"
        is_bad = is_bad & dtype.is_float()
    else:
        is_bad, expected = is_bad & (not fitted), "a text; for these values choose category or number"
    if is_bad.any():
        item, value = rows.filter(is_bad).row(0)
        raise DataError(f'{place}: item "{item}" has {shown(value)}; expected: {expected}')
    if not fitted and not len(_values(values, kind, feature.separator).drop_nulls()):
        raise DataError(f"{place}: the column has no value; remove it")


def _numbers(column: pl.Series) -> pl.Series:
    """Return values as numbers, null for others; dates and times in microseconds since 1970, whatever their unit."""
    if column.dtype in (pl.Date, pl.Datetime):
        column = column.dt.epoch("us")
    elif column.dtype == pl.Duration:
        column = column.dt.total_microseconds()
    return column.cast(pl.Float64, strict=False)


def _values(column: pl.Series, kind: str, separator: str) -> pl.Series:
    """Return the values of each item as a list, null where it has none; numbers and vectors unchanged."""
    if kind == "vector":
        is_empty = not column.dtype.is_nested()
        return pl.repeat(None, len(column), dtype=pl.List(pl.Float32), eager=True) if is_empty else column
    if kind == "number":
        return _numbers(column)
    if kind == "category":
        return column.cast(pl.String).str.strip_chars().replace("", None)
    if kind == "words":
        lists = column.cast(pl.String).str.to_lowercase().str.extract_all(TEXT_WORD.pattern)
    elif column.dtype.is_nested():
        lists = column.cast(pl.List(pl.String))
    else:
        lists = column.cast(pl.String).str.split(separator).list.eval(pl.element().str.strip_chars())
    lists = lists.list.eval(pl.element().filter(~pl.element().is_in(MISSING_TEXTS))).list.unique(maintain_order=True)
    return lists.set(lists.list.len() == 0, None) if lists.null_count() < len(lists) else lists


def read_fitted(folder: Path) -> dict[str, Fitted]:
    """Return the features of the dataset at `folder`, by name. Raises `DataError` if it cannot be read."""
    try:
        about = json.loads((folder / METADATA).read_text(encoding="utf-8")).get("item_features", {})
        file = folder / FEATURES_FOLDER / VALUES
        named = pl.read_parquet(file) if file.exists() else pl.DataFrame(schema=VALUES_SCHEMA)
    except (OSError, ValueError, pl.exceptions.PolarsError) as error:
        raise DataError(f"{folder}: its features cannot be read: {error}; correct data.extends") from None
    names = {name: part["name"].to_list() for (name,), part in named.group_by("feature", maintain_order=True)}
    return {name: {**feature, "names": feature.get("words", names.get(name, []))} for name, feature in about.items()}


class Encoded(NamedTuple):
    """The values of a feature as pairs of an item and a value number, and what `metadata.json` says of it."""

    items: Int64s
    values: Int64s
    about: dict[str, Any]
    names: list[str]


def write_features(
    folder: Path, file: ItemFile, originals: pl.Series, train_counts: Integers
) -> dict[str, dict[str, Any]]:
    """Write the features of the items `originals`, in their order; return the entries of `metadata.json` by feature."""
    rows = pl.DataFrame({"original": originals}).join(file.rows, on="original", how="left", maintain_order="left")
    is_trained = pl.Series(train_counts > 0)
    about: dict[str, dict[str, Any]] = {}
    bags, names, vectors, n_values = [], [], [], 0
    for feature in file.features:
        values = _values(rows[feature.column], feature.kind, feature.separator)
        entry = {"kind": feature.kind, "coverage": 1 - values.null_count() / len(values)}
        before = file.fitted.get(feature.column)
        if feature.kind == "vector":
            vectors.append(_unit_vectors(values, before))
            about[feature.column] = entry | {"width": vectors[-1].shape[1]}
            continue
        encoded = _encode(feature, values, is_trained, before)
        bags.append((encoded.items, n_values + encoded.values))
        about[feature.column] = entry | {"first": n_values, "separator": feature.separator} | encoded.about
        about[feature.column]["values_per_item"] = len(encoded.items) / len(originals)
        names += [(feature.column, number, name) for number, name in enumerate(encoded.names, n_values + 1)]
        n_values += encoded.about["n_values"]
    (folder / FEATURES_FOLDER).mkdir()
    write_bags(folder, Bags.of(bags, n_items=len(originals)), vectors)
    if names:
        pl.DataFrame(names, schema=VALUES_SCHEMA, orient="row").write_parquet(folder / FEATURES_FOLDER / VALUES)
    return about


def append_features(
    folder: Path, file: ItemFile, originals: pl.Series, previous: Path, n_previous: int
) -> dict[str, dict[str, Any]]:
    """Write the features of the dataset `previous`, with its `n_previous` items, and after them those of new items.

    `originals` are the new items; the `file` was read with the features of `previous`. Returns the entries of
    `metadata.json` by feature.
    """
    about = write_features(folder, file, originals, np.zeros(len(originals), np.int64))
    old, new = ([np.load(place / FEATURES_FOLDER / f"{name}.npy") for name in ARRAYS] for place in (previous, folder))
    offsets = np.concatenate([old[0], old[0][-1] + new[0][1:]])
    values, weights, vectors = (np.concatenate(parts) for parts in zip(old[1:], new[1:], strict=True))
    write_bags(folder, Bags(offsets, values, weights), [vectors])
    share = len(originals) / (n_previous + len(originals))
    for name, entry in about.items():
        for mean in {"coverage", "values_per_item"} & entry.keys():
            entry[mean] = (1 - share) * file.fitted[name][mean] + share * entry[mean]
    return about


def _unit_vectors(column: pl.Series, fitted: Fitted | None) -> Float32s:
    """Return the vectors [n, width] scaled to length 1; zeros for an item without one."""
    values = column.cast(pl.List(pl.Float32))
    width = fitted["width"] if fitted else int(values.list.len().max() or 0)  # type: ignore[arg-type]
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
        quantiles = np.quantile(trained, np.arange(1, N_QUANTILES) / N_QUANTILES) if len(trained) else trained
        edges = fitted["edges"] if fitted else np.unique(quantiles).tolist()
        numbers = 1 + np.searchsorted(edges, pairs["value"].to_numpy(), side="right")
        about = {"n_values": len(edges) + 2, "edges": list(edges)}
        return _with_missing(pairs["item"].to_numpy(), numbers, len(values), about, [])
    pairs = pairs.explode("value") if pairs["value"].dtype.is_nested() else pairs
    is_text = feature.kind == "words"
    if fitted:
        names = list(fitted["names"])
    else:
        counts = pairs.filter(is_trained.gather(pairs["item"]))["value"].value_counts()
        counts = counts.filter(pl.col("count") >= (FEWEST if is_text else 1))
        names = counts.sort("count", "value", descending=[True, False])["value"].to_list()
    codes = [1 + zlib.crc32(name.encode()) % N_WORDS if is_text else code for code, name in enumerate(names, 1)]
    known = pl.DataFrame({"value": names, "number": codes}, schema={"value": pl.String, "number": pl.Int64})
    found = pairs.join(known, on="value", maintain_order="left")
    found = found.unique(["item", "number"], maintain_order=True)  # two words may have the same number
    about = {"n_values": 1 + N_WORDS, "words": names} if is_text else {"n_values": 1 + len(names)}
    names = [] if is_text else names
    return _with_missing(found["item"].to_numpy(), found["number"].to_numpy(), len(values), about, names)


def _with_missing(items: Int64s, values: Int64s, n: int, about: dict[str, Any], names: list[str]) -> Encoded:
    """Return the pairs, with the value 0 for each of `n` items that has none."""
    missing = np.flatnonzero(np.bincount(items, minlength=n) == 0)
    return Encoded(np.concatenate([items, missing]), np.concatenate([values, 0 * missing]), about, names)
