"""Tables and pages of Markdown: which figures are in which rows and sections."""

from typing import Any

import pytest

from bert4rec.report.pages import metrics_table, report_page
from tests.report.runs_by_hand import METRICS
from tests.report.runs_by_hand import SMALL_REPORT as REPORT


def rows(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:1] == "|"]


def test_baselines_are_before_the_model_and_the_best_possible_after_it() -> None:
    popular, kinds = {"popular": METRICS}, ("transition_graph", "markov", "recent_popularity")
    report = REPORT | {
        "test": popular, "popularity_baseline": {"popular": METRICS | {"MRR": 0.125}}, "best_possible": popular,
        "baselines": dict.fromkeys(kinds, popular),
    }  # fmt: skip
    header, _, *body = rows(metrics_table(report))
    assert header == ["", "HR@10", "NDCG@10", "MRR"]
    names = ["popularity", "recent popularity", "Markov", "transition graph", "Bert4Rec", "best possible"]
    assert [row[0] for row in body] == names
    assert (body[0][1:], body[4][1:]) == (["0.5000", "0.2500", "0.1250"], ["0.5000", "0.2500", "1.0000"])


def test_only_what_was_measured_is_in_the_tables_and_the_model_alone_in_those_of_validation() -> None:
    table = metrics_table(REPORT | {"validation": {"full": METRICS, "uniform": METRICS}}, "validation")
    assert [row[0] for row in rows(table)] == ["", rows(table)[1][0], "Bert4Rec"] * 2
    assert metrics_table(REPORT | {"test": {"full": METRICS}}).count("; 3 users") == 1
    assert rows(metrics_table({"dataset": REPORT["dataset"]})) == []


@pytest.mark.parametrize(
    ("changes", "words", "missing"),
    [
        ({}, ["1,200 interactions", "3.66 epochs (1 step)", "max_minutes", "0.412", "1,024 MiB", "2,000"], "## Val"),
        ({"training": REPORT["training"] | {"sequences_per_second": 0.0}}, ["1,024 MiB"], "/s"),
        ({"baselines_left_out": "It is the only …"}, ["\n\nIt is the only …\n\n"], "## Val"),
        ({"validation": {"full": METRICS}}, ["## Validation"], "Nothing"),
        ({"warnings": [{"text": "one"}, {"text": "two"}]}, [" one\n", " two\n\n"], "## Val"),
        ({"kind": "popularity", "training": {"positions": 1234, "seconds": 2.0, "peak_memory_bytes": [2**30]}},
         ["1,234", "2 seconds", "1,024 MiB"], "## Learning"),
    ],
)  # fmt: skip
def test_the_page(changes: dict[str, Any], words: list[str], missing: str) -> None:
    page = report_page(REPORT | {"dataset": REPORT["dataset"] | {"users": 1}} | changes).replace(", 40 items", "")
    assert [word for word in words if word not in page] == []
    assert missing not in page
    assert "\n\n\n" not in page
