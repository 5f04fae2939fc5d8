"""Write the list of each test user beside the actual item: `lists-test` as CSV, JSON lines or Parquet."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bert4rec.dataset.format import NO_ITEM, TEST, one_array
from bert4rec.dataset.reader import Dataset
from bert4rec.evaluation.batches import chunks
from bert4rec.evaluation.intervals import Ranking
from bert4rec.evaluation.metrics import MISSED
from bert4rec.serving.stored_items import StoredItemIds

LIST_LENGTH = 10  # items of a list
LISTS_AT_ONCE = 16_384


def write_lists(folder: Path, form: str, dataset: Dataset, ranking: Ranking) -> None:
    """Write `lists-test.FORM` into `folder`: a row for each test user, in the order of `ranks-test.parquet`.

    A row has the `user`, the `target`, its `rank` in the full catalogue (null if it is missed), and the best items,
    best first, with their scores and, if the items have any, titles. Raises `OSError`.
    """
    parts = _parts(dataset, ranking)
    path = folder / f"lists-{TEST}.{form}"
    if form == "parquet":
        first = next(parts)
        with pq.ParquetWriter(path, first.schema) as writer:
            writer.write_table(first)
            for part in parts:
                writer.write_table(part)
        return
    rows = (row for part in parts for row in part.to_pylist())
    with path.open("w", newline="", encoding="utf-8") as file:
        if form == "jsonl":
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            return
        lines = csv.writer(file, lineterminator="\n")
        for number, cells in enumerate(map(_wide, rows)):
            if not number:
                lines.writerow(cells)
            lines.writerow(cells.values())


def _parts(dataset: Dataset, ranking: Ranking) -> Iterator[pa.Table]:
    lists, split, ids = ranking.lists, dataset.splits[TEST].everything, StoredItemIds(dataset.folder)
    assert lists is not None, "the full catalogue was ranked"
    ranks = ranking.ranks["full"]
    for rows in chunks(len(split), LISTS_AT_ONCE):
        numbers = np.arange(rows.start, rows.stop)
        targets = split.targets(numbers).tolist()
        is_item = lists.kept_items[rows] != NO_ITEM
        items, scores = lists.kept_items[rows][is_item].tolist(), lists.kept_scores[rows][is_item]
        ends = pa.array([0, *is_item.sum(1).cumsum().tolist()], pa.int32())
        users = dataset.user_table.rows(split.users_at(numbers), ["original"])["original"]
        columns: dict[str, Any] = {"user": one_array(users), "target": ids.of(targets)}
        if ids.have_titles:
            columns["target_title"] = ids.titles_of(targets)
        columns["rank"] = pa.array(ranks[rows], pa.int32(), mask=ranks[rows] == MISSED)
        id_type = pa.int64() if ids.are_numbers else pa.large_string()
        columns["items"] = pa.ListArray.from_arrays(ends, pa.array(ids.of(items), id_type))
        if ids.have_titles:
            columns["titles"] = pa.ListArray.from_arrays(ends, pa.array(ids.titles_of(items), pa.string()))
        columns["scores"] = pa.ListArray.from_arrays(ends, pa.array(scores, pa.float64()))
        yield pa.table(columns)


def _wide(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of the CSV file: item_1, item_2, … of `items`; a list that is shorter leaves cells empty."""
    cells: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, list):
            padded = value + [None] * (LIST_LENGTH - len(value))
            cells |= {f"{name[:-1]}_{n}": cell for n, cell in enumerate(padded, 1)}
        else:
            cells[name] = value
    return cells
