"""Rows in order, as the stages hand them on."""

from pathlib import Path

import numpy as np
import polars as pl

from bert4rec.prepare.ordering import Parts
from bert4rec.prepare.rows import OrderedRows


def ordered(folder: Path, *parts: list[tuple[object, list[int]]], n_known: int = 0) -> OrderedRows:
    """Rows of four items: of each part its users with the codes of their items."""
    rows = Parts(folder)
    for users in parts:
        cells = [(user, code) for user, codes in users for code in codes]
        kind = pl.Int64 if all(isinstance(user, int) for user, _ in cells) else pl.String
        rows.add(pl.DataFrame(cells, {"user": kind, "item": pl.Int32}, orient="row"))
    codes = [code for users in parts for _, some in users for code in some]
    return OrderedRows(rows, pl.Series(["a", "b", "c", "d"]), np.bincount(codes, minlength=4), n_known)
