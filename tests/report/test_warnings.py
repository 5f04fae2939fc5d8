"""What is warned of and what is not, with the figures that were observed."""

from typing import Any

import pytest

from bert4rec.report.warnings import Check, checks, warnings

TRAINING = {"epochs": 40, "steps": 400, "stopped_by": "n_epochs", "best_epoch": 40}


def report(ndcg: float = 0.2, **changes: Any) -> dict[str, Any]:
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
    passed = {check.name: check.text for check in checks(report(), FLAT)}
    assert warnings(checks(report(), FLAT)) == []
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
    content = report(training=TRAINING | {"stopped_by": stopped_by})
    check = found("still_improving", content, curve(0.1, 0.15, 0.2, last))
    assert check.is_warning == warns
    if warns:
        assert_warns(check, "25.0 %", "0.2500 at epoch 8", f"training.{stopped_by}")


def test_validation_that_falls_for_long() -> None:
    check = found("validation_falling", report(), curve(0.1, 0.2, 0.19, 0.19, 0.18, 0.17, 0.15))
    assert_warns(check, "epoch 4", "from 0.2000 to 0.1500 at epoch 14", "25 %", "5 validations")
    assert not found("validation_falling", report(), curve(0.1, 0.2, 0.19, 0.15)).is_warning  # not for long
    assert not found("validation_falling", report(), curve(0.1, 0.2, *[0.195] * 9)).is_warning  # by a little


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
    check = found("below_baseline", report(baselines=baselines, strongest_baseline=comparison), [])
    assert check.is_warning == warns
    assert verdict in check.text
    assert ("--model.kind=markov" in check.text) == warns


def test_the_test_has_no_say_in_what_is_selected() -> None:
    assert found("no_validation", report(), []).is_warning
    assert_warns(found("test_selection", report(), FLAT, n_evaluated=2), "2 other checkpoints")
    assert checks(report(0.01, kind="popularity", model="popularity"), FLAT) == []  # nothing is trained
    few = report(training=TRAINING | {"steps": 100})
    assert_warns(found("few_steps", few, []), "2.5 steps", "100", "per_device_train_batch_size")


@pytest.mark.parametrize(("letter", "warns"), [("a", False), ("b", True)])
def test_weights_that_may_know_the_test(letter: str, warns: bool) -> None:
    origin = {"init_from": {"folder": "runs/x", "fingerprint": letter * 64}}
    check = found("foreign_start", report(training=TRAINING | origin), FLAT)
    assert check.is_warning == warns
    assert "runs/x" in check.text


def test_ratings_are_judged_by_their_error() -> None:
    records = [{"epoch": n, "ratings": {"pairs": 50, "RMSE": value}} for n, value in enumerate((1.0, 0.9, 0.8, 0.7), 1)]
    assert_warns(found("still_improving", report(), records), "RMSE", "14.3 %", "0.7000 at epoch 4")
    assert "50 held-out ratings" in found("test_selection", report(), records).text
