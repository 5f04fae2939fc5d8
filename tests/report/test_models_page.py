"""The page of a models folder: what is shown for given lines of updates, aliases and versions."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert4rec.report.models_page import write_models_page
from bert4rec.report.update_charts import days_of, scores, update_charts
from tests.conftest import spare
from tests.report.runs_by_hand import HOSTILE
from tests.report.test_html_page import Reader

FIRST = datetime(2025, 10, 20, tzinfo=UTC)


def update_of(number: int, decision: str = "blessed", **changes: Any) -> dict[str, Any]:
    """Return the line of the update in the night after the day of that number."""
    start = FIRST + timedelta(days=number)
    name = (start + timedelta(days=1, hours=3)).strftime("%Y-%m-%dT%H-%M-%S")
    line = {
        "time": name, "began": "", "seconds": {"append": 6.0, "score": 24.0, "train": 540.0, "gate": 30.0},
        "input": {"name": f"day-{number}.parquet", "sha256": "ab"},
        "day": [int(start.timestamp()) + 60, int(start.timestamp()) + 86_000],
        "rows": {"read": 1300, "new": 1234, "known": 7, "late": 5, "bad": 3, "future": 0},
        "users": {"day": 400, "new": 30}, "items": {"day": 200, "new": 4},
        "score": {
            "users": 400, "NDCG@10": 0.12, "HR@10": 0.2, "popularity": {"NDCG@10": 0.04},
            "baseline": {"kind": "markov", "NDCG@10": 0.1}, "known_items": {"users": 370, "NDCG@10": 0.125},
            "new_users": {"users": 30, "NDCG@10": 0.05}, "new_items": {"targets": 9},
        },
        "gate": {
            "users": 390, "champion": 0.12, "challenger": 0.1215, "difference": 0.0015, "low": -0.001, "high": 0.005,
            "margin": 0.0024, "least": 0.02, "pooled": None, "new_items": {"targets": 9, "NDCG@10": 0.02},
        },
        "decision": decision, "taken": decision in ("blessed", "cannot tell"), "reasons": ["The reason."],
        "version": name, "shift": 0.21, "lengths": {"median": 12, "mean": 20.5},
    }  # fmt: skip
    if decision == "stopped":
        line |= dict.fromkeys(("score", "gate", "shift", "lengths", "version"))
        line["seconds"] = {"append": 3.0}
    return line | changes


def version_of(update: dict[str, Any], **changes: Any) -> dict[str, Any]:
    version = {"time": update["version"], "parent": "2025-10-01T00-00-00", "rows": 5000, "users": 900, "items": 300}
    return version | {"last_time": update["day"][1], "fingerprint": "f", "decision": update["decision"]} | changes


def page_of(folder: Path, *arguments: Any) -> str:
    """Write the page, check its form, and return its text."""
    path = write_models_page(folder, *arguments)
    assert path == folder / "index.html"
    page, source = Reader(path), path.read_text()
    assert {"script", "img", "link", "iframe"}.isdisjoint(page.tags)
    assert all(link.startswith("#") for link in page.links)
    assert "url(http" not in source
    assert {link[1:] for link in page.links} <= {*page.ids}
    assert len(page.ids) == len(set(page.ids))
    return " ".join(page.texts)


@pytest.fixture
def without_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages without charts, which take most of the time."""
    spare(monkeypatch)


def test_one_update_shows_the_state_the_scores_the_reasons_and_the_way_back(tmp_path: Path) -> None:
    update = update_of(0)
    versions = [version_of(update), version_of(update, time="2025-10-01T00-00-00", parent=None, decision=None)]
    aliases = {"champion": update["version"], "previous": "2025-10-01T00-00-00"}
    text = page_of(tmp_path, [update], aliases, versions)
    for words in (
        "began on 2025-10-21 03:00, with rows up to 2025-10-20",
        "The champion is the version of 2025-10-21 03:00, which knows the log up to 2025-10-20",
        "The new version is the champion now.",
        "champion 0.1200 – popularity 0.0400 – Markov 0.1000 –",
        "champion, known items 0.1250 – champion, second item of new users 0.0500 –",
        "On 2025-10-20: new users 7.5 %, new items 2.0 %.", "shift 0.21", "median 12.0, mean 20.5",
        "new 1,234, there already 7, late 5, unusable 3.", "append 0.1, score 0.4, train 9.0, gate 0.5.",
        "blessed: 1", "2025-10-20 2025-10-21 03:00 blessed taken 0.1200 0.0400 +0.0015 -0.0010 – +0.0050",
        "+0.0050 1,234 400 30 new 200 4 new 10.0",
        "10.0 The reason. day-0.parquet", f"bert4rec models rollback {tmp_path}",
        "2025-10-21T03-00-00 champion blessed 5,000 900 300 2025-10-20 2025-10-01T00-00-00",
        "2025-10-01T00-00-00 previous – 5,000",
    ):  # fmt: skip
        assert words in text
    assert "Warning." not in text


@pytest.mark.usefixtures("without_charts")
@pytest.mark.parametrize(
    ("decision", "taken", "champion", "words"),
    [
        ("refused", False, "old", "Refused: the new version is worse than the champion. The champion stays."),
        ("cannot tell", True, None, "Cannot tell: these users are too few"),
        ("stopped", False, "old", "Stopped: a check of the data failed, and nothing was learnt. The champion stays."),
        ("blessed", True, "old", "The new version was taken, but another one is the champion now."),
    ],
)
def test_the_last_decision_is_a_sentence(
    tmp_path: Path, decision: str, *, taken: bool, champion: str | None, words: str
) -> None:
    update = update_of(0, decision, taken=taken)
    text = page_of(tmp_path, [update], {"champion": champion or update["version"]}, [])
    assert words in text
    assert ("The new version is the champion now." in text) == (champion is None)
    assert "There is no earlier champion" in text
    gates_own = page_of(tmp_path, [update | {"reasons": [f"{decision}: as the gate says."]}], {}, [])
    assert f"{decision.capitalize()}: as the gate says." in gates_own
    assert "these users are too few" not in gates_own


@pytest.mark.usefixtures("without_charts")
def test_what_comes_from_data_is_text(tmp_path: Path) -> None:
    folder = tmp_path / "<b>shop & co</b>"
    folder.mkdir(parents=True)
    update = update_of(0, input={"name": HOSTILE}, reasons=[HOSTILE])
    text = page_of(folder, [update], {"champion": update["version"], HOSTILE: update["version"]}, [version_of(update)])
    assert text.count(HOSTILE) == 4  # input, reason in the verdict and the table, alias
    assert "<script" not in (folder / "index.html").read_text().lower()
    assert "b>shop & co" in text


def test_a_year_of_updates_makes_a_small_page(tmp_path: Path) -> None:
    kinds = ["blessed"] * 12 + ["cannot tell", "refused", "stopped"]
    updates = [update_of(day, kinds[day % 15]) for day in range(450) if not (day % 7 == 6 or 200 < day < 220)][:400]
    random = np.random.default_rng(1)
    for update in updates:
        if update["score"]:
            update["score"]["NDCG@10"] = float(random.uniform(0.1, 0.2))
        update["reasons"] = ["A reason of some length, as the gate and the checks of the data give it to a person."] * 2
    versions = [version_of(update) for update in updates if update["version"]]
    aliases = {"champion": versions[-1]["time"], "previous": versions[-2]["time"], "challenger": versions[3]["time"]}
    text = page_of(tmp_path, updates, aliases, versions)
    assert (tmp_path / "index.html").stat().st_size < 500_000
    last = updates[-1]
    assert last["input"]["name"] in text
    assert text.count(".parquet") == 30
    assert f"31 of {len(versions)} versions" in text  # the newest and the challenger
    assert f"{versions[3]['time']} challenger" in text


def test_scores_decisions_and_gaps_are_drawn_by_day() -> None:
    updates = [update_of(day) for day in (0, 1, 2, 3, 20, 21)] + [update_of(22, "stopped"), update_of(23, "refused")]
    (chart,) = [chart for chart in update_charts(updates) if chart.name == "scores"]
    lines = {line.get_label(): line for line in chart.figure.axes[0].lines}
    values = lines["champion"].get_ydata()
    assert np.isnan(values).tolist() == [False] * 4 + [True] + [False] * 3  # interrupted by the gap
    assert np.isfinite(lines["popularity"].get_ydata()).sum() == 7  # the stopped one has none
    marks = [line for line in chart.figure.axes[0].lines if line.get_linestyle() == "None"]
    assert len({line.get_marker() for line in marks}) == len({line.get_color() for line in marks}) == 3
    assert sorted(np.size(line.get_xdata()) for line in marks) == [1, 1, 6]
    assert len({float(np.asarray(line.get_ydata())[0]) for line in marks}) == 3
    assert "blessed: 6, refused: 1, stopped: 1" in chart.description


def test_of_many_updates_the_means_of_seven_days_are_drawn_weighted_by_users() -> None:
    updates = [update_of(day) for day in range(100)]
    updates[50]["score"] |= {"NDCG@10": 0.32, "users": 1600}
    (chart,) = [chart for chart in update_charts(updates) if chart.name == "scores"]
    (mean,) = [line for line in chart.figure.axes[0].lines if line.get_label() == "champion"]
    expected = (0.32 * 1600 + 0.12 * 6 * 400) / (1600 + 6 * 400)
    assert np.allclose(mean.get_ydata(), [expected if 50 <= day < 57 else 0.12 for day in range(100)])


@pytest.mark.usefixtures("without_charts")
def test_the_last_week_and_the_weeks_before_are_means_over_users(tmp_path: Path) -> None:
    updates = [update_of(day) for day in range(40)]
    for update in updates[:5]:
        update["score"]["NDCG@10"] = 0.9  # before the 28 days
    for update in updates[5:33]:
        update["score"]["NDCG@10"] = 0.2
    updates[-1]["score"] |= {"NDCG@10": 0.02, "users": 3600}
    mean = (0.12 * 6 * 400 + 0.02 * 3600) / (6 * 400 + 3600)
    assert f"champion {mean:.4f} 0.2000 popularity" in page_of(tmp_path, updates, {}, [])


@pytest.mark.usefixtures("without_charts")
def test_popularity_above_the_champion_and_a_champion_that_stays_are_warnings(tmp_path: Path) -> None:
    weak = update_of(0)
    weak["score"]["NDCG@10"] = 0.03
    assert "0.0400 and 0.0300" in page_of(tmp_path, [weak], {}, [])
    nights = [update_of(0), *(update_of(day, "refused") for day in range(1, 4))]
    assert "None of the last 3 updates" in page_of(tmp_path, nights, {}, [])
    assert "Warning." not in page_of(tmp_path, nights[:3], {}, [])


def test_missing_keys_and_no_updates_leave_out_what_they_would_show(tmp_path: Path) -> None:
    least = {"time": "2025-10-21T03-00-00-2", "decision": "stopped", "taken": False, "reasons": [], "version": None}
    text = page_of(tmp_path, [least], {}, [{"time": "2025-10-20T00-00-00"}])
    assert "Stopped: a check of the data failed" in text
    assert [chart.name for chart in update_charts([least])] == ["scores"]
    whole = update_of(20)
    optional = whole.keys() - least.keys()
    null = [update_of(place) | {key: None} for place, key in enumerate(sorted(optional))]
    absent = [{name: value for name, value in line.items() if value is not None} for line in null]
    assert page_of(tmp_path, [*null, whole], {}, []) == page_of(tmp_path, [*absent, whole], {}, [])
    assert "no update yet" in page_of(tmp_path, [], {"champion": "2025-10-20T00-00-00"}, [])
    assert list(update_charts([])) == []


@pytest.mark.usefixtures("without_charts")
def test_wrong_times_of_a_stopped_day_do_not_stretch_the_charts(tmp_path: Path) -> None:
    far = 10**12  # milliseconds read as seconds
    updates = [update_of(0), update_of(1, "stopped", day=[far, far]), update_of(0, "stopped"), update_of(2)]
    days = (days_of(updates) - np.datetime64("2025-10-20")).astype(int).tolist()
    assert days == [0, 1, 2, 2]
    assert days_of([update_of(5, "stopped", day=[far, far]), update_of(6)])[0] == np.datetime64("2025-10-26")
    assert "33658-09-27" in page_of(tmp_path, updates[:2], {}, [])


def test_the_best_simple_baseline_has_its_name_if_it_is_always_the_same_and_is_not_popularity() -> None:
    def titles(*kinds: str) -> list[str]:
        updates = [update_of(day) for day in range(len(kinds))]
        for update, kind in zip(updates, kinds, strict=True):
            update["score"]["baseline"]["kind"] = kind
        return [score.title for score in scores(updates)]

    assert titles("markov", "markov") == ["champion", "popularity", "Markov"]
    assert titles("markov", "recent_popularity") == ["champion", "popularity", "best simple baseline"]
    assert titles("popularity") == ["champion", "popularity"]
