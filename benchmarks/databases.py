"""Rows a second out of PostgreSQL: as `prepare` copies them, as `COPY` sends them, and out of the copied file.

`python -m benchmarks.databases postgresql://ann@host/shop 1000000` makes a table there, of so many rows, and drops it.
"""

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bert4rec.sources.database import fetch_database
from bert4rec.sources.tables import typed_rows

NAME = "bert4rec_benchmark"
ROWS = f"""CREATE TABLE {NAME} AS SELECT 'user ' || n * 7919 % 100003 AS "user", n * 104729 % 20011 AS item,
  timestamptz '2024-01-01' + n * interval '7 seconds' AS time FROM generate_series(1::bigint, {{}}) n"""


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def main(url: str, n_rows: int) -> None:
    def psql(statement: str) -> None:
        subprocess.run(["psql", "-q", url, "-c", statement], check=True, stdout=subprocess.DEVNULL)

    psql(ROWS.format(n_rows))
    try:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "copy.parquet"
            columns = {"user": "user", "item": "item", "time": "time"}
            for name, work in {
                "COPY … (FORMAT binary)": lambda: psql(f"COPY {NAME} TO STDOUT (FORMAT binary)"),
                "COPY … (FORMAT csv)": lambda: psql(f"COPY {NAME} TO STDOUT (FORMAT csv)"),
                "fetch": lambda: fetch_database(url, NAME, "", file, lambda n: None, print),
                "the file": lambda: sum(len(frame) for frame, _ in typed_rows(file, "parquet", columns)),
            }.items():
                before, took = peak(), min(seconds(work) for _ in range(3))
                print(f"{name:24} {n_rows / took / 1e6:6.2f} million rows/s  peak {before:,.0f} → {peak():,.0f} MB")
    finally:
        psql(f"DROP TABLE {NAME}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
