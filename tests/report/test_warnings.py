"""What is warned of, and what is not: each sentence with the figures that were observed."""

from typing import Any

import pytest

from bert4rec.report.warnings import Check, checks, warnings

TRAINING = {"epochs": 40, "steps": 400, "stopped_by": "n_epochs", "best_epoch": 40}


def report(ndcg: float = 0.2, **changes: Any) -> dict[str, Any]:
    def figures(value: float) -> dict[str, Any]:
        return {"full": {"users": 100, "NDCG@10": value}}

    content = {
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


def test_nothing_is_warned_of_where_all_is_well() -> None:
    looked_at = checks(report(), FLAT)
    assert warnings(looked_at) == []
    assert [check.text for check in looked_at] == [
        "It had stopped improving: the best validation NDCG@10, 0.2010 at epoch 6 of 8, is 0.0 % better than that "
        "of the first three quarters of the training.",
        "Validation NDCG@10 ended 0.5 % from its best: it did not get worse for long.",
        "Bert4Rec is better than popularity, the strongest baseline without training: test NDCG@10 0.2000 against "
        "0.0500, difference +0.1500 (+0.1000 to +0.2000, 95 % confidence, the same users).",
        "An epoch has 10 steps, the training had 400 in all.",
        "The weights were chosen by 20 validation users alone: those of epoch 40.",
    ]


@pytest.mark.parametrize(
    ("stopped_by", "last", "warns"),
    [("n_epochs", 0.25, True), ("max_minutes", 0.25, True), ("patience", 0.25, False), ("n_epochs", 0.2011, False)],
)
def test_still_improving(stopped_by: str, last: float, warns: bool) -> None:
    content = report(training=TRAINING | {"stopped_by": stopped_by})
    check = found("still_improving", content, curve(0.1, 0.15, 0.2, last))
    assert check.is_warning == warns
    if warns:
        assert check.text == (
            "It was still improving when it ended: validation NDCG@10 got better by 25.0 % in the last quarter of the "
            f"training, to 0.2500 at epoch 8. training.{stopped_by} has stopped it; more of that gives a better model."
        )


def test_validation_that_falls_for_long() -> None:
    check = found("validation_falling", report(), curve(0.1, 0.2, 0.19, 0.19, 0.18, 0.17, 0.15))
    assert check == (
        "validation_falling",
        "Validation NDCG@10 has been getting worse since epoch 4: from 0.2000 to 0.1500 at epoch 14, by 25 %, over 5 "
        "validations. The weights of epoch 4 are the ones tested; what came after was in vain.",
        True,
    )
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
    """Whatever the intervals of the two alone: the difference of the same users decides."""
    baselines = {"markov": {"full": {"users": 100, "NDCG@10": 0.19}}}
    comparison = {"kind": "markov", "protocol": "full", "metric": "NDCG@10", "difference": 0.01, "interval": interval}
    check = found("below_baseline", report(baselines=baselines, strongest_baseline=comparison), [])
    assert check.is_warning == warns
    assert verdict in check.text
    assert ("--model.kind=markov" in check.text) == warns


def test_too_few_steps() -> None:
    check = found("few_steps", report(training=TRAINING | {"steps": 100}), [])
    assert check.is_warning
    assert check.text.startswith("An epoch has only 2.5 steps, the training had 100 in all: the batch is too large")


def test_the_test_has_no_say_in_what_is_selected() -> None:
    assert found("no_validation", report(), []).is_warning
    check = found("test_selection", report(), FLAT, n_evaluated=2)
    assert check.is_warning
    assert check.text.startswith("The test was run for 2 other checkpoints of this run besides: whoever takes the best")


@pytest.mark.parametrize(("letter", "warns"), [("a", False), ("b", True)])
def test_weights_that_may_know_the_test(letter: str, warns: bool) -> None:
    origin = {"init_from": {"folder": "runs/x", "fingerprint": letter * 64}}
    check = found("foreign_start", report(training=TRAINING | origin), FLAT)
    assert check.is_warning == warns
    assert check.text.startswith("It began with the weights of runs/x, which were trained on ")


def test_a_report_of_a_model_without_training() -> None:
    assert checks(report(0.01, kind="popularity", model="popularity"), FLAT) == []


def test_ratings_are_judged_by_their_error() -> None:
    records = [{"epoch": n, "ratings": {"pairs": 50, "RMSE": value}} for n, value in enumerate((1.0, 0.9, 0.8, 0.7), 1)]
    check = found("still_improving", report(), records)
    assert check.is_warning
    assert (
        "validation RMSE got better by 14.3 % in the last quarter of the training, to 0.7000 at epoch 4." in check.text
    )
    assert "chosen by 50 held-out ratings alone" in found("test_selection", report(), records).text
