"""Reports as read, their contestants, figures and tables, and the page in Markdown."""

import json
from pathlib import Path
from typing import Any

import pytest

from bert4rec.report.figures import common_figures, contestants, curve_of, differences, main_protocol, read_report
from bert4rec.report.pages import metrics_table, report_page
from bert4rec.report.tables import (
    Cell,
    MetricTable,
    Setting,
    cell,
    known_file,
    metric_tables,
    other_settings,
    published,
    published_tables,
)
from bert4rec.runtime.errors import DataError
from tests.report.runs_by_hand import METRICS, PRIOR, REPORT, SMALL_REPORT

FULL = {"full": {"HR@10": 0.5}}


@pytest.mark.parametrize("content", [None, "{", "[]", "{}"])
def test_a_report_is_read_as_it_was_written_or_is_an_error(tmp_path: Path, content: str | None) -> None:
    report = {"dataset": {"fingerprint": "f"}, "test": {"full": {"HR@10": 0.1}}}
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report))
    assert read_report(tmp_path) == report
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(DataError, match=r"report\.json"):
        read_report(tmp_path)


def test_the_model_first_then_the_baselines_then_the_best_possible() -> None:
    intervals = {"test": {"full": {"HR@10": [0.4, 0.6]}}, "baselines": {"markov": {"full": {"HR@10": [0.1, 0.2]}}}}
    report = {
        "model": "SASRec", "test": FULL, "popularity_baseline": FULL, "best_possible": FULL, "intervals": intervals,
        "baselines": {"popularity": FULL, "markov": FULL, "another": FULL},
    }  # fmt: skip
    found = contestants(report)
    assert [one.title for one in found] == ["SASRec", "popularity", "Markov", "another", "best possible"]
    assert [one.interval("full", "HR@10") for one in found] == [[0.4, 0.6], None, [0.1, 0.2], None, None]
    assert contestants({"dataset": {}}) == []
    itself = {"model": "Popularity", "test": FULL, "popularity_baseline": FULL, "baselines": {"markov": FULL}}
    assert [one.kind for one in contestants(itself)] == ["model", "markov"]  # it is not compared with itself
    reports = ({}, {"test": {"popular": {}, "full": {}}}, {"test": {"uniform": {}, "popular": {}}})
    assert [main_protocol(each) for each in reports] == [None, "full", "uniform"]


def test_ranks_are_judged_by_ndcg_and_ratings_by_their_error() -> None:
    ranks = [{"epoch": 2.0 * n, "full": {"NDCG@10": value}} for n, value in enumerate((0.1, 0.3, 0.3, 0.2), 1)]
    errors = [{"epoch": n, "ratings": {"RMSE": value}} for n, value in enumerate((1.0, 0.0, 0.8))]
    by_rank, by_error = curve_of(ranks), curve_of(errors)
    assert (by_rank.metric, by_rank.best, by_rank.epochs[by_rank.best]) == ("NDCG@10", 1, "4")
    assert (by_error.metric, by_error.best, by_error.values) == ("RMSE", 1, [1.0, 0.0, 0.8])


def test_only_figures_that_both_have_are_compared_and_the_first_ones_named() -> None:
    one = {"mode": "dmp", "test": {"full": {"users": 4, "HR@1": 0.25}}, "validation": {"full": {"MRR": 0.5}}}
    assert differences(one, one) == ""
    assert len(common_figures(one, one)) == 3
    other = {"mode": "ddp", "test": {"full": {"users": 4, "HR@1": 0.5, "HR@5": 1.0}, "uniform": {"HR@1": 1.0}}}
    assert "HR@1 0.25, not 0.5" in differences(one, other)
    many = {"test": {"full": {f"HR@{k}": k / 8 for k in range(1, 6)}}}
    line = differences(many, {"test": {"full": dict.fromkeys(many["test"]["full"], 0.0)}})
    assert [f"HR@{k}" in line for k in range(1, 6)] == [True, True, True, False, False]
    assert differences({"test": {"full": {"MRR": 0.1 + 0.2}}}, {"test": {"full": {"MRR": 0.3}}})  # the last bit


ML_1M = {"users": 6040, "items": 3416, "rows": 999_611, "split": "leave_one_out"}
SHA256 = "b725f3acb3986fe3130bffd1e77a74d182a1f51799567a236dbd60270f95b0a2"


def titles(table: MetricTable) -> list[str]:
    return [one.title for one in table.contestants]


def test_a_table_for_each_protocol_with_all_contestants_and_one_of_lists() -> None:
    full, popular = metric_tables(REPORT)
    (validation,) = metric_tables(REPORT, "validation")
    assert "3 of 6040 targets" in full.title
    assert full.metrics == ["HR@10", "NDCG@10", "HR@1", "MRR"]
    assert titles(full) == ["Bert4Rec", "popularity", "Markov", "transition graph"]
    assert (titles(popular), titles(validation)) == (["Bert4Rec", "popularity"], ["Bert4Rec"])
    lists = {"Coverage@5": 0.1, "Coverage@10": 0.2, "Novelty@10": 9.5}
    ranks, listed = metric_tables(REPORT | {"test": {"full": {"users": 2, "HR@10": 0.5, **lists}}})
    assert (ranks.metrics, ranks.is_of_lists) == (["HR@10"], False)
    assert (listed.metrics, listed.is_of_lists, titles(listed)) == (["Coverage@10", "Novelty@10"], True, ["Bert4Rec"])


def test_cells() -> None:
    assert cell(0.3113, [0.3, 0.32]) == Cell("0.3113", "0.3000 – 0.3200")
    assert [cell(value, None).text for value in (None, 0.25, 12.456, 1234.5)] == ["–", "0.2500", "12.46", "1,234"]


def test_a_file_is_known_by_its_counts_and_perhaps_its_checksum() -> None:
    for digest, is_same in ((SHA256, True), ("", False), (SHA256[::-1], False)):
        file, reason = known_file(ML_1M | {"file_sha256": digest})
        assert (file["sha256"], "counts only" not in reason) == (SHA256, is_same)
    for change in ({"rows": 999_610}, {"split": "time"}, {"test_users": 1000}):
        assert known_file(ML_1M | change) is None


def test_published_results_the_lowest_first_each_with_its_source() -> None:
    file, _ = known_file(ML_1M)
    rows = published(file, "full", n_negatives=99)
    assert [row.ndcg for row in rows] == sorted(row.ndcg for row in rows)
    assert ("BERT4Rec", 0.2843, 0.1537, "https://arxiv.org/abs/2309.07602") in {
        (row.model, row.hit_rate, row.ndcg, row.url) for row in rows
    }
    assert [row.ndcg for row in published(file, "popular", n_negatives=100)] == [0.4740, 0.4818, 0.5020]
    assert published(file, "popular", n_negatives=99) == []
    for users, items, n_rows in ((35598, 18357, 296_337), (1090, 3646, 52_551)):  # of the sparse files
        sparse, _ = known_file(ML_1M | {"users": users, "items": items, "rows": n_rows})
        assert published(sparse, "full", n_negatives=100)


def test_the_run_is_among_the_published_results() -> None:
    _, ((_, rows), (_, popular)) = published_tables(REPORT)
    (own,) = [row for row in rows if row.is_own]
    assert (own.model, own.hit_rate, own.ndcg) == ("Bert4Rec, this run", 0.3113, 0.1754)
    assert [row.is_own for row in popular] == [False, True, False, False]
    assert published_tables(REPORT | {"dataset": REPORT["dataset"] | {"users": 1}}) == ("", [])
    assert published_tables(REPORT | {"seen_items": "keep"}) == ("", [])


def test_settings_that_differ_from_their_defaults() -> None:
    defaults = {"model": {"kind": "bert4rec", "embed_dim": 64}, "parallelism": {"device": "auto"}, "run": {"name": ""}}
    model = {"kind": "bert4rec", "embed_dim": 32, "new": True}
    assert other_settings({"model": model, "parallelism": {"device": "cpu"}, "run": {"name": "x"}}, defaults) == [
        Setting("model.embed_dim", "32", "64", False),
        Setting("model.new", "true", "–", False),
        Setting("parallelism.device", '"cpu"', '"auto"', True),
    ]


def rows(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:1] == "|"]


def test_baselines_are_before_the_model_and_the_best_possible_after_it() -> None:
    popular, kinds = {"popular": METRICS}, ("transition_graph", "markov", "recent_popularity")
    report = SMALL_REPORT | {
        "test": popular, "popularity_baseline": {"popular": METRICS | {"MRR": 0.125}}, "best_possible": popular,
        "baselines": dict.fromkeys(kinds, popular),
    }  # fmt: skip
    header, _, *body = rows(metrics_table(report))
    assert header == ["", "HR@10", "NDCG@10", "MRR"]
    names = ["popularity", "recent popularity", "Markov", "transition graph", "Bert4Rec", "best possible"]
    assert [row[0] for row in body] == names
    assert (body[0][1:], body[4][1:]) == (["0.5000", "0.2500", "0.1250"], ["0.5000", "0.2500", "1.0000"])


@pytest.mark.parametrize(
    ("changes", "words", "missing"),
    [
        ({}, ["1,200 interactions", "3.66 epochs (1 step)", "max_minutes", "0.412", "1,024 MiB", "2,000"], "## Val"),
        ({"validation": {"full": METRICS}, "training": SMALL_REPORT["training"] | {"sequences_per_second": 0.0}},
         ["## Validation", "1,024 MiB"], "/s"),
        ({"baselines_left_out": "It is the only …", "warnings": [{"text": "one"}, {"text": "two"}]},
         [" one\n", " two\n\n", "\n\nIt is the only …\n\n"], "## Val"),
        ({"prior": PRIOR},
         ["+0.0081", "| Bert4Rec alone    | 0.2100 |  0.1234 |", "| ease alone        | 0.2300 |  0.1012 |",
          "| all together      | 0.5000 |  0.2500 |"], "## Val"),
        ({"prior": {"weights": {}}}, ["## What is counted"], "alone"),
        ({"kind": "popularity", "training": {"positions": 1234, "seconds": 2.0, "peak_memory_bytes": [2**30]}},
         ["1,234", "2 seconds", "1,024 MiB"], "## Learning"),
    ],
)  # fmt: skip
def test_the_page(changes: dict[str, Any], words: list[str], missing: str) -> None:
    page = report_page(SMALL_REPORT | {"dataset": SMALL_REPORT["dataset"] | {"users": 1}} | changes).replace(
        ", 40 items", ""
    )
    assert [word for word in words if word not in page] == []
    assert missing not in page
    assert "\n\n\n" not in page
