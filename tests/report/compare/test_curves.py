"""The curves of all runs in one picture."""

import io
from pathlib import Path

from matplotlib import image

from bert4rec.report.compare.columns import Column, columns
from bert4rec.report.compare.curves import curves_png, curves_svg, has_curves
from bert4rec.report.compare.runs import read_run
from tests.report.compare.run_folders import make_run


def compared(tmp_path: Path) -> list[Column]:
    sasrec = {"model.kind": "sasrec"}
    folders = [make_run(tmp_path / name, [1], seed=seed, settings=settings)
               for name, seed, settings in (("a", 1, {}), ("b", 2, {}), ("c", 1, sasrec))]  # fmt: skip
    return columns([read_run(folder) for folder in folders])


def test_a_line_for_each_run_and_a_colour_for_each_column(tmp_path: Path) -> None:
    found = compared(tmp_path)
    svg = curves_svg(found)
    assert svg == curves_svg(found)
    assert svg.startswith("<svg")
    assert svg.count("stroke: #1f77b4") - svg.count("stroke: #ff7f0e") > 0  # two lines of the first column
    assert [svg.count(f">{letter}</text>") for letter in "ABC"] == [1, 1, 0]
    assert image.imread(io.BytesIO(curves_png(found))).shape[:2] == (432, 840)


def test_without_validation_there_is_nothing_to_draw(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a", [1])
    assert has_curves(columns([read_run(folder)]))
    (folder / "metrics.jsonl").unlink()
    assert not has_curves(columns([read_run(folder)]))
