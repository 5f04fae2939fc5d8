"""Whether a dataset keeps the items of another one, so that what was trained on that can be trained on."""

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bert4rec.dataset.reader import FIRST_IDS, Dataset, checksum
from bert4rec.dataset.schema import ITEMS

ITEMS_AT_ONCE = 65_536


def problem_of(dataset: Dataset, *, n_items: int, first_ids: str, previous: Path | None = None) -> str:
    """Why `dataset` does not extend one of `n_items` items, the first ids' checksum `first_ids`; "" where it does.

    `previous` is the folder of that one where it is still there: then every id is compared, and not only the first
    ones.
    """
    if dataset.n_items < n_items:
        return f"it has {dataset.n_items:,} items, fewer than the {n_items:,} of the model"
    if first_ids not in map(checksum, _forms(dataset.originals(min(FIRST_IDS, n_items)))):
        return f"its first {min(FIRST_IDS, n_items):,} items are not those of the model"
    return next(_differences(previous / ITEMS, dataset.folder / ITEMS), "") if previous else ""


def _forms(originals: list[Any]) -> Iterator[list[Any]]:
    """Ids that are text now may have been numbers, as long as all items had some."""
    yield originals
    if all(isinstance(original, str) and original.isdecimal() for original in originals):
        yield [int(original) for original in originals]


def _differences(previous: Path, current: Path) -> Iterator[str]:
    with pq.ParquetFile(previous) as old, pq.ParquetFile(current) as new:
        parts = (file.iter_batches(ITEMS_AT_ONCE, columns=["item", "original"]) for file in (old, new))
        for before, after in zip_longest(*parts):
            if before is None:
                return
            after = after[: len(before)]
            if before.equals(after):
                continue
            for number, mine, other in zip(before["item"], *map(_as_text, (before, after)), strict=True):
                if mine != other:
                    yield f"its item {number} is {other}, not {mine}"


def _as_text(part: pa.RecordBatch) -> list[str]:
    return list(part["original"].cast(pa.string()).to_pylist())
