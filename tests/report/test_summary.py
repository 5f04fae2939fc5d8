"""The sentences of a report have the right figures; what is warned of and what is not."""

from typing import Any

import pytest

from bert4rec.report.summary import (
    Check,
    checks,
    heading,
    protocols,
    result_line,
    rules,
    summary,
    trained_targets,
    warnings,
)
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
    model, baselines, best = summary(report(**more)).split(". ")
    assert [figure in model for figure in ("311 of 1,000", "6,040", "40 items", "0.300", "0.322")] == [True] * 5
    assert [words in baselines for words in ("for 36 of 1,000", "(Markov) for 200 of 1,000")] == [True] * 2
    assert "500 of 1,000" in best


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
    assert rules({"dataset": dataset}).startswith("Test: the last item of each user; ")
    assert rules({"dataset": dataset | {"test_users": 9}}).startswith("Test: the last item of a sample of the users; ")


TRAINING = {"epochs": 40, "steps": 400, "stopped_by": "n_epochs", "best_epoch": 40}


def checked_report(ndcg: float = 0.2, **changes: Any) -> dict[str, Any]:
    def figures(value: float) -> dict[str, Any]:
        return {"full": {"users": 100, "NDCG@10": value}}

    content = {
        "kind": "bert4rec",
        "model": "Bert4Rec",
        "dataset": {"fingerprint": "a" * 64},
        "test": figures(ndcg),
        "popularity_baseline": figures(0.05),
        "strongest_baseline": {
            "kind": "popularity", "protocol": "full", "metric": "NDCG@10", "difference": 0.15, "interval": [0.1, 0.2],
        },
        "training": TRAINING,
    }  # fmt: skip
    return content | changes


def curve(*values: float) -> list[dict[str, Any]]:
    return [{"epoch": 2.0 * n, "full": {"users": 20, "NDCG@10": value}} for n, value in enumerate(values, 1)]


FLAT = curve(0.10, 0.20, 0.201, 0.20)


def found(name: str, *arguments: Any, **keywords: Any) -> Check:
    (check,) = [check for check in checks(*arguments, **keywords) if check.name == name]
    return check


def assert_warns(check: Check, *figures: str) -> None:
    assert check.is_warning
    assert [figure for figure in figures if figure not in check.text] == []


def test_no_warning_if_all_is_well() -> None:
    passed = {check.name: check.text for check in checks(checked_report(), FLAT)}
    assert warnings(checks(checked_report(), FLAT)) == []
    for name, figures in {
        "still_improving": ["NDCG@10", "0.2010", "epoch 6 of 8"],
        "validation_falling": ["0.5 %"],
        "below_baseline": ["popularity", "0.2000", "0.0500", "+0.1500", "+0.1000 to +0.2000"],
        "few_steps": ["10 steps", "400"],
        "test_selection": ["20 validation users", "epoch 40"],
    }.items():
        assert [figure for figure in figures if figure not in passed[name]] == []


@pytest.mark.parametrize(
    ("stopped_by", "last", "warns"),
    [("n_epochs", 0.25, True), ("max_minutes", 0.25, True), ("patience", 0.25, False), ("n_epochs", 0.2011, False)],
)
def test_still_improving(stopped_by: str, last: float, warns: bool) -> None:
    content = checked_report(training=TRAINING | {"stopped_by": stopped_by})
    check = found("still_improving", content, curve(0.1, 0.15, 0.2, last))
    assert check.is_warning == warns
    if warns:
        assert_warns(check, "25.0 %", "0.2500 at epoch 8", f"training.{stopped_by}")


def test_validation_that_falls_for_long() -> None:
    check = found("validation_falling", checked_report(), curve(0.1, 0.2, 0.19, 0.19, 0.18, 0.17, 0.15))
    assert_warns(check, "epoch 4", "from 0.2000 to 0.1500 at epoch 14", "25 %", "5 validations")
    assert not found("validation_falling", checked_report(), curve(0.1, 0.2, 0.19, 0.15)).is_warning  # not for long
    assert not found("validation_falling", checked_report(), curve(0.1, 0.2, *[0.195] * 9)).is_warning  # by a little


@pytest.mark.parametrize(
    ("interval", "verdict", "warns"),
    [
        ([0.05, 0.2], "is better than Markov", False),
        ([-0.01, 0.02], "is not clearly better than Markov", True),
        ([-0.2, -0.1], "is worse than Markov", True),
    ],
)
def test_the_strongest_baseline_is_compared_user_by_user(interval: list[float], verdict: str, warns: bool) -> None:
    baselines = {"markov": {"full": {"users": 100, "NDCG@10": 0.19}}}
    comparison = {"kind": "markov", "protocol": "full", "metric": "NDCG@10", "difference": 0.01, "interval": interval}
    check = found("below_baseline", checked_report(baselines=baselines, strongest_baseline=comparison), [])
    assert check.is_warning == warns
    assert verdict in check.text
    assert ("Train longer" in check.text) == warns


def test_the_test_has_no_say_in_what_is_selected() -> None:
    assert found("no_validation", checked_report(), []).is_warning
    assert_warns(found("test_selection", checked_report(), FLAT, n_evaluated=2), "2 other checkpoints")
    assert checks(checked_report(0.01, kind="popularity", model="popularity"), FLAT) == []  # nothing is trained
    few = checked_report(training=TRAINING | {"steps": 100})
    assert_warns(found("few_steps", few, []), "2.5 steps", "100", "per_device_train_batch_size")


@pytest.mark.parametrize(("letter", "warns"), [("a", False), ("b", True)])
def test_weights_that_may_know_the_test(letter: str, warns: bool) -> None:
    origin = {"init_from": {"folder": "runs/x", "fingerprint": letter * 64}}
    check = found("foreign_start", checked_report(training=TRAINING | origin), FLAT)
    assert check.is_warning == warns
    assert "runs/x" in check.text


def test_ratings_are_judged_by_their_error() -> None:
    records = [{"epoch": n, "ratings": {"pairs": 50, "RMSE": value}} for n, value in enumerate((1.0, 0.9, 0.8, 0.7), 1)]
    assert_warns(found("still_improving", checked_report(), records), "RMSE", "14.3 %", "0.7000 at epoch 4")
    assert "50 held-out ratings" in found("test_selection", checked_report(), records).text


def test_targets_that_were_trained_on_are_told_where_they_are_known() -> None:
    counts = {"validation": {"users": 465, "of": 1024}, "test": {"users": 0, "of": 3003}}
    text = trained_targets(REPORT | {"evaluation": {"trained_targets": counts}})
    assert "0 of 3003 test targets (0.0 %), 465 of 1024 validation targets (45.4 %)" in text
    assert "--data.extends=" in text
    clean = {split: count | {"users": 0} for split, count in counts.items()}
    assert "--data.extends=" not in trained_targets(REPORT | {"evaluation": {"trained_targets": clean}})
    assert "may have" in trained_targets(REPORT | {"evaluation": {"trained_targets": None}})
    assert trained_targets(REPORT) == trained_targets(REPORT | {"evaluation": {}}) == ""
