"""Which pictures there are, and what they draw; SVG takes the page's colours and font."""

import io
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from IPython.core.formatters import DisplayFormatter
from PIL import Image

from bert4rec.report.charts import MAX_POINTS, MODEL_COLOR, charts, learning_curve, new_figure, to_svg
from bert4rec.report.figures import read_contents
from tests.report.runs_by_hand import REPORT, write_records, write_run


def descriptions(folder: Path) -> dict[str, str]:
    return {chart.name: chart.description for chart in charts(read_contents(folder))}


def drawn(folder: Path, name: str) -> Any:
    (chart,) = [chart for chart in charts(read_contents(folder)) if chart.name == name]
    return chart.figure.axes[0]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "one")


def test_each_says_which_figures_it_shows(run: Path) -> None:
    assert {name: re.findall(r"\d[\d,.]*\d|\d", text) for name, text in descriptions(run).items()} == {
        "comparison": ["10", "4", "0.1754", "0.1300", "0.1100", "0.0178"],  # of NDCG@10 and Bert4Rec
        "loss": ["7.900", "4.000", "40"],
        "validation": ["20", "40", "10", "0.1700"],
        "hits_by_rank": ["7.0", "1", "31.0", "10", "70.0", "100"],
        "history_lengths": ["18", "2,277", "96", "165.5"],
        "sharding_plan": ["2", "1", "2", "2"],
    }


def test_the_best_validation_is_marked_and_popularity_is_a_line(run: Path) -> None:
    axes = drawn(run, "validation")
    stars = [line.get_xydata().tolist() for line in axes.lines if line.get_marker() == "*" and len(line.get_xdata())]
    assert stars == [[[40.0, 0.3]], [[40.0, 0.17]]]
    level = [line.get_ydata()[0] for line in axes.lines if line.get_linestyle() == "--" and len(line.get_ydata())]
    assert level == [0.0363, 0.0178]
    assert len(axes.get_legend().get_texts()) == 4


def test_the_shards_of_a_table(tmp_path: Path) -> None:
    shards = REPORT["plan"]["shards"]
    columns = [shard | {"row": 0, "n_rows": 3418, "column": 34 * shard["rank"], "n_columns": 34} for shard in shards]
    axes = drawn(write_run(tmp_path / "one", plan=REPORT["plan"] | {"shards": columns}), "sharding_plan")
    boxes = [(patch.get_x(), round(patch.get_y(), 2), patch.get_width(), patch.get_height()) for patch in axes.patches]
    assert boxes == [
        (0, -0.36, 3418, 0.72), (0, 0.64, 3418, 0.72),  # the whole table in each band
        (0, -0.36, 3418, 0.36), (0, 1.0, 3418, 0.36),  # the first half of the columns, and the second
    ]  # fmt: skip


def test_errors_of_ratings_are_drawn_for_a_model_of_ratings(run: Path) -> None:
    errors = {n: {"RMSE": 1 / n, "MAE": 0.5 / n} for n in (1, 2)}
    validated = [{"kind": "validation", "step": n, "epoch": n, "ratings": errors[n]} for n in errors]
    trained = [{"kind": "train", "step": n, "epoch": n, "loss": 1.0} for n in range(1, 5001)]
    write_records(run, [*trained, *validated])
    epochs = drawn(run, "loss").lines[0].get_xdata()  # of many points, some and the last one
    assert (len(epochs) <= MAX_POINTS + 1, epochs[0], epochs[-1]) == (True, 1, 5000)
    assert "RMSE 0.5000" in descriptions(run)["validation"]
    labels = [text.get_text() for text in drawn(run, "validation").get_legend().get_texts()]
    assert labels[:2] == ["MAE", "RMSE"]


def test_svg_has_colours_as_variables_ids_of_its_own_and_text_as_text() -> None:
    with new_figure() as (figure, (axes,)):
        axes.plot([1, 2, 3], [0.123456, 0.2, 0.1], color=MODEL_COLOR, marker="o", label="<&>")
        axes.annotate("0.123456", (2, 0.2))
        axes.legend()
    svg = to_svg(figure, "one", "a &amp; b")
    root = ElementTree.fromstring(svg)
    assert (root.get("role"), root.get("aria-label")) == ("img", "a & b")
    assert root.get("viewBox") == "0 0 360 216"
    assert {"width", "height"}.isdisjoint(root.keys())
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"<&>", "0.123456"} <= {*texts}
    assert "var(--model)" in svg
    assert not re.search(r"#[0-9a-f]{6}\b|font-family|<style|<metadata", svg)
    assert {name.split("-")[0] for name in re.findall(r'(?:id="|#)([^")]*)', svg)} == {"one"}
    assert not re.search(r'd="[^"]*\.\d{3}', svg)


def test_the_learning_curves_are_a_picture_in_a_notebook_with_titles_above_the_legend() -> None:
    metrics = {"HR@10": 0.2, "NDCG@10": 0.1}
    validations = [{"epoch": epoch, "step": epoch, "full": metrics} for epoch in (1.0, 2.0)]
    train = [{"epoch": 1.0, "step": 1, "loss": 2.0}]
    figure = learning_curve(train, validations, {"popularity_baseline": {"full": metrics}})
    data, _ = DisplayFormatter().format(figure)
    assert Image.open(io.BytesIO(data["image/png"])).size == tuple(figure.get_size_inches() * figure.dpi)
    axes = figure.axes[1]
    assert not axes.title.get_window_extent().overlaps(axes.get_legend().get_window_extent())
