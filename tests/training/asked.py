"""Test users of a run as a program asks for them, and the ranks that they have by their lists and by the run's file."""

from pathlib import Path
from typing import Any

import polars as pl

from bert4rec import TimedHistory
from bert4rec.dataset.histories import Rows
from bert4rec.dataset.reader import Dataset
from bert4rec.evaluation.metrics import MISSED
from bert4rec.runtime.arrays import Int64s


def asked_of(model: Any, dataset: Dataset, rows: Rows, lengths: Int64s, at: Int64s | None) -> list[TimedHistory]:
    kinds, instants = dataset.histories.kinds, [None] * len(lengths) if at is None else at.tolist()
    asked = []
    for n, end, instant in zip(lengths.tolist(), lengths.cumsum().tolist(), instants, strict=True):
        part = slice(end - n, end)
        events = [kinds[event] for event in rows.events[part]]
        asked.append(TimedHistory(model.ids.of(rows.items[part].tolist()), rows.times[part].tolist(), instant, events))
    return asked


def ranks_of(model: Any, asked: list[TimedHistory], targets: Int64s) -> list[int]:
    lists = [[one.item for one in best] for best in model.recommend(asked, len(model.ids))]
    pairs = zip(lists, model.ids.of(targets.tolist()), strict=True)
    return [1 + items.index(target) if target in items else MISSED for items, target in pairs]


def written_ranks(folder: Path) -> list[int]:
    return pl.read_parquet(folder / "ranks-test.parquet")["full"].to_list()
