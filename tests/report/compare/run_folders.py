"""Finished runs made by hand: a report, settings, ranks of some users, and a curve."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w

from bert4rec.evaluation.results.ranking import Ranking

KS = [5, 10]
TRAINING = {"seconds": 90.0, "epochs": 3.0, "sequences_per_second": 250.0, "peak_memory_bytes": [2**30, 2**29]}


def make_run(
    folder: Path, ranks: Sequence[int], *, seed: int = 1, fingerprint: str = "f1", users: Sequence[int] | None = None,
    settings: Mapping[str, Any] | None = None, validation: Sequence[int] = (), **report: Any,
) -> Path:  # fmt: skip
    """A run whose test users have the `ranks`, others on `validation`."""
    folder.mkdir(parents=True)
    of_split = {"test": ranks, "validation": validation}
    found = {split: _ranked(folder / f"ranks-{split}.parquet", of, users) for split, of in of_split.items() if len(of)}
    content = {
        "format_version": 1,
        "dataset": {"source": "table", "split": "leave_one_out", "fingerprint": fingerprint, "n_eval_negatives": 5},
        "model": "Bert4Rec",
        "world_size": 2,
        **{split: metrics for split, (metrics, _) in found.items()},
        "intervals": {split: intervals for split, (_, intervals) in found.items()},
        "training": TRAINING,
    }
    (folder / "report.json").write_text(json.dumps(content | report))
    tables: dict[str, dict[str, Any]] = {"run": {"name": folder.name}, "training": {"seed": seed}}
    for name, value in (settings or {}).items():
        table, _, key = name.partition(".")
        tables.setdefault(table, {})[key] = value
    (folder / "config.toml").write_text(tomli_w.dumps(tables))
    records = [{"kind": "validation", "step": 7 * epoch, "epoch": epoch, "full": {"NDCG@10": 0.1 * epoch}}
               for epoch in (1.0, 2.0)]  # fmt: skip
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


def _ranked(path: Path, ranks: Sequence[int], users: Sequence[int] | None) -> tuple[Any, Any]:
    """Write the ranks of a split; its metrics and their intervals."""
    full = np.array(ranks, np.int32)
    ids = np.arange(len(full)) if users is None else np.array(users)
    pq.write_table(pa.table({"user": ids, "target": ids + 2, "full": full}), path)
    ranking = Ranking({"full": full})
    return ranking.metrics(KS), ranking.intervals(KS)
