"""A Matplotlib figure that a notebook shows."""

import io
from typing import Any

from matplotlib.figure import Figure


class Picture(Figure):
    """Jupyter knows by itself only figures of pyplot, which the package leaves to whoever calls it."""

    def _repr_png_(self, **_: Any) -> bytes:
        content = io.BytesIO()
        self.savefig(content, format="png")
        return content.getvalue()
