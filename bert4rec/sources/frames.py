"""Put a frame of Polars or pandas, or an Arrow table, into a file, so that it is prepared like any other."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from bert4rec.runtime.errors import ColumnUnknownError, DataError, UserError, in_one_line

ROW_NAMES = "__index_level_"  # columns of Arrow for an index of pandas without a name


@contextmanager
def frame_file(frame: Any, dataset: Path) -> Iterator[Path]:
    """Yield a Parquet file with the rows of `frame`, beside the folder `dataset`, until the block ends.

    The path depends on `dataset` alone, so that a new frame may replace the dataset of a frame, but of no file. An
    index of pandas counts if it has a name. In the errors of the block the file is called "the frame". Raises
    `DataError` if a column has values of several types.
    """
    folder = dataset.absolute().parent / f".{dataset.name}.frame"
    path = folder / "frame.parquet"
    try:
        rows = pl.DataFrame(pl.from_arrow(pa.table(frame)))
    except (pa.ArrowException, pl.exceptions.PolarsError, TypeError, ValueError) as error:
        advice = "each column needs values of one type, such as frame.astype({'item': str})"
        raise DataError(f"the frame: cannot be read: {in_one_line(error)}; {advice}") from None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        rows.select(name for name in rows.columns if not name.startswith(ROW_NAMES)).write_parquet(path)
        yield path
    except OSError as error:
        raise DataError(
            f"{folder}: cannot be written: {error.strerror or error}; name another data.dataset_dir"
        ) from None
    except UserError as error:
        message = str(error)
        if isinstance(error, ColumnUnknownError):
            options = (option.removeprefix("--").split("=", 1) for option in error.options)
            named = json.dumps({f"data.{field}_column": column for field, column in options}, ensure_ascii=False)
            message = f"{error.question}; name it in the settings: {named}"
        error.args = (message.replace(str(path), "the frame"),)
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
