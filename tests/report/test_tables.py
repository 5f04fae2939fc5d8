"""The tables and facts of the page have the figures of the report."""

from typing import Any

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
)  # fmt: skip
from tests.report.runs_by_hand import REPORT

ML_1M = {"users": 6040, "items": 3416, "rows": 999_611, "split": "leave_one_out"}
SHA256 = "b725f3acb3986fe3130bffd1e77a74d182a1f51799567a236dbd60270f95b0a2"


def known(**dataset: Any) -> tuple[dict[str, Any], str]:
    found = known_file(ML_1M | dataset)
    return found


def titles(table: MetricTable) -> list[str]:
    return [one.title for one in table.contestants]


def test_a_table_for_each_protocol_with_all_contestants() -> None:
    full, popular = metric_tables(REPORT)
    (validation,) = metric_tables(REPORT, "validation")
    assert "3 of 6040 targets" in full.title
    assert full.metrics == ["HR@10", "NDCG@10", "HR@1", "MRR"]
    assert titles(full) == ["Bert4Rec", "popularity", "Markov", "transition graph"]
    assert (titles(popular), titles(validation)) == (["Bert4Rec", "popularity"], ["Bert4Rec"])


def test_metrics_of_lists_are_in_a_table_of_their_own() -> None:
    lists = {"Coverage@5": 0.1, "Coverage@10": 0.2, "Novelty@10": 9.5}
    ranks, listed = metric_tables(REPORT | {"test": {"full": {"users": 2, "HR@10": 0.5, **lists}}})
    assert (ranks.metrics, ranks.is_of_lists) == (["HR@10"], False)
    assert (listed.metrics, listed.is_of_lists) == (["Coverage@10", "Novelty@10"], True)
    assert (titles(listed), "2 of 6040 users" in listed.title) == (["Bert4Rec"], True)


def test_cells() -> None:
    assert cell(0.3113, [0.3, 0.32]) == Cell("0.3113", "0.3000 – 0.3200")
    assert [cell(value, None).text for value in (None, 0.25, 12.456, 1234.5)] == ["–", "0.2500", "12.46", "1,234"]


def test_a_file_is_known_by_its_counts_and_perhaps_its_checksum() -> None:
    for digest, is_same in ((SHA256, True), ("", False), (SHA256[::-1], False)):
        file, reason = known(file_sha256=digest)
        assert (file["sha256"], "counts only" not in reason) == (SHA256, is_same)
    assert known_file(ML_1M | {"rows": 999_610}) is None
    assert known_file(ML_1M | {"split": "time"}) is None
    assert known_file(ML_1M | {"test_users": 1000}) is None


def test_published_results_the_lowest_first_each_with_its_source() -> None:
    file, _ = known()
    rows = published(file, "full", n_negatives=99)
    assert [row.ndcg for row in rows] == sorted(row.ndcg for row in rows)
    (dross,) = [row for row in rows if (row.hit_rate, row.ndcg) == (0.2843, 0.1537)]
    assert (dross.model, dross.url) == ("BERT4Rec", "https://arxiv.org/abs/2309.07602")
    assert [row.ndcg for row in published(file, "popular", n_negatives=100)] == [0.4740, 0.4818, 0.5020]
    assert published(file, "popular", n_negatives=99) == []
    for users, items, n_rows in ((35598, 18357, 296_337), (1090, 3646, 52_551)):  # of the sparse files
        assert published(known(users=users, items=items, rows=n_rows)[0], "full", n_negatives=100)


def test_the_run_is_among_the_published_results() -> None:
    name, ((_, rows), (_, popular)) = published_tables(REPORT)
    assert "MovieLens 1M" in name
    (own,) = [row for row in rows if row.is_own]
    assert (own.model, own.hit_rate, own.ndcg) == ("Bert4Rec, this run", 0.3113, 0.1754)
    assert rows[rows.index(own) - 1].ndcg == 0.1726
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
