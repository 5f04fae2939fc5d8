"""Figures in a notebook that has not imported pyplot."""

import io

from IPython.core.formatters import DisplayFormatter
from PIL import Image

from bert4rec.report.html.drawing import new_figure


def test_a_notebook_shows_a_figure_as_a_picture() -> None:
    with new_figure(4.0, 3.0) as (figure, (axes,)):
        axes.plot([1, 2], [3, 4])
    data, _ = DisplayFormatter().format(figure)
    assert Image.open(io.BytesIO(data["image/png"])).size == (4.0 * figure.dpi, 3.0 * figure.dpi)
