"""A report is read, its contestants are in one order, and equal figures are equal to the last bit."""

import json
from pathlib import Path

import pytest

from bert4rec.report.figures import common_figures, contestants, curve_of, differences, main_protocol, read_report
from bert4rec.runtime.errors import DataError

FULL = {"full": {"HR@10": 0.5}}


@pytest.mark.parametrize("content", [None, "{", "[]", "{}"])
def test_a_report_is_read_as_it_was_written_or_is_an_error(tmp_path: Path, content: str | None) -> None:
    report = {"dataset": {"fingerprint": "f"}, "test": {"full": {"HR@10": 0.1}}}
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report))
    assert read_report(tmp_path) == report
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(DataError, match=r"report\.json"):
        read_report(tmp_path)


def test_the_model_first_then_the_baselines_then_the_best_possible() -> None:
    intervals = {"test": {"full": {"HR@10": [0.4, 0.6]}}, "baselines": {"markov": {"full": {"HR@10": [0.1, 0.2]}}}}
    report = {
        "model": "SASRec", "test": FULL, "popularity_baseline": FULL, "best_possible": FULL, "intervals": intervals,
        "baselines": {"popularity": FULL, "markov": FULL, "another": FULL},
    }  # fmt: skip
    found = contestants(report)
    assert [one.title for one in found] == ["SASRec", "popularity", "Markov", "another", "best possible"]
    assert [one.interval("full", "HR@10") for one in found] == [(0.4, 0.6), None, (0.1, 0.2), None, None]
    assert contestants({"dataset": {}}) == []
    itself = {"model": "Popularity", "test": FULL, "popularity_baseline": FULL, "baselines": {"markov": FULL}}
    assert [one.kind for one in contestants(itself)] == ["model", "markov"]  # it is not compared with itself


def test_the_full_catalogue_comes_first() -> None:
    assert main_protocol({}) is None
    assert main_protocol({"test": {"popular": {}, "full": {}}}) == "full"
    assert main_protocol({"test": {"uniform": {}, "popular": {}}}) == "uniform"


def test_ranks_are_judged_by_ndcg_and_ratings_by_their_error() -> None:
    ranks = [{"epoch": 2.0 * n, "full": {"NDCG@10": value}} for n, value in enumerate((0.1, 0.3, 0.3, 0.2), 1)]
    errors = [{"epoch": n, "ratings": {"RMSE": value}} for n, value in enumerate((1.0, 0.0, 0.8))]
    by_rank, by_error = curve_of(ranks), curve_of(errors)
    assert (by_rank.metric, by_rank.best, by_rank.epochs[by_rank.best]) == ("NDCG@10", 1, "4")
    assert (by_error.metric, by_error.best, by_error.values) == ("RMSE", 1, [1.0, 0.0, 0.8])
    assert curve_of([]) is None


def test_only_figures_that_both_have_are_compared_and_the_first_ones_named() -> None:
    one = {"mode": "dmp", "test": {"full": {"users": 4, "HR@1": 0.25}}, "validation": {"full": {"MRR": 0.5}}}
    assert differences(one, one) == ""
    assert len(common_figures(one, one)) == 3
    other = {"mode": "ddp", "test": {"full": {"users": 4, "HR@1": 0.5, "HR@5": 1.0}, "uniform": {"HR@1": 1.0}}}
    assert "HR@1 0.25, not 0.5" in differences(one, other)
    many = {"test": {"full": {f"HR@{k}": k / 8 for k in range(1, 6)}}}
    line = differences(many, {"test": {"full": dict.fromkeys(many["test"]["full"], 0.0)}})
    assert [f"HR@{k}" in line for k in range(1, 6)] == [True, True, True, False, False]
    assert differences({"test": {"full": {"MRR": 0.1 + 0.2}}}, {"test": {"full": {"MRR": 0.3}}})  # the last bit
