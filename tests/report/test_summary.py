"""The sentences of a report have the right figures."""

from typing import Any

import pytest

from bert4rec.report.summary import heading, protocols, result_line, rules, summary
from tests.report.runs_by_hand import METRICS
from tests.report.runs_by_hand import SMALL_REPORT as REPORT


def report(**changes: Any) -> dict[str, Any]:
    def figures(value: float) -> dict[str, Any]:
        return {"full": {"users": 6040, "HR@10": value}}

    return REPORT | {"test": figures(0.3113), "popularity_baseline": figures(0.0363)} | changes


def test_the_model_popularity_the_strongest_baseline_and_the_best_possible() -> None:
    more = {
        "baselines": {"markov": {"full": {"HR@10": 0.2}}, "transition_graph": {"full": {"HR@10": 0.25}}},
        "best_possible": {"full": {"HR@10": 0.5}},
        "strongest_baseline": {"kind": "markov", "metric": "NDCG@10"},
        "intervals": {"test": {"full": {"HR@10": [0.3, 0.322]}}},
    }
    model, popularity, strongest, best = summary(report(**more)).split(". ")
    assert [figure in model for figure in ("31.1 %", "6,040", "40 items", "30.0 %", "32.2 %")] == [True] * 5
    assert ("3.6 %" in popularity, "8.58" in popularity) == (True, True)
    assert "Markov, has it for 20.0 %" in strongest
    assert "50.0 %" in best


@pytest.mark.parametrize(("value", "end"), [(0.5, "50.0 %: more than Bert4Rec."), (0.0, "0.0 %.")])
def test_no_ratio_to_a_popularity_that_is_better_or_zero(value: float, end: str) -> None:
    assert summary(report(popularity_baseline={"full": {"users": 6040, "HR@10": value}})).endswith(end)


RATINGS = {"pairs": 10_000, "RMSE": 0.874, "MAE": 0.67, "baseline_RMSE": 1.05, "means_RMSE": 0.9}


def test_sampled_items_ratings_and_a_run_without_a_test() -> None:
    sampled = {name: {"popular": {"users": 6040, "HR@10": 0.5}} for name in ("test", "popularity_baseline")}
    assert "10 others drawn by popularity" in summary(report(**sampled))
    last = summary(report(ratings=RATINGS)).split("It predicts")[1]
    assert [figure in last for figure in ("10,000", "0.8740", "1.0500")] == [True] * 3
    text = summary({name: REPORT[name] for name in ("model", "dataset", "training")})
    assert ("3.66 epochs" in text, "1,200" in text) == (True, True)


def test_the_result_in_one_line() -> None:
    graph = {"transition_graph": {"full": METRICS | {"HR@10": 0.375}}, "markov": {"full": METRICS | {"NDCG@10": 0.1}}}
    for changes, end in (
        ({}, ": HR@10 0.5000, NDCG@10 0.2500 (popularity: 0.1250, 0.0625)"),
        ({name: {"popular": METRICS} for name in ("test", "popularity_baseline")}, "(popularity: 0.5000, 0.2500)"),
        ({"baselines": graph}, "(popularity: 0.1250, 0.0625; transition graph: 0.3750, 0.2500)"),
    ):
        assert result_line(REPORT | changes).endswith(end)
    first, second = result_line(REPORT | {"ratings": RATINGS}).splitlines()
    assert ("RMSE 0.8740" in first, "HR@10" in second) == (True, True)
    assert "no test" in result_line({"dataset": REPORT["dataset"]})


def test_repeated_targets_and_users_left_out_are_in_the_headings() -> None:
    dataset = REPORT["dataset"] | {
        "n_eval_negatives": 100,
        "repeated_targets": {"validation": {"users": 1, "of": 4}, "test": {"users": 305, "of": 1500}},
    }
    test = {"full": METRICS | {"users": 1500}, "uniform": METRICS | {"users": 1498}}
    report = REPORT | {"dataset": dataset, "test": test, "validation": {"full": METRICS | {"users": 4}}}
    assert heading(report, "test", "full").endswith("305 of 1500 targets (20.3 %); 1500 users")
    uniform = heading(report, "test", "uniform")
    assert [part in uniform for part in ("1498 of 1500 users", "left out: 2,", "100 unseen items")] == [True] * 3
    assert "1 of 4 targets (25.0 %)" in heading(report, "validation", "full")
    assert heading(report | {"seen_items": "keep"}, "test", "full").endswith("1500 users")
    assert "305 of 1500 test targets (20.3 %), 1 of 4 validation targets (25.0 %)" in rules(report)
    assert {split: list(names) for split, names in protocols(report).items()} == {
        "validation": ["full"], "test": ["full", "uniform"],
    }  # fmt: skip
    assert protocols(report)["test"]["full"] == f"{heading(report, 'test', 'full')}. {rules(report)}"
    assert rules({"dataset": dataset | {"split": "none"}}) == ""
