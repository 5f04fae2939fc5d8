"""Data checks: real days pass, each bad day is stopped by its name, and a week is needed to call a day unusual."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.update.checks import (
    FEWEST_EARLIER,
    N_EARLIER,
    Problem,
    after_training,
    before_training,
    list_figures,
)
from bert4rec.update.gate import PairedLoss

DAY, HOUR = 86_400, 3_600
BETTER = PairedLoss(500, 500, 0.05, 0.1, 0.05, 0.03, 0.07, 0.001, 0.02)


def update(n: int = 0, *, size: int = 1_300, **changes: Any) -> dict[str, Any]:
    """Return the line of day `n` of a shop whose Sundays are slow; `changes` of its groups, by their names."""
    is_sunday = n % 7 == 6
    n_rows = (size // 2 if is_sunday else size) + 37 * (n % 3)
    line = {
        "rows": {"read": n_rows, "new": n_rows, "known": 0, "late": n % 5, "bad": 0, "future": 0},
        "day": [n * DAY + 8 * HOUR, n * DAY + (15 if is_sunday else 18) * HOUR],
        "last": (n - 1) * DAY + 18 * HOUR,
        "users": {"day": n_rows // 22, "new": n_rows // 100, "largest": 0.08 + 0.02 * (n % 4)},
        "items": {"day": 700, "new": 7 + n % 9},
        "score": {"order": {"markov": 0.18 + 0.01 * (n % 5), "popularity": 0.03}},
        "lists": {"users": 300, "coverage": 0.25, "overlap": 0.9 + 0.01 * (n % 5), "sameness": 0.04},
        "decision": "blessed",
    }
    return {**line, **{name: {**line[name], **group} if isinstance(group, Mapping) else group
                       for name, group in changes.items()}}  # fmt: skip


EARLIER = [update(n) for n in range(40)]
BAD = {
    "repeats": {"rows": {"known": 1374, "new": 0, "read": 1374}},
    "rows": {"rows": {"read": 200, "new": 200}, "users": {"day": 9, "new": 2}},
    "rows a user": {"rows": {"read": 690, "new": 690}, "users": {"day": 60, "new": 13}},
    "hours": {"day": [40 * DAY + 8 * HOUR, 40 * DAY + 12 * HOUR]},
    "gap": {"last": 28 * DAY},
    "future": {"rows": {"future": 1300}},
    "late": {"rows": {"late": 1200}},
    "unknown users": {"users": {"new": 50}},
    "unknown items": {"items": {"new": 600}},
    "one user": {"users": {"largest": 0.5}},
    "order": {"score": {"order": {"markov": 0.02, "popularity": 0.03}}},
}


def names(problems: list[Problem]) -> list[str]:
    return [problem.name for problem in problems]


def of_training(line: dict[str, Any], earlier: list[dict[str, Any]], **changes: Any) -> list[Problem]:
    return after_training(line, earlier, **{"is_finite": True, "above_popularity": BETTER, **changes})


def test_days_of_a_shop_pass() -> None:
    for n, line in enumerate(EARLIER):
        assert before_training(line, EARLIER[:n]) == []
        assert of_training(line, EARLIER[:n]) == []


@pytest.mark.parametrize("name", BAD)
def test_bad_day_is_stopped_by_one_sentence(name: str) -> None:
    (problem,) = before_training(update(40, **BAD[name]), EARLIER)
    assert problem.name == name
    assert "\n" not in problem.text


@pytest.mark.parametrize("name", BAD)
def test_first_days_are_stopped_for_what_is_certainly_wrong_alone(name: str) -> None:
    for n_earlier in range(FEWEST_EARLIER):
        found = before_training(update(40, **BAD[name]), EARLIER[:n_earlier])
        assert names(found) == ([name] if name in ("repeats", "future") else [])
        assert all(problem.is_certain for problem in found)
    assert names(before_training(update(40, **BAD[name]), EARLIER[:FEWEST_EARLIER])) == [name]


def test_days_without_new_rows_all_late_or_of_unknown_items_are_wrong_on_the_first_day() -> None:
    assert names(before_training(update(rows={"read": 0, "new": 0}), [])) == ["rows"]
    assert names(before_training(update(rows={"read": 1000, "new": 1000, "late": 1000}), [])) == ["late"]
    assert names(before_training(update(items={"new": 700}), [])) == ["unknown items"]


def test_certain_problem_comes_alone() -> None:
    line = update(40, **(BAD["one user"] | BAD["order"] | BAD["future"]))
    assert names(before_training(line, EARLIER)) == ["future"]
    assert names(before_training(update(40, **(BAD["one user"] | BAD["order"])), EARLIER)) == ["one user", "order"]


def test_few_wrong_clocks_are_no_problem() -> None:
    assert before_training(update(40, rows={"future": 13}), EARLIER) == []
    assert names(before_training(update(40, rows={"future": 14}), EARLIER)) == ["future"]


def test_ten_times_the_rows_of_the_best_day_are_too_many() -> None:
    most = max(line["rows"]["new"] for line in EARLIER[-N_EARLIER:])
    for n_rows, expected in ((10 * most, []), (10 * most + 1, ["rows"])):
        line = update(40, rows={"read": n_rows, "new": n_rows}, users={"day": n_rows // 22, "new": 20})
        assert names(before_training(line, EARLIER)) == expected


def test_what_came_before_is_usual_unless_a_check_has_stopped_it() -> None:
    bad = update(40, **BAD["one user"])
    stopped = [*EARLIER, *[bad | {"decision": "stopped"}] * 3]
    assert names(before_training(bad, stopped)) == ["one user"]
    assert before_training(bad, [*EARLIER, bad]) == []  # it was accepted
    assert names(before_training(bad, [bad, *EARLIER])) == ["one user"]  # too old


def test_log_without_order_is_not_asked_for_it() -> None:
    unordered = [update(n, score={"order": {"markov": 0.03 - 0.01 * (n % 2), "popularity": 0.025}}) for n in range(40)]
    assert before_training(update(40, **BAD["order"]), unordered) == []


def test_numbers_that_an_update_does_not_have_are_not_checked() -> None:
    line = update(40, **BAD["order"])
    del line["score"]
    assert before_training(line, EARLIER) == []
    bare = [{"rows": {"read": 1000 + n, "new": 1000 + n}} for n in range(30)]
    assert before_training(bare[-1], bare[:-1]) == []
    assert names(before_training(update(40, **BAD["one user"]), bare)) == []


def test_shares_of_a_few_rows_say_little() -> None:
    small = [update(n, size=40) for n in range(30)]
    day = update(30, size=10, users={"day": 2, "new": 2, "largest": 0.9}, items={"day": 5, "new": 5})
    assert before_training(day, small) == []


def test_wrong_models_are_certain_on_the_first_day() -> None:
    below = PairedLoss(500, 500, 0.05, 0.03, -0.02, -0.03, -0.01, 0.001, 0.01)
    unclear = PairedLoss(50, 50, 0.05, 0.03, -0.02, -0.06, 0.04, 0.001, 0.05)
    for found, name in (
        (of_training(update(), [], is_finite=False, above_popularity=below), "finite"),
        (of_training(update(), [], above_popularity=below), "popularity"),
        (of_training(update(lists={"sameness": 0.95}), []), "sameness"),
    ):
        assert [(problem.name, problem.is_certain) for problem in found] == [(name, True)]
    assert of_training(update(), [], above_popularity=unclear) == []
    assert of_training(update(lists={"users": 20, "sameness": 1.0}), []) == []


@pytest.mark.parametrize("lists", [{"coverage": 0.1}, {"overlap": 0.3}, {"sameness": 0.6}], ids=str)
def test_unusual_lists_are_found_from_a_week_on(lists: dict[str, float]) -> None:
    (problem,) = of_training(update(40, lists=lists), EARLIER)
    assert (problem.name, problem.is_certain) == (*lists, False)
    assert of_training(update(40, lists=lists), EARLIER[: FEWEST_EARLIER - 1]) == []


def test_list_figures_by_hand() -> None:
    lists = np.array([[3, 1, 2], [3, 1, 2], [1, 3, 2], [5, -1, -1]])
    previous = np.array([[1, 2, 3], [3, 4, 5], [6, 7, 8], [5, 6, -1]])
    figures = list_figures(lists, previous, 10)
    assert figures == {
        "users": 4,
        "coverage": 0.4,
        "overlap": pytest.approx((1 + 1 / 3 + 0 + 0.5) / 4),
        "sameness": 0.5,
    }
    assert list_figures(lists[:0], previous[:0], 10)["users"] == 0
    assert list_figures(lists, np.full((4, 3), -1), 10)["overlap"] == 0


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(100, 5000), st.integers(1, 99), st.floats(0, 1)), min_size=7, max_size=30),
    st.integers(0, 10**6),
)
def test_a_day_like_an_earlier_one_is_never_unusual(days: list[tuple[int, int, float]], pick: int) -> None:
    lines = [update(n, rows={"read": rows, "new": rows}, users={"day": users, "new": users // 2, "largest": share})
             for n, (rows, users, share) in enumerate(days)]  # fmt: skip
    assert before_training(lines[-N_EARLIER:][pick % min(N_EARLIER, len(lines))], lines) == []
