"""What is counted of a log: equal to a count by hand of the same rows; and what is told of it."""

from collections import Counter, defaultdict
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.dataset.findings import findings
from bert4rec.prepare.survey import LogSurvey
from bert4rec.sources.times import DAY
from tests.preparation import metadata_of, prepared, small_tasks

N_ITEMS = 6
Rows = list[tuple[int, int]]

histories = st.lists(
    st.lists(st.tuples(st.integers(0, N_ITEMS - 1), st.integers(0, 4)), min_size=1, max_size=9), min_size=1, max_size=6
)


def survey_of(users: list[Rows], *, parts: int = 1, span: tuple[int, int] | None = None) -> dict[str, Any]:
    survey = LogSurvey(N_ITEMS, has_times=True)
    for part in range(parts):
        own = users[part::parts]
        items, times = ([[row[place] for row in rows] for rows in own] for place in (0, 1))
        lists = {"items": pl.Series(items, dtype=pl.List(pl.Int32)), "times": pl.Series(times, dtype=pl.List(pl.Int64))}
        last = [len(rows) - 1 for rows in own]
        survey.add(pl.DataFrame({**lists, "at_test": pl.Series(last, dtype=pl.Int64)}))
    all_times = [time for rows in users for _, time in rows]
    lengths = np.array([len(rows) for rows in users])
    counts = np.bincount([item for rows in users for item, _ in rows], minlength=N_ITEMS)
    return survey.result(lengths, counts, span or (min(all_times), max(all_times)), {})


@settings(deadline=None)
@given(histories, st.integers(1, 3))
def test_counts_are_those_by_hand_in_any_parts(users: list[Rows], parts: int) -> None:
    users = [sorted(rows, key=lambda row: row[1]) for rows in users]
    pairs = [pair for rows in users for pair in pairwise(rows)]
    counts = Counter(item for rows in users for item, _ in rows)
    times = defaultdict(list)
    for rows in users:
        for item, time in rows:
            times[item].append(time)
    found = survey_of(users, parts=parts)
    recent = found["recent_from"]
    last_pairs = [rows[-2:] for rows in users if len(rows) > 1]
    assert (
        found
        | {
            "repeats_in_a_row": sum(a[0] == b[0] for a, b in pairs),
            "duplicates": sum(a == b for a, b in pairs),
            "tied": sum(a[1] == b[1] for a, b in pairs),
            "tied_targets": {"users": sum(a[1] == b[1] for a, b in last_pairs), "of": len(users)},
            "rare_items": sum(n < 5 for n in counts.values()),
            "items_with_rows": len(counts),
            "gone_items": sum(max(instants) < recent for instants in times.values()),
            "new_items": sum(min(instants) >= recent for instants in times.values()),
            "has_dates_only": not any(time for rows in users for _, time in rows),
        }
        == found
    )


def seconds(*date: int) -> int:
    return int(datetime(*date, tzinfo=UTC).timestamp())  # type: ignore[misc]


def test_an_item_of_the_summer_is_seasonal() -> None:
    summer = [(0, seconds(year, 7, day)) for year in (2024, 2025) for day in range(1, 16)]
    always = [(1, seconds(2024, month, day)) for month in range(1, 13) for day in (1, 9)]
    rows = sorted(summer + always, key=lambda row: row[1])
    assert survey_of([rows])["seasonal_items"] == 1
    assert survey_of([rows], span=(0, DAY))["seasonal_items"] == 0  # less than a year tells no season


def test_a_user_with_far_more_rows_is_told() -> None:
    found = survey_of([[(0, 1)] * 5] * 50 + [[(1, time) for time in range(2000)]])
    assert found["heavy_users"] == {"users": 1, "rows": 2000, "limit": 1000}
    assert survey_of([[(0, 1)] * 5] * 50)["heavy_users"] == {}


NOTHING = {
    "repeats_in_a_row": 0, "duplicates": 0, "has_dates_only": False, "heavy_users": {}, "rare_items": 0,
    "recent_from": 0, "gone_items": 0, "new_items": 0, "seasonal_items": 0, "events": {}, "sessions": [],
    "tied": 0, "tied_targets": {"users": 0, "of": 100}, "order_options": [], "items_with_rows": 16,
}  # fmt: skip
ABOUT = {
    "rows": 1000, "items": 400, "source": "table", "has_times": True, "preprocessing": {"split": "leave_one_out"},
    "order": {"by": "time", "column": "at", "newest_first": False},
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "name", "option"),
    [
        ({"duplicates": 100, "repeats_in_a_row": 100}, "duplicates", "--preprocessing.repeats="),
        ({"repeats_in_a_row": 100}, "repeats", "--preprocessing.repeats="), ({"has_dates_only": True}, "times", ""),
        ({"heavy_users": {"users": 1, "rows": 50, "limit": 40}}, "heavy users", ".max_user_interactions=40"),
        ({"rare_items": 200}, "rare items", "--min-item-interactions=5"),
        ({"gone_items": 12}, "gone items", "--allow="),
        ({"gone_items": 12}, "gone items", "75 % of "),  # of the items with rows
        ({"new_items": 9}, "new items", "bert4rec extend"), ({"seasonal_items": 9}, "season", "--model.times=history"),
        ({"shift": {"since": 0, "popular": [0.4, 0.1]}}, "shift", "--model.times=history"),
        ({"events": {"kind": {"view": 0.5, "buy": 0.5}}}, "events", ""),
        ({"sessions": ["visit"]}, "sessions", "--user=visit"),
        ({"tied": 100}, "ties", "--preprocessing.ties=shuffle"), ({"unordered": {"line": 1}}, "no order", ""),
        ({"tied_targets": {"users": 30, "of": 100}}, "ties", "--preprocessing.split=leave_last_basket"),
        ({"tied": 100, "order_options": ["--order=line"]}, "ties", "--order=line"),
    ],
)  # fmt: skip
def test_each_is_told_with_its_option(changes: dict[str, Any], name: str, option: str) -> None:
    assert findings(ABOUT | {"log": NOTHING}) == []
    (found,) = findings(ABOUT | {"log": NOTHING | changes})
    assert found.name == name
    assert option in found.text
    assert found.is_damage == (name in ("duplicates", "heavy users"))


def test_generated_data_have_nothing_to_tell() -> None:
    assert findings({"rows": 100, "items": 20}) == []


def test_a_user_with_a_tenth_of_all_rows_is_named_whose_range_is_larger_than_others(tmp_path: Path) -> None:
    users = ["robot"] * 400 + [f"u{n % 600}" for n in range(1800)]
    items = [f"i{(n * 7) % 90}" for n in range(len(users))]
    table = pl.DataFrame({"user": users, "item": items, "time": [1_700_000_000 + n for n in range(len(users))]})
    with small_tasks(100):
        metadata = metadata_of(prepared(tmp_path, table=table))
    assert metadata["log"]["largest_user"] == {"user": "robot", "rows": 400, "others_at_most": 3}
    assert any("robot" in str(finding) for finding in findings(metadata))
