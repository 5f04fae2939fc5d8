"""Preparation of a dataset from a CSV file, as a process of its own, beside pandas and a loop over users."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.bench.plain_preparation import FEWEST, NEGATIVES
from benchmarks.bench.timing import OURS, Case, timed
from benchmarks.large_catalogue import ROOT
from benchmarks.preprocessing import write_goodreads

PANDAS = "plain, pandas"


@contextmanager
def preparing_case(n_rows: int) -> Iterator[Case]:
    """A made-up file of Goodreads' shape → histories, all users held out, 100 + 100 negatives each."""
    with tempfile.TemporaryDirectory() as folder:
        file, target = Path(folder, "interactions.csv"), Path(folder, "dataset")
        write_goodreads(file, n_rows)
        contestants = {
            OURS: timed(lambda: prepare(file, target)),
            PANDAS: timed(lambda: prepare_plainly(file, target)),
        }
        yield Case("preprocessing", f"{n_rows:,} rows, process and imports included", "rows", n_rows, contestants)


def prepare(file: Path, folder: Path) -> None:
    """By preprocessing.py."""
    _run(
        folder, "preprocessing.py", "--config=/dev/null", "--data.source=goodreads", f"--data.path={file}",
        f"--data.dataset_dir={folder}",
        f"--preprocessing.min_user_interactions={FEWEST}", "--preprocessing.validation_users=all",
        f"--preprocessing.n_eval_negatives={NEGATIVES}",
    )  # fmt: skip


def prepare_plainly(file: Path, folder: Path) -> None:
    """By plain_preparation.py."""
    _run(folder, "-m", "benchmarks.bench.plain_preparation", str(file), str(folder))


def _run(folder: Path, *words: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, *words], cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
