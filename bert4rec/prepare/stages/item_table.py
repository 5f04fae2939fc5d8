"""The table of items: their ids, how often they stand where, their titles."""

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bert4rec.prepare.stages.ordered_rows import OrderedRows
from bert4rec.prepare.stages.survey import Survey


def item_table(
    ordered: OrderedRows, ids: NDArray[np.int32], survey: Survey, titles: pl.DataFrame | None
) -> pl.DataFrame:
    """Return `item`, `original`, `count`, `train_count` and, where known, `title` of every item, by dense id."""
    codes = np.flatnonzero(ids)
    codes = codes[np.argsort(ids[codes])]
    table = pl.DataFrame(
        [
            pl.Series("item", ids[codes]),
            ordered.items.gather(codes).alias("original"),
            pl.Series("count", ordered.counts[codes]),
            pl.Series("train_count", survey.train_counts),
        ]
    )
    if titles is None:
        return table
    return table.join(titles, left_on="original", right_on="item", how="left", maintain_order="left")
