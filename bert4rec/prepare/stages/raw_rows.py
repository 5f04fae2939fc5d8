"""All usable rows of a source, sorted by user in runs on the disk."""

from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from bert4rec.config.tables import Preprocessing
from bert4rec.prepare.files.bad_rows import BadRows
from bert4rec.prepare.order.ids import Distinct, Known, same_type
from bert4rec.prepare.order.spool import Spool
from bert4rec.prepare.progress import Progress
from bert4rec.prepare.read.interactions import Interactions
from bert4rec.prepare.read.synthetic import Generated
from bert4rec.runtime.errors import DataError


@dataclass
class RawRows:
    """Hold all usable rows on the disk: `known` of users with an id of an older dataset as `user`, `new` of the
    others.
    """

    known: Spool
    new: Spool
    items: Distinct = field(default_factory=Distinct)

    def __len__(self) -> int:
        return self.known.n_rows + self.new.n_rows

    @property
    def item_type(self) -> pl.DataType:
        """Return the type of the original item ids."""
        return (self.new.schema or self.known.schema)["item"]


def read_rows(
    source: Interactions | Generated, settings: Preprocessing, known: Known | None, *, folder: Path, run_bytes: int,
    progress: Progress,
) -> RawRows:  # fmt: skip
    """Read every usable row of `source`, in runs of `run_bytes` under `folder`; `known`: the ids of an older dataset.

    Raises `DataError` where the share of bad rows is above `max_bad_rows`, unless there are no more than `few_bad_rows`
    and a tenth of all. That this is likely is logged as soon as it is seen; then all rows are read to count them,
    unless none of the first ones can be used.
    """
    raw = RawRows(Spool(folder / "known", run_bytes=run_bytes), Spool(folder / "new", run_bytes=run_bytes))
    before = last = 0
    is_said = False
    with progress.stage("read", source.n_bytes) as stage:
        for frame, done in source:
            before, last = (last, done) if done > last else (before, last)
            if before and not is_said:  # bytes whose rows have all been seen: of those up to `done` some may be to come
                n_seen = len(raw) + len(frame) + source.bad.total
                if source.bad.total == n_seen:
                    raise DataError(
                        f"{source.bad.shown[0]}; none of the first {n_seen:,} rows can be used: correct them"
                    )
                if is_said := _has_too_many(source.bad, n_seen * source.n_bytes / before, settings):
                    n, kinds = f"{source.bad.total:,} of the first {n_seen:,} rows", ", ".join(source.bad.counts)
                    progress.log(f"{n} cannot be used ({kinds}); reading on to count all")
            raw.items.add(frame.select("item"))
            for spool, rows in zip((raw.known, raw.new), _by_known(frame, known), strict=True):
                spool.add(rows)
            stage.advance(done, len(frame))
    bad, n_rows = source.bad, len(raw) + source.bad.total
    if _has_too_many(bad, n_rows, settings):
        n = f"{bad.total:,} of {n_rows:,} rows" if bad.total > 1 else "a row"
        raise DataError(
            f"{bad.shown[0]}; {n} cannot be used, more than preprocessing.max_bad_rows = {settings.max_bad_rows:g} of "
            "all: correct or remove these rows, or allow more"
        )
    return raw


def _by_known(frame: pl.DataFrame, known: Known | None) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the rows of users with a known id, which becomes their `user`, and the other rows."""
    if known is None:
        return frame.clear(), frame
    names, old = same_type(frame["user"], known.users["original"])
    ids = known.users.select(pl.col("user").cast(pl.Int64).alias("known"), original=old)
    found = frame.with_columns(original=names).join(ids, on="original", how="left", maintain_order="left")
    rows = found.drop("original", "known")
    is_known = found["known"].is_not_null()
    return rows.with_columns(user=found["known"]).filter(is_known), rows.filter(~is_known)


def _has_too_many(bad: BadRows, n_rows: float, settings: Preprocessing) -> bool:
    """Return whether `bad` rows among `n_rows` are more than the settings allow."""
    share, few = settings.max_bad_rows, settings.few_bad_rows
    return bad.total > max(share * n_rows, min(few, n_rows / 10) if share else 0)
