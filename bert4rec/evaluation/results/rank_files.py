"""The rank of every user's target in a Parquet file, a row a user: what all metrics are computed from.

The columns: `user` and `target`, dense ids (int32); `original_user` and `original_item`, the same by their own ids;
`is_repeated`, whether the target stands in the user's own history; `history_length`, the items of that (int32);
`train_count`, the training positions of the target (int32); where the dataset has times `last_time`, when the last item
of the history was, in seconds (int64; null without one); and for each protocol the rank (int32) of the target, counted
from 1; 0 for a target that is missed, since seen items are left out or the model does not know it; null for a user who
has no part in it. HR@k is the share of 1 <= `rank` <= k among those that are not null, NDCG@k the mean of
1 / log2(rank + 1) over these ranks, else 0, MRR that of 1 / rank, else 0.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bert4rec.dataset.columns import Indices, Ints
from bert4rec.dataset.originals import one_array
from bert4rec.dataset.ranks import LEFT_OUT
from bert4rec.dataset.reader import NO_TIME, Dataset
from bert4rec.dataset.schema import FIRST_ITEM_ID, ITEMS, USERS
from bert4rec.evaluation.ranker import Ranks
from bert4rec.evaluation.results.slices import Facts

ROWS_AT_ONCE = 65_536


def rank_file(split: str) -> str:
    """Return the name of the file of a split."""
    return f"ranks-{split}.parquet"


def write_ranks(folder: Path, dataset: Dataset, ranks: Mapping[str, Ranks], facts: Mapping[str, Facts]) -> list[Path]:
    """Write `ranks-<split>.parquet` of each split of `facts` into `folder`, whole or not at all; the files.

    `ranks`: of the model, by split. Raises `OSError`.
    """
    with pq.ParquetFile(dataset.folder / ITEMS) as items:
        original_items = one_array(items.read(columns=["original"])["original"])
    return [
        _write(folder / rank_file(split), _rows(dataset, split, ranks[split], of_split, original_items))
        for split, of_split in facts.items()
    ]


def _write(path: Path, rows: Iterator[pa.RecordBatch]) -> Path:
    unfinished = path.with_name(path.name + ".tmp")
    try:
        first = next(rows)
        with pq.ParquetWriter(unfinished, first.schema) as writer:
            writer.write_batch(first)
            for batch in rows:
                writer.write_batch(batch)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path


def _rows(
    dataset: Dataset, split: str, ranks: Ranks, facts: Facts, original_items: pa.Array
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a split, some at a time; its users have the order of the table of users."""
    users = dataset.splits[split].users
    with pq.ParquetFile(dataset.folder / USERS) as table:
        for part in table.iter_batches(batch_size=ROWS_AT_ONCE, columns=["user", "original"]):
            first, last = part["user"][0].as_py(), part["user"][-1].as_py()
            rows = np.arange(*np.searchsorted(users, [first, last + 1]))
            if not len(rows):
                continue
            targets = dataset.splits[split].targets(rows)
            yield pa.RecordBatch.from_pydict(
                {
                    "user": users[rows],
                    "original_user": part["original"].take(pa.array(users[rows] - first)),
                    "target": targets,
                    "original_item": original_items.take(pa.array(targets - FIRST_ITEM_ID)),
                    "is_repeated": facts.is_repeated[rows],
                    "history_length": facts.history_length[rows].astype(np.int32),
                    "train_count": facts.train_count[rows].astype(np.int32),
                    **_times(facts.last_time, rows),
                    **{name: _nullable(values[rows]) for name, values in ranks.items()},
                }
            )


def _times(times: Indices | None, rows: Indices) -> dict[str, pa.Array]:
    return {} if times is None else {"last_time": pa.array(times[rows], pa.int64(), mask=times[rows] == NO_TIME)}


def _nullable(ranks: Ints) -> pa.Array:
    return pa.array(ranks, pa.int32(), mask=ranks == LEFT_OUT)
