"""Which pictures there are, and what they say in words."""

from pathlib import Path
from typing import Any

from bert4rec.report.html.charts import MOST_POINTS, charts
from bert4rec.report.html.contents import read_contents
from tests.report.html.run_by_hand import REPORT, write_run


def descriptions(folder: Path) -> dict[str, str]:
    return {chart.name: chart.description for chart in charts(read_contents(folder))}


def test_each_says_what_it_shows(tmp_path: Path) -> None:
    assert descriptions(write_run(tmp_path / "one")) == {
        "comparison": "NDCG@10 on the test: Bert4Rec 0.1754, transition graph 0.1300, Markov 0.1100, popularity "
        "0.0178.",
        "loss": "The training loss went from 7.900 to 4.000 at epoch 40.",
        "validation": "The best of 20 validations was at epoch 40: NDCG@10 0.1700.",
        "hits_by_rank": "The share of test users whose next item stands within a list, by its length: 7.0 % within 1, "
        "31.0 % within 10, 70.0 % within 100.",
        "score_by_rank": "The scores of the recommendations of 1 user; 1 of them have their next item there.",
        "history_lengths": "Users have 18 to 2,277 interactions, the median is 96, the mean 165.5.",
        "sharding_plan": "2 shards of 1 table on 2 of 2 processes: the filled part is what a process holds.",
    }


def drawn(folder: Path, name: str) -> Any:
    (chart,) = [chart for chart in charts(read_contents(folder)) if chart.name == name]
    return chart.figure.axes[0]


def test_the_best_validation_is_marked_and_popularity_is_a_line(tmp_path: Path) -> None:
    axes = drawn(write_run(tmp_path / "one"), "validation")
    stars = [line.get_xydata().tolist() for line in axes.lines if line.get_marker() == "*" and len(line.get_xdata())]
    assert stars == [[[40.0, 0.3]], [[40.0, 0.17]]]
    level = [line.get_ydata()[0] for line in axes.lines if line.get_linestyle() == "--" and len(line.get_ydata())]
    assert level == [0.0363, 0.0178]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "HR@10", "NDCG@10", "popularity (test)", "best (epoch 40)",
    ]  # fmt: skip


def test_of_a_long_curve_some_points_are_drawn_and_the_last_one(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "one")
    lines = [f'{{"kind": "train", "step": {n}, "loss": 1.0}}\n' for n in range(1, 5001)]
    (folder / "metrics.jsonl").write_text("".join(lines))
    axes = drawn(folder, "loss")
    steps = axes.lines[0].get_xdata()
    assert len(steps) <= MOST_POINTS + 1
    assert (steps[0], steps[-1], axes.get_xlabel()) == (1, 5000, "step")


def test_who_holds_what_of_a_table(tmp_path: Path) -> None:
    shards = REPORT["plan"]["shards"]
    columns = [shard | {"row": 0, "n_rows": 3418, "column": 34 * shard["rank"], "n_columns": 34} for shard in shards]
    plan = REPORT["plan"] | {"shards": columns}
    axes = drawn(write_run(tmp_path / "one", plan=plan), "sharding_plan")
    boxes = [(patch.get_x(), round(patch.get_y(), 2), patch.get_width(), patch.get_height()) for patch in axes.patches]
    assert boxes == [
        (0, -0.36, 3418, 0.72), (0, 0.64, 3418, 0.72),  # the whole table in each band
        (0, -0.36, 3418, 0.36), (0, 1.0, 3418, 0.36),  # the first half of the columns, and the second
    ]  # fmt: skip


def test_errors_of_ratings_are_drawn_where_these_are_learnt(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "one")
    lines = [
        f'{{"kind": "validation", "step": {n}, "epoch": {n}, "ratings": {{"RMSE": {1 / n}, "MAE": {0.5 / n}}}}}\n'
        for n in (1, 2)
    ]
    train = '{"kind": "train", "step": 1, "epoch": 1, "loss": 1.0}\n'
    (folder / "metrics.jsonl").write_text("".join([train, *lines]))
    assert descriptions(folder)["validation"] == "The best of 2 validations was at epoch 2: RMSE 0.5000."
    axes = drawn(folder, "validation")
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["MAE", "RMSE", "best (epoch 2)"]
