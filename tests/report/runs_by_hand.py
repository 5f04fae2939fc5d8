"""Run folders written by hand: `REPORT` has all that a report may have, `SMALL_REPORT` the least."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w

from bert4rec.evaluation.intervals import Ranking

HOSTILE = "<script>alert('x')</script> & \"Co\""


def metrics(users: int, *values: float) -> dict[str, float]:
    return {"users": users, **dict(zip(("HR@1", "HR@10", "NDCG@10", "MRR"), values, strict=True))}


def around(value: float) -> list[float]:
    return [value - 0.01, value + 0.01]


def write_records(folder: Path, records: Iterable[Mapping[str, Any]]) -> None:
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


REPORT: dict[str, Any] = {
    "format_version": 1,
    "dataset": {
        "source": "table", "file": HOSTILE, "users": 6040, "items": 3416, "rows": 999_611, "split": "leave_one_out",
        "n_eval_negatives": 100, "fingerprint": "f" * 64, "density": 0.0484, "max_len": 200, "train_windows": 8648,
        "lengths": {
            "min": 18, "median": 96.0, "mean": 165.5, "max": 2277, "histogram": [[16, 31, 861], [32, 63, 1367]],
        },
        "time_span": [1_000_003_919, 1_031_799_258], "rows_read": 1_000_209, "dropped": {HOSTILE: 598}, "bad_rows": {},
        "repeated_targets": {"validation": {"users": 0, "of": 1024}, "test": {"users": 3, "of": 6040}},
        "left_out": {"validation": {"users": 0, "of": 1024}, "test": {"users": 0, "of": 6040}},
    },
    "kind": "bert4rec",
    "model": "Bert4Rec",
    "mode": "dmp",
    "world_size": 2,
    "seen_items": "leave_out",
    "validation": {"full": metrics(1024, 0.08, 0.3, 0.17, 0.14)},
    "test": {"full": metrics(6040, 0.07, 0.3113, 0.1754, 0.15), "popular": metrics(6040, 0.29, 0.69, 0.48, 0.42)},
    "popularity_baseline": {
        "full": metrics(6040, 0.007, 0.0363, 0.0178, 0.02), "popular": metrics(6040, 0.02, 0.14, 0.07, 0.07),
    },
    "baselines": {
        "markov": {"full": metrics(6040, 0.05, 0.2, 0.11, 0.1)},
        "transition_graph": {"full": metrics(6040, 0.06, 0.25, 0.13, 0.12)},
    },
    "strongest_baseline": {
        "kind": "transition_graph", "protocol": "full", "metric": "NDCG@10", "difference": 0.0454,
        "interval": [0.04, 0.05], "p": 1e-4,
    },
    "intervals": {
        "confidence": 0.95, "resamples": 1000, "test": {"full": {"HR@10": around(0.3113), "NDCG@10": around(0.1754)}},
        "baselines": {"markov": {"full": {"HR@10": around(0.2), "NDCG@10": around(0.11)}}},
    },
    "slices": {
        "test": {
            "history_length": [
                {"name": "1 to 5", "users": 40, "HR@10": 0.2, "NDCG@10": 0.1, "intervals": {"HR@10": [0.1, 0.3]}},
                {"name": HOSTILE, "users": 6000, "HR@10": 0.32, "NDCG@10": 0.18},
            ],
            "target": [], "repeated": [{"name": "new", "users": 6040, "HR@10": 0.3, "NDCG@10": 0.2}],
        }
    },
    "hits_by_rank": {"ks": [1, 10, 100], "test": [0.07, 0.31, 0.7], "popularity_baseline": [0.007, 0.036, 0.2]},
    "training": {
        "epochs": 40.0, "steps": 1200, "seconds": 100.0, "best_epoch": 38.0, "stopped_by": "n_epochs",
        "sequences_per_second": 412.34, "peak_memory_bytes": [2**29, 2**28], "resumed": [],
        "seconds_by_part": {"start": 2.0, "training": 80.0, "validation": 10.0, "saving": 8.0, "test": 60.0},
    },
    "sharding": {"weights": [1_500_000, 1_400_000], "optimizer_state": [800_000, 700_000]},
    "plan": {
        "tables": {"item": {"rows": 3418, "columns": 68}},
        "shards": [
            {"table": "item", "rank": rank, "row": 1709 * rank, "n_rows": 1709, "column": 0, "n_columns": 68,
             "weight_bytes": 464_848, "state_bytes": 6836}
            for rank in range(2)
        ],
    },
    "warnings": [],
}  # fmt: skip


METRICS = {"users": 3, "HR@10": 0.5, "NDCG@10": 0.25, "MRR": 1.0}
SMALL_REPORT: dict[str, Any] = {
    "dataset": {
        "source": "table", "file": "", "users": 3, "items": 40, "rows": 1200, "split": "leave_one_out",
        "n_eval_negatives": 10, "fingerprint": "f" * 64,
        "repeated_targets": {"validation": {"users": 1, "of": 3}, "test": {"users": 0, "of": 3}},
        "left_out": {"validation": {"users": 0, "of": 3}, "test": {"users": 0, "of": 3}},
    },
    "kind": "bert4rec",
    "model": "Bert4Rec",
    "mode": "dmp",
    "world_size": 1,
    "seen_items": "leave_out",
    "test": {"full": METRICS, "popular": METRICS},
    "warnings": [],
    "popularity_baseline": {"full": METRICS | {"HR@10": 0.125, "NDCG@10": 0.0625}, "popular": METRICS},
    "training": {
        "epochs": 3.663976945244957, "steps": 1, "seconds": 1.2, "best_epoch": 1.0, "stopped_by": "max_minutes",
        "sequences_per_second": 0.41234, "peak_memory_bytes": [2**30], "resumed": [(1000, 1), (2000, 2)],
    },
}  # fmt: skip

PRIOR: dict[str, Any] = {
    "weights": {"transitions": [0.7712], "ease": [12.125, 0.0]},
    "model": {"HR@10": 0.21, "NDCG@10": 0.1234},
    "sources": {
        "transitions": {"HR@10": 0.22, "NDCG@10": 0.1123}, "ease": {"HR@10": 0.23, "NDCG@10": 0.1012},
    },
    "difference": {"difference": 0.0081, "interval": [0.0043, 0.012], "p": 0.0001},
}  # fmt: skip


def item(name: int, title: str = "") -> dict[str, Any]:
    return {"item": name, "title": title}


EXAMPLES: dict[str, Any] = {
    "n_items": 3416,
    "n_test_users": 6040,
    "users": [
        {
            "user": HOSTILE, "rank": 2, "n_history": 9, "history": [item(7, HOSTILE), item(8)],
            "target": item(3, "Three"),
            "recommendations": [item(2, HOSTILE) | {"score": 3.5}, item(3, "Three") | {"score": 2.5}],
        },
        {"user": 5, "rank": 400, "n_history": 1, "history": [item(7)], "target": item(9), "recommendations": []},
    ],
}  # fmt: skip

ENVIRONMENT = {"python": "3.11.7", "torch": "2.13.0", "world_size": 2, "command": ["train.py", f"--run.name={HOSTILE}"]}


def write_run(folder: Path, **changes: Any) -> Path:
    """Write a run; `changes` are keys of the report, which None removes."""
    report = {name: value for name, value in (REPORT | changes).items() if value is not None}
    folder.mkdir(parents=True)
    for name, content in (("report", report), ("environment", ENVIRONMENT), ("examples", EXAMPLES)):
        (folder / f"{name}.json").write_text(json.dumps(content))
    (folder / "plan.txt").write_text(f"plan: {HOSTILE}\n")
    model = {"embed_dim": 32, "kind": "bert4rec"}
    settings = {"run": {"name": "x"}, "model": model, "data": {"source": HOSTILE}, "parallelism": {"device": "cpu"}}
    (folder / "config.toml").write_text(tomli_w.dumps(settings))
    trained = [{"kind": "train", "step": 30 * n, "epoch": n, "loss": 8 - n / 10} for n in range(1, 41)]
    curve = {n: metrics(1024, 0.01, 0.3 * n / 40, 0.17 * n / 40, 0.1) for n in range(2, 41, 2)}
    validated = [{"kind": "validation", "step": 30 * n, "epoch": n, "full": full} for n, full in curve.items()]
    write_records(folder, trained + validated)
    return folder


KS = [5, 10]
TRAINING = {"seconds": 90.0, "epochs": 3.0, "sequences_per_second": 250.0, "peak_memory_bytes": [2**30, 2**29]}


def make_run(
    folder: Path, ranks: Sequence[int], *, seed: int = 1, fingerprint: str = "f1", users: Sequence[int] | None = None,
    settings: Mapping[str, Any] | None = None, validation: Sequence[int] = (), **report: Any,
) -> Path:  # fmt: skip
    """Write a run for comparisons, whose test users have the `ranks`, and those of validation others."""
    folder.mkdir(parents=True)
    split_ranks = {split: each for split, each in (("test", ranks), ("validation", validation)) if len(each)}
    found = {split: _ranked(folder / f"ranks-{split}.parquet", each, users) for split, each in split_ranks.items()}
    counts = {split: {"users": 0, "of": len(each)} for split, each in split_ranks.items()}
    content = {
        "format_version": 1,
        "dataset": {"source": "table", "split": "leave_one_out", "fingerprint": fingerprint, "n_eval_negatives": 5,
                    "repeated_targets": counts, "left_out": counts},
        "model": "Bert4Rec", "world_size": 2, "seen_items": "leave_out", "training": TRAINING,
        **{split: metrics for split, (metrics, _) in found.items()},
        "intervals": {split: intervals for split, (_, intervals) in found.items()},
    }  # fmt: skip
    (folder / "report.json").write_text(json.dumps(content | report))
    tables: dict[str, dict[str, Any]] = {"run": {"name": folder.name}, "training": {"seed": seed}}
    for name, value in (settings or {}).items():
        table, _, key = name.partition(".")
        tables.setdefault(table, {})[key] = value
    (folder / "config.toml").write_text(tomli_w.dumps(tables))
    records = [{"kind": "validation", "step": 7 * n, "epoch": n, "full": {"NDCG@10": 0.1 * n}} for n in (1.0, 2.0)]
    write_records(folder, records)
    return folder


def _ranked(path: Path, ranks: Sequence[int], users: Sequence[int] | None) -> tuple[Any, Any]:
    """Write the ranks of a split; return its metrics and their intervals."""
    full = np.array(ranks, np.int32)
    ids = np.arange(len(full)) if users is None else np.array(users)
    pq.write_table(pa.table({"user": ids, "target": ids, "full": full}), path)
    ranking = Ranking({"full": full})
    return ranking.metrics(KS), ranking.intervals(KS)
