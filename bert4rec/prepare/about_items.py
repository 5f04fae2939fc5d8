"""Collect what is known of the items: the columns of a file of items, and those of the log that depend on the item."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import polars as pl

from bert4rec.config.tables import Data
from bert4rec.prepare.catalogue import Catalogue
from bert4rec.prepare.survey import survey_columns
from bert4rec.runtime.errors import DataError
from bert4rec.sources.attributes import (
    DIFFERS,
    FirstRows,
    ItemValues,
    judge,
    keys_of,
    may_depend_on_item,
    reason_lines,
    why_unused,
)
from bert4rec.sources.first_look import first_rows
from bert4rec.sources.interactions import Interactions
from bert4rec.sources.item_features import (
    RESERVED_COLUMNS,
    Fitted,
    ItemFile,
    coverage,
    examples,
    features_of,
    no_column,
    read_item_file,
)
from bert4rec.sources.progress import Progress
from bert4rec.sources.synthetic import GeneratedSource
from bert4rec.sources.text_values import number_problem, typed

FIELD_NAMES = {"user": "users", "item": "items", "time": "times", "rating": "ratings", "event": "kinds of events"}
USED = "the items have a column of this name; rename it in the log"
NO_TITLE = "is not recognized as the title of the items; --title=title takes the first one of each item"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class OtherColumns:
    """The columns of a log that no field has.

    `first`: its first rows; `why`: column → why it is not used; `features`: column → kind of those that are features.
    `survey` has the columns of events and of sessions, which `findings` tells.
    """

    first: FirstRows = field(default_factory=lambda: judge(pl.DataFrame(), {}))
    why: Mapping[str, str] = field(default_factory=dict)
    features: Mapping[str, str] = field(default_factory=dict)
    survey: Mapping[str, Any] = field(default_factory=lambda: survey_columns(pl.DataFrame()))

    @property
    def candidates(self) -> dict[str, str]:
        """Return key → column of those whose values are collected while the rows are read."""
        return {key: name for key, name in self.first.columns.items() if name not in self.why}

    def lines(self, why: Mapping[str, str], basis: str) -> list[str]:
        """Return lines about columns that are not used, but for those that `findings` tells."""
        told = {*self.survey["events"], *self.survey["sessions"]}
        unused = {name: reason for name, reason in why.items() if name not in told}
        can_be_taken = any(reason.startswith(DIFFERS) for reason in unused.values())
        advice = " (data.item_features takes the first value of each item)" if can_be_taken else ""
        return [f"columns that are not used, by {basis}{advice}:", *reason_lines(unused)] if unused else []


class AboutItems(NamedTuple):
    """The known facts of the items: `titles`, and a `table` with features.

    `survey` has the columns of events and of sessions that are no attributes of the items.
    """

    titles: pl.DataFrame | None
    table: ItemFile | None
    survey: Mapping[str, Any]


def look_at_other_columns(
    data: Data, source: Interactions | GeneratedSource, fitted: Mapping[str, Fitted]
) -> OtherColumns:
    """Return the columns of the log that no field has, judged by its first rows.

    `fitted` are the features of the dataset to extend. Raises `DataError` for features that neither the log nor the
    file of items can have, and for such a file that cannot be used.
    """
    present: Mapping[str, bool] = {}
    fields: Mapping[str, str] = {}
    if isinstance(source, Interactions) and source.source.form == "table":
        present, fields = source.open(source.files[0]).columns, source.columns
    title = fields.get("title", "")
    plain = [name for name, is_plain in present.items() if is_plain and name not in {*fields.values()} - {title}]
    features, in_file = _kinds(data, fitted), {}
    if data.items_path:
        rows = _read_file(data, source, pl.String(), fitted, plain).rows  # fail now rather than after minutes
        in_file = dict.fromkeys(rows.columns, f"{data.items_path} has a column of this name")
        features = {name: kind for name, kind in features.items() if name not in in_file}
    if refused := next((name for name in features if name not in plain or name in RESERVED_COLUMNS), ""):
        if fitted:
            raise DataError(f"data.extends: the items of {data.extends} have features; name their file: --items=FILE")
        raise _no_feature(refused, data, source, [*present])
    if not isinstance(source, Interactions) or not present:
        return OtherColumns()
    columns = keys_of([name for name in plain if name != title])
    rows = first_rows(source, ItemValues(columns)) if columns else pl.DataFrame()
    first, time = judge(rows, columns), fields.get("time", "")
    survey = survey_columns(
        rows.select(pl.col(key).alias(name) for key, name in columns.items() if key in rows.columns)
    )
    why = {name: "has lists, objects or bytes" for name, is_plain in present.items() if not is_plain}
    why |= {
        name: in_file.get(name) or USED for name in columns.values() if name in {*in_file, *RESERVED_COLUMNS, "title"}
    }
    if why.get("title") == USED and not title and not data.titles_path:
        why["title"] = NO_TITLE
    why |= {
        name: why_unused(first, key, first.items.evidence(key), time)
        for key, name in columns.items()
        if name not in why and name not in features and not may_depend_on_item(first, key)
    }
    if title in features:
        first = first._replace(columns={**columns, **keys_of([title])})
    return OtherColumns(first, {name: reason for name, reason in why.items() if name not in features}, features, survey)


def _kinds(data: Data, fitted: Mapping[str, Fitted]) -> dict[str, str]:
    """Return the kind of each named feature; those of the dataset to extend are `fitted`."""
    if not data.extends:
        return dict(data.item_features)
    if data.items_path and not fitted:
        raise DataError(f"data.extends: the items of {data.extends} have no features; remove --items")
    if data.item_features:
        raise DataError(f"data.item_features: the kinds are those of {data.extends}; remove them")
    return {name: feature["kind"] for name, feature in fitted.items()}


def _no_feature(name: str, data: Data, source: Interactions | GeneratedSource, present: Sequence[str]) -> DataError:
    """Return the error for a feature that no column of the log can be, where `present` are the columns of a table."""
    place = f"data.item_features.{name}"
    if not isinstance(source, Interactions) or not present:
        return DataError(f"{place}: {data.source} data have no such columns; name a file of items: --items=FILE")
    field = next((field for field, column in source.columns.items() if column == name), "")
    if field in FIELD_NAMES:
        return DataError(f"{place}: is the column of the {FIELD_NAMES[field]}; remove it")
    if name in RESERVED_COLUMNS:
        return DataError(f'{place}: a column cannot be called "{name}", as one of the dataset is; rename it')
    if name in present:
        return DataError(f"{place}: has lists, objects or bytes, which only a file of items may have: --items=FILE")
    return no_column(name, str(source.files[0]), present)


def _read_file(
    data: Data, source: Interactions | GeneratedSource, item_type: pl.DataType, fitted: Mapping[str, Fitted],
    log: Collection[str],
) -> ItemFile:  # fmt: skip
    """Return the file of items, with ids of `item_type`; `log`: columns of the log that may be features as well."""
    if isinstance(source, GeneratedSource):
        raise DataError(f"data.items_path = {data.items_path}: {data.source} data has no item table; remove it")
    return read_item_file(
        data.items_path, data.item_features, item_column=source.columns["item"], item_type=item_type, fitted=fitted,
        log=log,
    )  # fmt: skip


def read_items_of_file(
    data: Data, source: Interactions | GeneratedSource, item_type: pl.DataType, fitted: Mapping[str, Fitted],
    others: OtherColumns,
) -> ItemFile | None:  # fmt: skip
    """Return the file of items, with ids of `item_type`, and log how each column is understood; None without one."""
    if not data.items_path:
        return None
    file = _read_file(data, source, item_type, fitted, others.features)
    logger.info("\n".join([f"the items of {data.items_path} (other kinds: data.item_features):", *file.lines()]))
    return file


def read_about_items(
    data: Data, source: Interactions | GeneratedSource, item_type: pl.DataType, catalogue: Catalogue,
    file: ItemFile | None, others: OtherColumns, fitted: Mapping[str, Fitted], progress: Progress,
) -> AboutItems:  # fmt: skip
    """Return what is known of the items after all rows have been read, and log how each column is understood.

    `catalogue`: the items of the rows, and of the `file`.
    """
    titles = source.item_titles(data.titles_path, dtype=item_type)
    tables, survey = [], others.survey
    if file:
        assert isinstance(source, Interactions), "generated items have no file"
        more = file.titles(source.columns.get("title", ""))
        if titles is not None and more is not None:  # items without a title in the log, as those that only a file has
            more = pl.concat([titles, more.join(titles, on="item", how="anti").cast(titles.schema)])
        titles = titles if more is None else more
        _compare_items(catalogue, data.items_path, progress)
        tables.append(file)
    if isinstance(source, Interactions) and others.candidates:
        table = _log_attributes(data, source, item_type, others, fitted)
        names = {*table.rows.columns}
        events = {name: shares for name, shares in survey["events"].items() if name not in names}
        survey = {"events": events, "sessions": [name for name in survey["sessions"] if name not in names]}
        tables += [table] if len(names) > 1 else []
    return AboutItems(titles, _together(tables, fitted), survey)


def _log_attributes(
    data: Data, source: Interactions, item_type: pl.DataType, others: OtherColumns, fitted: Mapping[str, Fitted]
) -> ItemFile:
    """Return the attributes of the items in the log, with the features among them, and log a line about each column."""
    names, values = others.candidates, source.others
    evidence = {key: values.evidence(key) for key in names}
    taken = [key for key, item_evidence in evidence.items() if item_evidence.depends or names[key] in others.features]
    rows = values.first(taken)
    if taken and source.open(source.files[0]).unit == "line":
        rows = typed(rows, texts=["item"])
    rows = rows.with_columns(original=pl.col("item").cast(item_type)).drop("item")
    features = features_of(data.path, rows, others.features, fitted)[0] if others.features else []
    table, lines = ItemFile(rows, features, fitted=fitted), []
    if taken:
        described = table.described()
        shown = {names[key]: described.get(names[key]) or _described(rows[names[key]]) for key in taken}
        for key in taken:
            if evidence[key].n_varied:
                shown[names[key]] += f"; the first of each item: {evidence[key].differences()}"
        lines = ["columns that depend on the item, for --where and --per (as features: data.item_features):"]
        lines += reason_lines(shown)
    time = source.columns.get("time", "")
    why = {name: why_unused(others.first, key, evidence[key], time) for key, name in names.items() if key not in taken}
    if lines := [*lines, *others.lines(why, "all rows")]:
        logger.info("\n".join(lines))
    return table


def _described(column: pl.Series) -> str:
    """Return how an attribute that is not a feature is understood."""
    kind = "numbers" if column.dtype.is_numeric() else "times" if column.dtype.is_temporal() else "text"
    kind = "true or false" if column.dtype == pl.Boolean else kind
    values = column.drop_nulls().unique(maintain_order=True)
    note = f" ({problem})" if (problem := number_problem(column)) else ""
    return f"{kind}, {coverage(column)}, {len(values):,} values, as {examples(values)}{note}"


def _together(tables: list[ItemFile], fitted: Mapping[str, Fitted]) -> ItemFile | None:
    """Return one table with the rows and features of all; None without any."""
    if len(tables) < 2:
        return next(iter(tables), None)
    file, log = tables
    rows = file.rows.join(log.rows, on="original", how="full", coalesce=True, maintain_order="left_right")
    order = [*fitted]
    features = sorted([*file.features, *log.features], key=lambda one: order.index(one.column) if fitted else 0)
    return replace(file, rows=rows, features=features)


def _compare_items(catalogue: Catalogue, path: str, progress: Progress) -> None:
    """Warn if items of the log are not in the file of items at `path`. Raises `DataError` if none is."""
    n_read, n_both = catalogue.n_read, catalogue.n_both
    if not n_both:
        raise DataError(f"{path}: has none of the {n_read:,} items of the log; are the ids written in another way?")
    if n_both < n_read:
        progress.warn(f"{path}: {n_read - n_both:,} of the {n_read:,} items of the log have no row there")
