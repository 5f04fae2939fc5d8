"""When the histories of a split end, from its files, which are read once."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa

from bert4rec.dataset.columns import REMAKE, Indices
from bert4rec.dataset.schema import STATE
from bert4rec.runtime.errors import DataError

UNKNOWN = np.iinfo(np.int64).min  # in the place of a time: nothing stands in the history


def last_times(split: Path) -> Indices | None:
    """The time [N] of the last item in each row's list, in seconds; None where the dataset has no times.

    `split`: the folder as `datasets` has saved it; a record batch at a time is in memory. Raises `DataError`.
    """
    try:
        files = [split / file["filename"] for file in json.loads((split / STATE).read_text())["_data_files"]]
        parts = [_of_batch(batch) for file in files for batch in pa.ipc.open_stream(pa.OSFile(str(file)))]
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise DataError(f"{split}: cannot be read ({error}); {REMAKE}") from None
    known = [part for part in parts if part is not None]
    return np.concatenate(known) if known else None


def _of_batch(batch: pa.RecordBatch) -> Indices | None:
    if "times" not in batch.schema.names:
        return None
    lists = batch["times"]
    first, after = (lists.offsets.slice(place, len(lists)).to_numpy() for place in (0, 1))
    times = lists.values.to_numpy()
    return np.where(after > first, times[after - 1], UNKNOWN) if len(times) else np.full(len(lists), UNKNOWN)
