"""Interactions of any number on the disk, to be read again user by user: an external sort.

What comes in is written in runs, each sorted by user and as large as memory allows. A range of users is then a slice
of every run, found by the statistics of the Parquet files: whole users, in the order in which their rows came in.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import polars as pl

ROWS_PER_GROUP = 1 << 16  # of a run: what is read at least from each run for a range of users
ROWS_PER_SAMPLE = 1 << 10  # rows for each of which a user is remembered, to cut the ranges evenly


class Spool:
    """Hold rows with the column `user` under `folder`, in runs of about `run_bytes` of memory."""

    def __init__(self, folder: Path, *, run_bytes: int) -> None:
        folder.mkdir(parents=True)
        self._folder, self._run_bytes = folder, run_bytes
        self._pending: list[pl.DataFrame] = []
        self._runs: list[Path] = []
        self._samples: list[pl.Series] = []
        self._schema: dict[str, pl.DataType] = {}
        self.n_rows = self.n_bytes = 0

    @property
    def schema(self) -> dict[str, pl.DataType]:
        """Return the columns and their types."""
        return self._schema

    def add(self, frame: pl.DataFrame) -> None:
        """Keep the rows of `frame`, which come after all before. Ids that become text here become so in all rows."""
        if not len(frame):
            return
        if self._schema != frame.schema and self._schema:
            self._become(dict(frame.schema))
        self._schema = dict(frame.schema)
        self._pending.append(frame)
        self.n_rows += len(frame)
        self.n_bytes += int(frame.estimated_size())
        if sum(part.estimated_size() for part in self._pending) >= self._run_bytes:
            self._write_run()

    def partitions(self) -> Iterator[pl.DataFrame]:
        """Yield all rows in ranges of users, ascending: each about a run's size, of whole users, their rows as they
        came.
        """
        if self._pending:
            self._write_run()
        if not self._runs:
            return
        rows, user = pl.scan_parquet(self._runs, glob=False), pl.col("user")
        bounds = self._bounds()
        for low, high in zip([None, *bounds], [*bounds, None], strict=True):
            limits = [user >= low] if low is not None else []
            limits += [user < high] if high is not None else []
            yield (rows.filter(*limits) if limits else rows).collect()

    def remove(self) -> None:
        """Take the rows off the disk."""
        shutil.rmtree(self._folder)

    def _bounds(self) -> list[int | str]:
        """Return the first users of all ranges but the first: quantiles of the sample."""
        n = -(-self.n_bytes // self._run_bytes)
        sample = pl.concat(self._samples).sort() if self._samples else pl.Series([], dtype=pl.Int64)
        places = [len(sample) * part // n for part in range(1, n)]
        return sample.gather(places).unique(maintain_order=True).to_list()

    def _write_run(self) -> None:
        run = pl.concat(self._pending, rechunk=False).sort("user", maintain_order=True)
        self._pending = []
        self._samples.append(run["user"].gather_every(ROWS_PER_SAMPLE))
        path = self._folder / f"run-{len(self._runs):05d}.parquet"
        run.write_parquet(path, compression="lz4", row_group_size=ROWS_PER_GROUP)
        self._runs.append(path)

    def _become(self, schema: dict[str, pl.DataType]) -> None:
        """Cast what is kept to `schema`, run by run: numbers sort otherwise than text."""
        if self._pending:
            self._write_run()
        for path in self._runs:
            run = pl.read_parquet(path, glob=False).cast(schema).sort("user", maintain_order=True)  # type: ignore[arg-type]
            run.write_parquet(path, compression="lz4", row_group_size=ROWS_PER_GROUP)
        self._samples = [sample.cast(schema["user"]) for sample in self._samples]


class Parts:
    """Hold frames under `folder`, one after another: written once, read as often as needed, or replaced in turn."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._paths: list[Path] = []

    def __len__(self) -> int:
        return len(self._paths)

    def add(self, frame: pl.DataFrame) -> None:
        """Write one more frame."""
        path = self._folder / f"part-{len(self._paths):05d}.parquet"
        frame.write_parquet(path, compression="lz4", row_group_size=ROWS_PER_GROUP)
        self._paths.append(path)

    def replace(self, index: int, frame: pl.DataFrame) -> None:
        """Put `frame` in the place of the frame at `index`."""
        new = self._paths[index].with_suffix(".new")
        frame.write_parquet(new, compression="lz4", row_group_size=ROWS_PER_GROUP)
        new.replace(self._paths[index])

    def __iter__(self) -> Iterator[pl.DataFrame]:
        for path in self._paths:
            yield pl.read_parquet(path, glob=False)

    @property
    def columns(self) -> list[str]:
        """Return the columns of all frames."""
        return list(pl.read_parquet_schema(self._paths[0]))

    def read(self, *names: str) -> Iterator[pl.DataFrame]:
        """Yield the frames with only the columns `names`."""
        for path in self._paths:
            yield pl.read_parquet(path, columns=list(names), glob=False)
