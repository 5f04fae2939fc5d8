"""The verdict: what a person should do, by the paired difference, the number of test users, and the data."""

from typing import Any

import pytest

from bert4rec.report.summary import advice, verdict

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
    """A report of 200 test targets, of which the items of `n` are in the input, all in the same visit."""
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
@pytest.mark.parametrize("interval", [(-0.01, 0.03), (-0.03, -0.01)])
def test_longer_training_is_advised_only_where_it_may_help(
    hits: float, training: dict[str, Any], helps: str, interval: tuple[float, float]
) -> None:
    falling = [{"name": "validation_falling", "text": ""}] if training.get("falls") else []
    found = report(interval) | {"training": training, "kind": "sasrec", "warnings": falling}
    found["test"]["full"]["HR@10"] = hits
    text = verdict(found).text
    assert advice(found) == helps
    assert ["Train longer" in text, "another model" in text] == [helps == "longer", helps == "other"]
