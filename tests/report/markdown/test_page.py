"""Tables and pages, to the letter."""

import pytest

from bert4rec.report.markdown.page import metrics_table, report_page, result_line

METRICS = {"users": 3, "HR@10": 0.5, "NDCG@10": 0.25, "MRR": 1.0}


def test_the_table_puts_popularity_and_the_best_possible_beside_the_model() -> None:
    report = {
        "dataset": {"n_eval_negatives": 100},
        "test": {"popular": METRICS},
        "popularity_baseline": {"popular": METRICS | {"MRR": 0.125}},
        "best_possible": {"popular": METRICS},
    }
    assert metrics_table(report) == "\n".join(
        [
            "Among 100 unseen items drawn by popularity (the BERT4Rec paper's protocol); 3 users",
            "",
            "|               |   HR@10 | NDCG@10 |     MRR |",
            "|---------------|--------:|--------:|--------:|",
            "| popularity    |  0.5000 |  0.2500 |  0.1250 |",
            "| Bert4Rec      |  0.5000 |  0.2500 |  1.0000 |",
            "| best possible |  0.5000 |  0.2500 |  1.0000 |",
        ]
    )


def test_repeated_targets_and_users_left_out_stand_in_the_headings() -> None:
    dataset = {
        "n_eval_negatives": 100,
        "repeated_targets": {"validation": {"users": 1, "of": 4}, "test": {"users": 305, "of": 1500}},
        "left_out": {"validation": {"users": 0, "of": 4}, "test": {"users": 2, "of": 1500}},
    }
    all_, some = METRICS | {"users": 1500}, METRICS | {"users": 1498}
    report = {
        "dataset": dataset,
        "test": {"full": all_, "uniform": some},
        "popularity_baseline": {"full": all_, "uniform": some},
        "validation": {"full": METRICS | {"users": 4}, "uniform": METRICS | {"users": 4}},
    }
    assert [line for line in metrics_table(report).splitlines() if line[:1].isalpha()] == [
        "Full catalogue, without the items that the user has seen; a target that the user has seen counts as missed: "
        "305 of 1500 targets (20.3 %); 1500 users",
        "Among 100 unseen items drawn uniformly; 1498 of 1500 users (left out: 2, with fewer than 100 unseen items)",
    ]
    assert metrics_table(report, "validation") == "\n".join(
        [
            "Full catalogue, without the items that the user has seen; a target that the user has seen counts as "
            "missed: 1 of 4 targets (25.0 %); 4 users",
            "",
            "|               |   HR@10 | NDCG@10 |     MRR |",
            "|---------------|--------:|--------:|--------:|",
            "| Bert4Rec      |  0.5000 |  0.2500 |  1.0000 |",
            "",
            "Among 100 unseen items drawn uniformly; 4 users",
            "",
            "|               |   HR@10 | NDCG@10 |     MRR |",
            "|---------------|--------:|--------:|--------:|",
            "| Bert4Rec      |  0.5000 |  0.2500 |  1.0000 |",
        ]
    )


def test_baselines_stand_before_the_model_in_one_order() -> None:
    kinds = ("transition_graph", "markov", "recent_popularity")
    report = {
        "dataset": {"n_eval_negatives": 100},
        "test": {"full": METRICS},
        "popularity_baseline": {"full": METRICS},
        "baselines": {kind: {"full": METRICS} for kind in kinds},
    }
    assert metrics_table(report).splitlines()[2:] == [
        "|                   |   HR@10 | NDCG@10 |     MRR |",
        "|-------------------|--------:|--------:|--------:|",
        "| popularity        |  0.5000 |  0.2500 |  1.0000 |",
        "| recent popularity |  0.5000 |  0.2500 |  1.0000 |",
        "| Markov            |  0.5000 |  0.2500 |  1.0000 |",
        "| transition graph  |  0.5000 |  0.2500 |  1.0000 |",
        "| Bert4Rec          |  0.5000 |  0.2500 |  1.0000 |",
    ]


@pytest.mark.parametrize(("metrics", "n_tables"), [({"full": METRICS}, 1), ({}, 0)])
def test_a_line_says_that_no_user_has_negatives(metrics: dict[str, dict[str, float]], n_tables: int) -> None:
    everybody = {"test": {"users": 3, "of": 3}}
    dataset = {"n_eval_negatives": 100, "repeated_targets": {"test": {"users": 0, "of": 3}}, "left_out": everybody}
    table = metrics_table({"dataset": dataset, "test": metrics})
    assert table.count("| Bert4Rec") == n_tables
    assert table.endswith("No user has 100 unseen items: there is no ranking among sampled items.")


def test_a_protocol_that_was_not_run_is_absent() -> None:
    assert metrics_table({"dataset": {}, "test": {"full": METRICS}}).count("users") == 1


def test_without_a_test_there_is_a_line_in_its_place() -> None:
    assert metrics_table({"dataset": {}}) == "This dataset holds nothing out: there is no test."


REPORT = {
    "dataset": {"source": "table", "users": 1, "items": 40, "rows": 1200, "split": "leave_one_out",
                "n_eval_negatives": 10},
    "mode": "dmp",
    "world_size": 1,
    "test": {"full": METRICS, "popular": METRICS},
    "popularity_baseline": {"full": METRICS | {"HR@10": 0.125, "NDCG@10": 0.0625}, "popular": METRICS},
    "training": {
        "epochs": 3.663976945244957, "steps": 1, "seconds": 1.2, "best_epoch": 1.0, "stopped_by": "max_minutes",
        "sequences_per_second": 0.41234, "peak_memory_bytes": [2**30], "resumed": [(1000, 1), (2000, 2)],
    },
}  # fmt: skip


def test_the_page_rounds_and_counts_as_people_do() -> None:
    assert report_page(REPORT).split("\n\n")[2:4] == [
        "1 user, 40 items, 1,200 interactions. Mode dmp, 1 process.",
        "Trained 3.66 epochs (1 step) in 1 second, stopped by max_minutes; 0.412 sequences/s; peak memory 1,024 MiB a "
        "process. Nothing was held out for validation: the last weights were kept. Resumed after step 1,000 on 1 "
        "process. Resumed after step 2,000 on 2 processes.",
    ]


def test_baselines_that_are_missing_are_explained() -> None:
    note = "Popularity is the only baseline: …"
    assert f"\n\n{note}\n\n## Learning curve" in report_page(REPORT | {"baselines_left_out": note})


def test_a_speed_that_was_not_measured_is_not_named() -> None:
    page = report_page(REPORT | {"training": {**REPORT["training"], "sequences_per_second": 0.0}})
    assert "stopped by max_minutes; peak memory" in page


def test_the_result_in_one_line() -> None:
    assert result_line(REPORT) == (
        "test of 3 users, full catalogue: HR@10 0.5000, NDCG@10 0.2500 (popularity: 0.1250, 0.0625)"
    )
    popular = {name: {"popular": METRICS} for name in ("test", "popularity_baseline")}
    assert result_line(REPORT | popular) == (
        "test of 3 users, popular negatives: HR@10 0.5000, NDCG@10 0.2500 (popularity: 0.5000, 0.2500)"
    )
    graph = {"transition_graph": {"full": METRICS | {"HR@10": 0.375}}, "markov": {"full": METRICS | {"NDCG@10": 0.1}}}
    assert result_line(REPORT | {"baselines": graph}).endswith(
        "(popularity: 0.1250, 0.0625; transition graph: 0.3750, 0.2500)"
    )
    assert result_line({}) == "This dataset holds nothing out: there is no test."
