"""The tables of a benchmark, to the letter."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from bert4rec.evaluation.results.intervals import mean_interval
from bert4rec.report.compare.standings import Result, standings_data, standings_page
from tests.report.runs_by_hand import make_run

DATASET = {
    "source": "table", "users": 1200, "items": 40, "rows": 1, "split": "leave_one_out", "n_eval_negatives": 10,
    "repeated_targets": {"test": {"users": 0, "of": 3}},
}  # fmt: skip


def result(
    contestant: str, split: str, seed: int | None, hit_rate: float, seconds: float = 90.0, **more: Any
) -> Result:
    test = {"full": {"users": 3, "HR@5": 0.125, "HR@10": hit_rate, "MRR": 0.5, "Coverage@10": 0.1}}
    report = {"dataset": DATASET, "seen_items": "leave_out", "test": test, "training": {"seconds": seconds}, **more}
    return Result(contestant, split, seed, Path(f"runs/{contestant}-{split}"), report)


def test_a_row_a_contestant_and_a_section_a_split() -> None:
    best = {"best_possible": {"full": {"users": 3, "HR@10": 0.875, "MRR": 0.75}}}
    results = [
        result("markov", "leave_one_out", None, 0.25, 1.0, **best),
        result("sasrec", "leave_one_out", 1, 0.5, **best),
        result("sasrec", "leave_one_out", 2, 0.75, 180.0, **best),
        result("sasrec", "time", 1, 0.125, intervals={"test": {"full": {"HR@10": [0.1, 0.15]}}}),
    ]
    assert standings_page(results) == (
        "# Benchmark on table: 1,200 users, 40 items\n\n"
        "## Split: leave_one_out\n\n"
        "Test: the last item of each user; validation: the last but one of a sample of the users.\n\n"
        "Full catalogue, without the items that the user has seen; 3 users\n\n"
        "|               |           HR@10 |             MRR | minutes |\n"
        "|---------------|----------------:|----------------:|--------:|\n"
        "| markov        |          0.2500 |          0.5000 |     0.0 |\n"
        "| sasrec        | 0.6250 ± 0.1768 | 0.5000 ± 0.0000 |     2.2 |\n"
        "| best possible |          0.8750 |          0.7500 |         |\n\n"
        "## Split: time\n\n"
        "Test: the first item of each user from `split_at` on; validation: the last one before, of a sample of the "
        "users.\n\n"
        "Full catalogue, without the items that the user has seen; 3 users\n\n"
        "|        |                    HR@10 |    MRR | minutes |\n"
        "|--------|-------------------------:|-------:|--------:|\n"
        "| sasrec | 0.1250 (0.1000 – 0.1500) | 0.5000 |     1.5 |\n\n"
        "In brackets: 95 % intervals over users. With several seeds: the mean ± the standard deviation over them, and "
        "the interval of the mean. Minutes are those of training and validation. Other cut-offs, and what is said of "
        "lists, stand in each run's report.\n"
    )
    assert standings_data(results)["runs"][1] == {
        "contestant": "sasrec", "split": "leave_one_out", "seed": 1, "run": "runs/sasrec-leave_one_out",
        "seconds": 90.0, "test": {"full": {"users": 3, "HR@5": 0.125, "HR@10": 0.5, "MRR": 0.5, "Coverage@10": 0.1}},
    }  # fmt: skip


def test_several_seeds_have_the_interval_of_their_mean(tmp_path: Path) -> None:
    """Over users, of whom each has the mean of its own figures."""
    results = []
    for n in (2, 4):
        folder = make_run(tmp_path / str(n), [1] * n + [30] * (10 - n), seed=n, dataset=DATASET)
        report = json.loads((folder / "report.json").read_text())
        results.append(Result("sasrec", "leave_one_out", n, folder, report))
    low, high = mean_interval(np.array([1, 1, 0.5, 0.5, *[0] * 6]))
    page = standings_page(results)
    assert f"| sasrec | 0.3000 ± 0.1414 ({low:.4f} – {high:.4f}) |" in page
    (results[0].folder / "ranks-test.parquet").unlink()
    assert "| sasrec | 0.3000 ± 0.1414 |" in standings_page(results)


def test_what_others_have_published_stands_below() -> None:
    ml_1m = {"users": 6040, "items": 3416, "rows": 999611, "split": "leave_one_out", "n_eval_negatives": 100}
    dataset = DATASET | ml_1m
    rows = [line.split("|")[1:] for line in standings_page([_on(dataset)]).splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in row] for row in rows]
    assert cells[0][:4] == ["", "HR@10", "MRR", "minutes"]
    assert cells[1][:4] == ["sasrec", "0.5000", "0.5000", "1.5"]
    assert ["published: TV-Rec", "0.3232", "", ""] in [row[:4] for row in cells]
    best = "published: WEARec (the best of 88 runs, read on the test)"
    assert [row[0] for row in cells[2:]].index(best) > [row[0] for row in cells[2:]].index("published: TV-Rec")
    assert "published" not in standings_page([_on(dataset | {"rows": 999610})])


def _on(dataset: dict[str, Any]) -> Result:
    return result("sasrec", "leave_one_out", 1, 0.5, dataset=dataset)
