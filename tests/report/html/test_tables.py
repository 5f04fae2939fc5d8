"""Figures as cells."""

from bert4rec.report.html.tables import Cell, metric_tables, published_tables, slice_tables
from tests.report.html.run_by_hand import HOSTILE, REPORT


def test_a_table_a_protocol_with_everybody_and_their_intervals() -> None:
    full, popular = metric_tables(REPORT)
    assert full.title == (
        "Full catalogue, without the items that the user has seen; a target that the user has seen counts as missed: "
        "3 of 6040 targets (0.0 %); 6040 users"
    )
    assert full.columns == ["HR@1", "HR@10", "NDCG@10", "MRR"]
    assert [row.title for row in full.rows] == ["Bert4Rec", "popularity", "Markov", "transition graph"]
    assert full.rows[0].cells[:2] == [Cell("0.0700"), Cell("0.3113", "0.3013 – 0.3213")]
    assert [row.title for row in popular.rows] == ["Bert4Rec", "popularity"]
    (validation,) = metric_tables(REPORT, "validation")
    assert [row.title for row in validation.rows] == ["Bert4Rec"]


def test_large_figures_and_those_that_are_missing() -> None:
    report = REPORT | {
        "test": {"full": {"users": 2, "HR@10": 0.5, "x": 1234.5}},
        "popularity_baseline": {"full": {"users": 2, "HR@10": 0.25}},
        "baselines": {},
    }
    (table,) = metric_tables(report)
    assert [[cell.text for cell in row.cells] for row in table.rows] == [["0.5000", "1,234"], ["0.2500", "–"]]


def test_the_run_stands_among_the_published_figures() -> None:
    name, ((title, lines), (_, popular)) = published_tables(REPORT)
    assert name.startswith("its counts alone, not by the checksum of its file: MovieLens 1M")
    assert title.startswith("Full catalogue")
    own = [line for line in lines if line.is_own]
    assert [(line.title, line.hit_rate, line.ndcg) for line in own] == [("Bert4Rec, this run", "0.3113", "0.1754")]
    assert lines[lines.index(own[0]) - 1].ndcg == "0.1726"
    assert lines[-1].bar == 100
    assert [line.is_own for line in popular] == [False, True, False, False]
    assert published_tables(REPORT | {"dataset": REPORT["dataset"] | {"users": 1}}) == ("", [])


def test_slices() -> None:
    ((title, parts),) = slice_tables(REPORT)  # those with one part or none are left out
    assert title == "By the length of the history"
    assert [(part.name, part.users) for part in parts] == [("1 to 5", "40"), (HOSTILE, "6,000")]
    assert parts[0].cells == [Cell("0.2000", "0.1000 – 0.3000"), Cell("0.1000")]
    assert parts[0].bars == [62.5, 100 * 0.1 / 0.18]
    assert parts[1].bars == [100.0, 100.0]


def test_what_lists_hold_stands_in_a_table_of_its_own() -> None:
    lists = {"Coverage@5": 0.1, "Coverage@10": 0.2, "Novelty@10": 9.5}
    report = REPORT | {"test": {"full": {"users": 2, "HR@10": 0.5, **lists}}}
    ranks, listed = metric_tables(report)
    assert ranks.columns == ["HR@10"]
    assert listed.title.endswith(
        "; 2 of 6040 users (left out: 6038, with fewer than 100 unseen items): their lists of the ten best"
    )
    assert (listed.columns, [row.title for row in listed.rows]) == (["Coverage@10", "Novelty@10"], ["Bert4Rec"])
