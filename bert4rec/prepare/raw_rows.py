"""Read all pieces of a log, and take over what was found in them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from bert4rec.config.tables import Preprocessing
from bert4rec.prepare.ordering import ExistingIds
from bert4rec.prepare.runs import (
    GROUPS,
    KNOWN_USERS,
    NEW_USERS,
    Extended,
    Schema,
    merged,
    read_pieces,
)
from bert4rec.prepare.stages import Stages
from bert4rec.runtime.arrays import Int64s
from bert4rec.runtime.errors import DataError
from bert4rec.sources.columns import with_kinds
from bert4rec.sources.interactions import Interactions, Piece
from bert4rec.sources.progress import BadRows
from bert4rec.sources.synthetic import GeneratedSource

READ = ("*.schema", "covered.arrow", "titles.arrow", "others.arrow")  # files of the tasks that this process reads
FEW_BAD_ROWS = 10  # accepted even above the allowed share, which would be less than one row in a small file


@dataclass
class RawRows:
    """All usable rows in runs on the disk, in the order of the input.

    `runs`: the folder, the number within it, and the counts and samples of each; `kinds`: the numbers of the kinds of
    events of each. `schema` of the rows by group of users, and `item_type`. `known_counts` [known users] are the rows
    of known users in the time that the dataset to extend covers.
    """

    runs: list[tuple[Path, int, Mapping[str, Any]]]
    kinds: list[list[int] | None]
    schema: dict[str, Schema]
    item_type: pl.DataType
    known_counts: Int64s

    def __len__(self) -> int:
        return sum(self.n_rows(group) for group in GROUPS)

    def n_rows(self, group: str) -> int:
        """Return the number of rows of a group of users."""
        return sum(about[group]["n"] for _, _, about in self.runs if group in about)

    @property
    def columns(self) -> Schema:
        """Return the columns of the rows of both groups."""
        return {**self.schema[KNOWN_USERS], **self.schema[NEW_USERS]}


def read_rows(
    source: Interactions | GeneratedSource, settings: Preprocessing, known: ExistingIds | None, stages: Stages,
    extends: Extended | None = None,
) -> RawRows:  # fmt: skip
    """Return all usable rows of `source`; `known`: ids of the dataset to extend at `extends`.

    Raises `DataError` if the share of bad rows is above `max_bad_rows`, unless there are at most `FEW_BAD_ROWS`, and at
    most a tenth of all rows; and if that of rows without a user is above `max_guests`. All rows are read to count them,
    unless no row of the first part is usable.
    """
    here = not isinstance(source, Interactions)  # generated rows are in the memory of this process
    settled = source.settled() if isinstance(source, Interactions) else source
    pieces: Sequence[Sequence[Piece]] = source.cut() if isinstance(source, Interactions) else [()]
    sizes = [sum(piece.n_bytes for piece in some) if some else source.n_bytes for some in pieces]
    arguments = [(settled, some, extends, number == 0) for number, some in enumerate(pieces)]
    done = stages.run("read", read_pieces, arguments, sizes=sizes, title="read", here=here, reads=READ)
    kinds = [_take_over(source, *task) for task in done]
    raw = RawRows([], [], {}, pl.Int64(), np.zeros(len(known.users) if known else 0, np.int64))
    for (folder, result), numbers in zip(done, kinds, strict=True):
        raw.runs += [(folder, number, about) for number, about in enumerate(result["runs"])]
        raw.kinds += [numbers] * len(result["runs"])
        if (covered := folder / "covered.arrow").is_file():
            users, counts = pl.read_ipc(covered)
            raw.known_counts[users.to_numpy()] += counts.to_numpy()
    for group in GROUPS:
        paths = [folder / f"{group}-{number:03d}.schema" for folder, number, about in raw.runs if group in about]
        raw.schema[group] = merged([pl.read_ipc_schema(path) for path in paths])
    types = {about["items"]["type"] for *_, about in raw.runs}
    raw.item_type = pl.String() if "String" in types else pl.Int64()
    _refuse_bad_rows(source.bad, len(raw), settings)
    return raw


def _take_over(source: Interactions | GeneratedSource, folder: Path, result: Mapping[str, Any]) -> list[int] | None:
    """Add to `source` what a task has found; return the numbers there of its kinds of events, None without any."""
    if not isinstance(source, Interactions):
        return None
    source.bad.counts.update(result["bad"])
    source.bad.shown.extend(result["shown"][: source.bad.room])
    source.bad.guests += result["guests"]
    source.n_unordered.update(result["unordered"])
    source.words.n_lines += result["lines"]
    source.words.first_long = source.words.first_long or result["first_long"]
    for name, values in (("titles", source.titles), ("others", source.others)):
        if (path := folder / f"{name}.arrow").is_file():
            values.append(pl.read_ipc(path))
    if "event" not in source.columns:
        return None
    source.kinds[:] = with_kinds(source.kinds, result["kinds"], source.columns["event"])
    return [source.kinds.index(kind) for kind in result["kinds"]]


def _refuse_bad_rows(bad: BadRows, n_usable: int, settings: Preprocessing) -> None:
    """Raise `DataError` for too many bad rows, or rows without a user, beside `n_usable` rows."""
    share, n_rows = settings.max_bad_rows, n_usable + bad.total
    n_all = n_rows + bad.guests
    if bad.guests > settings.max_guests * n_all:
        raise DataError(
            f"{bad.guests:,} of {n_all:,} rows ({bad.guests / n_all:.0%}) have no user, more than "
            f"preprocessing.max_guests = {settings.max_guests:g} of all: name another column with --user=COLUMN (a "
            "session or an order can be the user), or remove these rows with --preprocessing.max_guests=1"
        )
    if bad.total > max(share * n_rows, min(FEW_BAD_ROWS, n_rows / 10) if share else 0):
        n = f"{bad.total:,} of {n_rows:,} rows" if bad.total > 1 else "a row"
        without = next(
            (f", read the file without {field}s (--{field}=)" for field in ("rating", "time") if _fails(bad, field)), ""
        )
        raise DataError(
            f"{bad.shown[0]}; {n} cannot be used, more than preprocessing.max_bad_rows = {share:g} of all: correct or "
            f"remove these rows{without}, or allow more"
        )


def _fails(bad: BadRows, field: str) -> bool:
    """Return whether most bad rows are unusable only because of a `field` that a table need not have."""
    return 2 * sum(n for kind, n in bad.counts.items() if kind.startswith(f"{field} ")) > bad.total
