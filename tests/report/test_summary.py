"""The sentences of a report have the right figures; what is warned of, and what a person should do."""

from typing import Any

import pytest

from bert4rec.report.summary import (
    advice,
    checks,
    heading,
    prior,
    protocols,
    result_line,
    rules,
    summary,
    trained_targets,
    verdict,
    warnings,
)
from tests.report.runs_by_hand import METRICS, PRIOR
from tests.report.runs_by_hand import SMALL_REPORT as REPORT


def of_test(value: float, protocol: str = "full") -> dict[str, Any]:
    return {protocol: {"users": 6040, "HR@10": value}}


TESTED = REPORT | {"test": of_test(0.3113), "popularity_baseline": of_test(0.0363)}
MORE = {
    "baselines": {"markov": of_test(0.2), "transition_graph": of_test(0.25)}, "best_possible": of_test(0.5),
    "strongest_baseline": {"kind": "markov", "metric": "NDCG@10"},
    "intervals": {"test": {"full": {"HR@10": [0.3, 0.322]}}},
}  # fmt: skip
SAMPLED = {name: of_test(0.5, "popular") for name in ("test", "popularity_baseline")}
RATINGS = {"ratings": {"pairs": 10_000, "RMSE": 0.874, "MAE": 0.67, "baseline_RMSE": 1.05, "means_RMSE": 0.9}}
BETTER_GRAPH = {
    "baselines": {
        "transition_graph": {"full": METRICS | {"HR@10": 0.375}},
        "markov": {"full": METRICS | {"NDCG@10": 0.1}},
    }
}
TRAINED = {"validation": {"users": 465, "of": 1024}, "test": {"users": 0, "of": 3003}}
BY_ITEM = {"seen_items": "by_item", "items_again": 12, "seen_missed": {"test": {"users": 7, "of": 1500}}}
REPEATED = REPORT | {
    "dataset": REPORT["dataset"] | {
        "n_eval_negatives": 100,
        "repeated_targets": {"validation": {"users": 1, "of": 4}, "test": {"users": 305, "of": 1500}},
    },
    "test": {"full": METRICS | {"users": 1500}, "uniform": METRICS | {"users": 1498}},
    "validation": {"full": METRICS | {"users": 4}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "figures"),
    [
        (summary(TESTED | MORE), ["311 of", "6,040", "40 items", "0.300", "0.322", "36 of", "200 of", "500 of"]),
        (summary(TESTED | SAMPLED), ["10 others", "500 of"]),
        (summary(TESTED | RATINGS), ["10,000", "0.8740", "1.0500"]),
        (summary({name: REPORT[name] for name in ("model", "dataset", "training")}), ["3.66 epochs", "1,200"]),
        (result_line(REPORT), ["HR@10 0.5000, NDCG@10 0.2500", "0.1250, 0.0625"]),
        (result_line(REPORT | BETTER_GRAPH), ["0.1250, 0.0625", "transition graph: 0.3750, 0.2500"]),
        (result_line(REPORT | RATINGS), ["RMSE 0.8740", "HR@10 0.5000"]),
        (heading(REPEATED, "test", "full"), ["305 of 1500", "(20.3 %)", "1500 users"]),
        (heading(REPEATED, "test", "uniform"), ["1498 of 1500", "left out: 2", "100 unseen items"]),
        (heading(REPEATED, "validation", "full"), ["1 of 4 targets (25.0 %)"]),
        (heading(REPEATED | {"seen_items": "keep"}, "test", "full"), ["1500 users"]),
        (heading(REPEATED | BY_ITEM, "test", "full"), ["12 of 40", "7 of 1500 targets", "1500 users"]),
        (rules(REPEATED), ["305 of 1500", "(20.3 %)", "1 of 4", "(25.0 %)"]),
        (prior({"prior": PRIOR}), ["0.0081", "0.0043", "0.0120", "0.1234", "transitions 0.771", "ease 12.1 and 0"]),
        (prior({"prior": PRIOR | {"difference": {"difference": 2e-3, "interval": [-1e-3, 5e-3], "p": 0.2}}}),
         ["0.0020", "-0.0010", "0.0050", "0.1234", "transitions 0.771"]),
        (prior({"prior": {"weights": PRIOR["weights"]}}), ["transitions 0.771"]),
        (trained_targets({"evaluation": {"trained_targets": TRAINED}}), ["0 of 3003", "465 of 1024"]),
    ],
)  # fmt: skip
def test_sentences_have_the_figures_of_the_report(text: str, figures: list[str]) -> None:
    assert [figure for figure in figures if figure not in text] == []


def test_what_there_is_nothing_to_say_of() -> None:
    dataset = REPORT["dataset"]
    assert rules({"dataset": dataset | {"split": "none"}}) == trained_targets(REPORT) == ""
    assert rules({"dataset": dataset | {"test_users": 9}}) != rules({"dataset": dataset}) != ""
    assert trained_targets(REPORT | {"evaluation": {"trained_targets": None}})
    assert prior(REPORT) == ""
    left_out = prior(REPORT | {"prior": {"weights": {}}})
    assert [left_out != "", "0." in left_out, "transitions" in left_out] == [True, False, False]
    found = {split: list(names) for split, names in protocols(REPEATED).items()}
    assert found == {"validation": ["full"], "test": ["full", "uniform"]}


TRAINING = {"epochs": 40, "steps": 400, "stopped_by": "n_epochs", "best_epoch": 40}
POPULARITY = {"kind": "popularity", "protocol": "full", "metric": "NDCG@10", "difference": 0.15, "interval": [0.1, 0.2]}


def checked_report(ndcg: float = 0.2, **changes: Any) -> dict[str, Any]:
    def figures(value: float) -> dict[str, Any]:
        return {"full": {"users": 100, "NDCG@10": value}}

    content = {
        "kind": "bert4rec", "model": "Bert4Rec", "dataset": {"fingerprint": "a" * 64}, "test": figures(ndcg),
        "popularity_baseline": figures(0.05), "strongest_baseline": POPULARITY,
        "baselines": {"markov": figures(0.19)}, "training": TRAINING,
    }  # fmt: skip
    return content | changes


def curve(*values: float) -> list[dict[str, Any]]:
    return [{"epoch": 2.0 * n, "full": {"users": 20, "NDCG@10": value}} for n, value in enumerate(values, 1)]


def markov(low: float, high: float) -> dict[str, Any]:
    return {"strongest_baseline": POPULARITY | {"kind": "markov", "difference": 0.01, "interval": [low, high]}}


def trained(**changes: Any) -> dict[str, Any]:
    return {"training": TRAINING | changes}


def started_by(letter: str) -> dict[str, Any]:
    return trained(init_from={"folder": "runs/x", "fingerprint": letter * 64})


FLAT = curve(0.10, 0.20, 0.201, 0.20)
RISING = curve(0.1, 0.15, 0.2, 0.25)
ERRORS = [{"epoch": n, "ratings": {"pairs": 50, "RMSE": value}} for n, value in enumerate((1.0, 0.9, 0.8, 0.7), 1)]


@pytest.mark.parametrize(
    ("name", "changes", "validations", "warns", "figures"),
    [
        ("still_improving", {}, FLAT, False, ["0.2010", "epoch 6 of 8"]),
        ("still_improving", {}, RISING, True, ["25.0 %", "0.2500 at epoch 8", "training.n_epochs"]),
        ("still_improving", trained(stopped_by="max_minutes"), RISING, True, ["25.0 %", "training.max_minutes"]),
        ("still_improving", trained(stopped_by="patience"), RISING, False, []),
        ("still_improving", {}, curve(0.1, 0.15, 0.2, 0.2011), False, []),
        ("still_improving", {}, ERRORS, True, ["RMSE", "14.3 %", "0.7000 at epoch 4"]),
        ("validation_falling", {}, FLAT, False, ["0.5 %"]),
        ("validation_falling", {}, curve(0.1, 0.2, 0.19, 0.19, 0.18, 0.17, 0.15), True,
         ["epoch 4", "from 0.2000 to 0.1500 at epoch 14", "25 %", "5 validations"]),
        ("validation_falling", {}, curve(0.1, 0.2, 0.19, 0.15), False, []),  # not for long
        ("validation_falling", {}, curve(0.1, 0.2, *[0.195] * 9), False, []),  # by a little
        ("below_baseline", {}, FLAT, False, ["0.2000", "0.0500", "+0.1500", "+0.1000 to +0.2000"]),
        ("below_baseline", markov(0.05, 0.2), [], False, ["Markov"]),
        ("below_baseline", markov(-0.01, 0.02), [], True, ["Markov"]),
        ("below_baseline", markov(-0.2, -0.1), [], True, ["Markov"]),
        ("few_steps", {}, FLAT, False, ["10 steps", "400"]),
        ("few_steps", trained(steps=100), [], True, ["2.5 steps", "100", "per_device_train_batch_size"]),
        ("test_selection", {}, FLAT, False, ["20 validation users", "epoch 40"]),
        ("test_selection", {}, ERRORS, False, ["50 held-out ratings"]),
        ("no_validation", {}, [], True, []),
        ("foreign_start", started_by("a"), FLAT, False, ["runs/x"]),
        ("foreign_start", started_by("b"), FLAT, True, ["runs/x"]),
    ],
)  # fmt: skip
def test_checks(name: str, changes: dict[str, Any], validations: Any, warns: bool, figures: list[str]) -> None:
    (check,) = (check for check in checks(checked_report(**changes), validations) if check.name == name)
    assert check.is_warning == warns
    assert [figure for figure in figures if figure not in check.text] == []


def test_nothing_is_warned_of_if_all_is_well_or_nothing_is_trained() -> None:
    assert warnings(checks(checked_report(), FLAT)) == []
    assert "test_selection" in {one["name"] for one in warnings(checks(checked_report(), FLAT, n_evaluated=2))}
    assert checks(checked_report(0.01, kind="popularity", model="popularity"), FLAT) == []


DUPLICATES = {"name": "duplicates", "text": "8 % of the rows repeat the row before", "is_damage": True}


def report(interval: tuple[float, float] | None, users: int = 200, findings: list[Any] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "model": "SASRec",
        "dataset": {"items": 40, "findings": findings or []},
        "test": {"full": {"users": users, "HR@10": 0.3, "NDCG@10": 0.2}},
        "baselines": {"markov": {"full": {"users": users, "HR@10": 0.2, "NDCG@10": 0.1}}},
    }
    if interval is not None:
        found["strongest_baseline"] = {
            "kind": "markov", "protocol": "full", "metric": "NDCG@10", "difference": sum(interval) / 2,
            "interval": interval,
        }  # fmt: skip
    return found


def damaged(interval: tuple[float, float], users: int, without: tuple[float, float] | None) -> dict[str, Any]:
    """A report of 1,000 test users with duplicates, and the comparison by the `users` whom they do not concern."""
    found = report(interval, 1000, [DUPLICATES]) | {"training": {"stopped_by": "patience"}, "kind": "sasrec"}
    measured: dict[str, Any] = {"users": users, "left_out": 1000 - users, "of": 1000}
    if without is not None:
        measured |= found["strongest_baseline"] | {"interval": without, "difference": sum(without) / 2}
        measured |= {"value": 0.0812, "value_of_all": 0.0811}
    return found | {"without": {"duplicates": measured}}


def with_ties(interval: tuple[float, float], n_untied: int) -> dict[str, Any]:
    """A report whose model is better on all users, and on the untied ones by the interval."""
    found = report((0.01, 0.03), users=1000)
    untied = found["strongest_baseline"] | {"interval": interval, "difference": sum(interval) / 2}
    return found | {"untied": {"users": n_untied, "tied": 1000 - n_untied, "of": 1000, **untied}}


def with_answers(interval: tuple[float, float], n: int, **dataset: Any) -> dict[str, Any]:
    """A report of 200 test targets; the items of `n` are in the input, all in the same visit."""
    found = report(interval, findings=[DUPLICATES])
    counts = {"targets": n, "in_visit": n, "since_last": 0, "of": 200}
    return found | {"answers_in_input": counts, "dataset": found["dataset"] | dataset}


@pytest.mark.parametrize(
    ("found", "kind", "figures"),
    [
        (report((0.01, 0.03)), "use", ["Markov", "0.020", "0.010 to 0.030"]),
        (report((-0.01, 0.03)), "equal", ["Markov", "-0.010 to +0.030"]),
        (report((-0.03, -0.01)), "worse", ["Markov", "0.020", "0.010 to 0.030"]),
        (report((0.01, 0.03), findings=[DUPLICATES]), "use", ["Markov", "8 %"]),
        (with_answers((0.01, 0.03), 100), "copies", ["100 of 200", "hide_before_target=visit"]),
        (with_answers((-0.01, 0.03), 150, hide_before_target="visit"), "copies", ["hide_before_target=last_target"]),
        (with_answers((0.01, 0.03), 99), "use", ["8 %"]),
        (report((0.01, 0.03), findings=[DUPLICATES | {"is_damage": False}]), "use", []),
        (report((0.01, 0.03), users=20), "few", ["20"]),
        (report(None), "alone", []),
        (with_ties((-0.04, -0.02), 700), "worse", ["0.030", "700", "300"]),
        (with_ties((-0.04, 0.02), 700), "equal", ["-0.010", "700", "300"]),
        (with_ties((0.02, 0.04), 100), "use", ["0.030", "100 ", "900"]),
        (with_ties((0.02, 0.04), 99), "tied", ["99 ", "901 of 1,000", "leave_last_basket"]),
        ({"model": "SASRec", "dataset": {"items": 40}}, "none", []),
        # Damage is told, and comes first only where it changes the verdict.
        (damaged((0.01, 0.03), 997, (0.01, 0.04)), "use", ["0.020", "8 %", "3 of 1,000", "0.0812"]),
        (damaged((0.01, 0.03), 1000, None), "use", ["0.020", "8 %"]),
        (damaged((0.01, 0.03), 600, (-0.01, 0.03)), "repair", ["0.020", "8 %", "0.0812", "-0.010 to +0.030"]),
        (damaged((0.01, 0.03), 60, (0.01, 0.03)), "repair", ["0.020", "8 %", "60 "]),
        (damaged((0.01, 0.03), 0, None), "repair", ["0.020", "8 %"]),
        (damaged((-0.03, -0.01), 997, (-0.03, -0.01)), "worse", ["0.020", "8 %", "0.0812"]),
        (damaged((-0.03, -0.01), 600, (0.01, 0.03)), "repair", ["0.020", "8 %", "+0.010 to +0.030"]),
    ],
)
def test_what_to_do(found: dict[str, Any], kind: str, figures: list[str]) -> None:
    result = verdict(found)
    assert result.kind == kind
    assert bool(result.baseline) == (kind in ("equal", "worse"))
    assert [figure for figure in figures if figure not in result.text] == []


@pytest.mark.parametrize(
    ("hits", "training", "helps"),
    [
        (0.3, {}, "longer"),
        (0.3, {"stopped_by": "n_epochs", "epochs": 40, "best_epoch": 40, "steps": 9_000}, "longer"),
        (0.3, {"stopped_by": "n_epochs", "epochs": 40, "best_epoch": 9, "steps": 900}, "longer"),  # it may still begin
        (0.3, {"stopped_by": "n_epochs", "epochs": 40, "best_epoch": 9, "steps": 9_000}, "other"),
        (0.3, {"stopped_by": "max_minutes", "epochs": 40, "best_epoch": 38, "steps": 9_000}, "longer"),
        (0.3, {"stopped_by": "patience", "epochs": 40, "best_epoch": 30, "steps": 900}, "other"),
        (0.3, {"stopped_by": "max_minutes", "epochs": 20, "best_epoch": 6, "steps": 400, "falls": True}, "other"),
        (1.0, {"stopped_by": "n_epochs", "epochs": 40, "best_epoch": 40, "steps": 900}, ""),
    ],
)
def test_longer_training_is_advised_only_where_it_may_help(hits: float, training: dict[str, Any], helps: str) -> None:
    falling = [{"name": "validation_falling", "text": ""}] if training.get("falls") else []
    found = report((-0.01, 0.03)) | {"training": training, "kind": "sasrec", "warnings": falling}
    found["test"]["full"]["HR@10"] = hits
    text = verdict(found).text
    assert advice(found) == helps
    assert ["Train longer" in text, "another model" in text] == [helps == "longer", helps == "other"]
