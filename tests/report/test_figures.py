"""The picture of a report: it is there, and has as many plots as there is to show."""

from pathlib import Path

import pytest
from matplotlib import image

from bert4rec.report.figures import draw_learning_curve
from bert4rec.report.log import MetricsLog


@pytest.mark.parametrize(("n_validations", "width"), [(0, 600), (2, 1200)])
def test_the_curve_of_the_loss_and_beside_it_that_of_the_validation(
    tmp_path: Path, n_validations: int, width: int
) -> None:
    log = MetricsLog(tmp_path)
    for step in (1, 2):
        log.add("train", step, loss=1 / step)
    for step in range(n_validations):
        log.add("validation", step, full={"HR@10": 0.5, "NDCG@10": 0.25})
    log.close()
    draw_learning_curve(tmp_path)
    assert image.imread(tmp_path / "learning_curve.png").shape[1] == width  # 5 inches a plot, 120 dots an inch
