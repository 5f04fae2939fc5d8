"""Differences of the same users, by hand."""

from pathlib import Path

import numpy as np
import pytest

from bert4rec.evaluation.results.intervals import paired_difference
from bert4rec.report.compare.columns import Column
from bert4rec.report.compare.paired import SEEN_DIFFERS, pairs
from bert4rec.report.compare.runs import read_run
from bert4rec.runtime.errors import DataError
from tests.report.compare.run_folders import make_run

KS = {"full": [10]}


def column(*folders: Path) -> Column:
    return Column("X", [read_run(folder) for folder in folders])


def test_a_users_value_is_the_mean_over_the_runs(tmp_path: Path) -> None:
    """Hits of four users: 1, 0, 0, 1 before; (1 + 1) / 2, (1 + 0) / 2, 0, 1 after."""
    first = column(make_run(tmp_path / "a", [1, 11, 30, 2]))
    other = column(make_run(tmp_path / "b", [2, 10, 40, 2]), make_run(tmp_path / "c", [1, 12, 20, 2], seed=2))
    found = pairs(first, other, KS, split="test")
    assert found.problem == ""
    assert list(found.differences) == ["full"]
    assert list(found.differences["full"]) == ["HR@10", "NDCG@10", "MRR"]
    assert found.differences["full"]["HR@10"] == paired_difference(np.array([0, 0.5, 0, 0]))
    reciprocal = np.array([0.75 - 1, (1 / 10 + 1 / 12) / 2 - 1 / 11, (1 / 40 + 1 / 20) / 2 - 1 / 30, 0])
    assert found.differences["full"]["MRR"].value == pytest.approx(reciprocal.mean())


def test_what_cannot_be_paired_says_why(tmp_path: Path) -> None:
    first = column(make_run(tmp_path / "a", [1, 2]))
    for name, options, problem in (
        ("b", {"fingerprint": "f2"}, "they were measured on different datasets"),
        ("d", {"seen_items": "keep"}, SEEN_DIFFERS),
        ("c", {"users": [0, 5]}, "they were tested on different users"),
    ):
        other = column(make_run(tmp_path / name, [1, 2], **options))
        assert pairs(first, other, KS, split="test") == ({}, problem)
    (tmp_path / "c" / "ranks-test.parquet").unlink()
    assert pairs(first, other, KS, split="test").problem == (
        f"{tmp_path / 'c'} has no ranks-test.parquet (`bert4rec evaluate` writes one, into a folder of its own)"
    )
    (tmp_path / "a" / "ranks-test.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"a/ranks-test.parquet: cannot be read: "):
        pairs(first, first, KS, split="test")
