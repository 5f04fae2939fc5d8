"""Seven inputs that every engine turns into the same datasets, and preparations whose processes are killed."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import polars as pl
import psutil
import pyarrow as pa

import preprocessing
from bert4rec.prepare.shared_work import RESULT
from tests.folders import contents
from tests.launch import ROOT

N = 6000
MOST_TASKS = 6  # that are done between two kills


def log(*, first_text: int = N) -> pl.DataFrame:
    """Scattered rows of 200 users; from row `first_text` on some ids are text."""
    rng = np.random.default_rng(5)
    users, items = rng.integers(0, 200, N), (90 * rng.random(N) ** 2).astype(int)
    place = np.arange(N)
    columns = {
        "user": [f"u{u}" if at > first_text and u % 3 else f"{u}" for at, u in zip(place, users, strict=True)],
        "item": [f"i{i}" if at > first_text and i % 3 else f"{i}" for at, i in zip(place, items, strict=True)],
        "at": 10**9 + rng.integers(0, 8000, N) / 4, "stars": rng.integers(1, 11, N) / 2,
        "kind": np.where(rng.random(N) < 0.4, "buy", "view"), "name": [f'The "{i}", {i % 3}' for i in items],
    }  # fmt: skip
    return pl.DataFrame(columns)


def write_inputs(place: Path) -> dict[str, list[str]]:
    """Seven inputs and their options."""
    plain, time = log(), "--data.time_column=at"
    numbers = plain.cast({"user": pl.Int64, "item": pl.Int64})
    plain.select("user", "item", "at").write_csv(place / "text.csv")
    plain.write_csv(place / "quotes.csv")
    numbers.write_parquet(place / "rows.parquet", row_group_size=1000)
    plain.select("user", "item").write_csv(place / "untimed.csv")
    log(first_text=N // 2).select("user", "item", "at").write_csv(place / "late.csv")
    items = numbers.select("item").unique().sort("item").with_columns(brand=pl.format("b{}", pl.col("item") % 7))
    items.write_parquet(place / "items.parquet")
    paths = {path.name: f"--data.path={path}" for path in place.iterdir()}
    return {
        "text": [paths["text.csv"], time, "--preprocessing.split=time"],
        "parquet": [paths["rows.parquet"], time, "--data.rating_column=stars", "--preprocessing.min_rating=2"],
        "kinds": [
            paths["quotes.csv"], time, "--data.event_column=kind", '--preprocessing.target_events=["buy"]',
            "--preprocessing.hide_before_target=2",
        ],
        "features": [
            paths["quotes.csv"], time, "--title=name", f"--items={place / 'items.parquet'}",
            "--preprocessing.ties=shuffle",
        ],
        "k-core": [
            paths["text.csv"], time, "--preprocessing.min_item_interactions=40",
            "--preprocessing.min_user_interactions=18",
        ],
        "no times": [paths["untimed.csv"], "--preprocessing.test_users=90", "--preprocessing.validation_users=50"],
        "late": [paths["late.csv"], time, "--preprocessing.split=leave_last_basket"],
    }  # fmt: skip


def prepared(place: Path, name: str, *options: str) -> dict[str, Any]:
    """The files of the dataset."""
    folder = place / name
    assert preprocessing.main([*arguments_of(folder), *options]) == 0
    assert [path.name for path in place.glob(f".{name}*")] == []
    return contents(folder)


def arguments_of(folder: Path | str) -> list[str]:
    """The options of every preparation."""
    shared = ["--config=/dev/null", "--data.source=table", f"--data.dataset_dir={folder}"]
    return [*shared, "--preprocessing.n_eval_negatives=20"]


# --- Kills ------------------------------------------------------------------------------------------------------------
DRIVER = """
import sys
import preprocessing
from tests.preparation import small_parts, small_tasks
with small_tasks(1000), small_parts(1500):
    sys.exit(preprocessing.main(sys.argv[1:]))
"""
# Kills a process of the preparation that this driver runs, and returns whether there was one.
Kill: TypeAlias = Callable[["subprocess.Popen[bytes]"], bool]


def start_driver(folder: Path | str, *options: str, code: str = DRIVER, **variables: str) -> "subprocess.Popen[bytes]":
    """Start a preparation in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments_of(folder), *options], cwd=ROOT, stdout=subprocess.DEVNULL,
        env=os.environ | variables,
    )  # fmt: skip


def work_of(folder: Path) -> list[Path]:
    """The folders with the files of tasks of the dataset `folder`."""
    return [*folder.parent.glob(f".{folder.name}.work-{'?' * 16}")]


def done_tasks(folder: Path) -> dict[str, int]:
    """The tasks that are done, by the time at which they were."""
    done = {}
    for path in (path for work in work_of(folder) for path in work.glob(f"*-??????/{RESULT}")):
        with suppress(FileNotFoundError):  # the driver has removed all of them since
            done[path.parent.name] = path.stat().st_mtime_ns
    return done


def check_whole(folder: Path) -> None:
    """Each task that has its name has its result, and files that can be read to their end."""
    for path in (path for work in work_of(folder) for path in work.glob("*-??????/**/*.*")):
        with suppress(FileNotFoundError):  # the driver has removed it since
            if path.name == RESULT:
                assert isinstance(json.loads(path.read_bytes()), dict)
            elif path.suffix == ".parquet":
                pl.read_parquet(path)
            elif path.name.startswith("part-"):
                pa.ipc.open_stream(path.read_bytes()).read_all()
            elif path.suffix == ".arrow":
                pa.ipc.open_file(path.read_bytes()).read_all()
            assert (path.parent / RESULT).is_file() or (path.parents[1] / RESULT).is_file()


def end_driver(process: "subprocess.Popen[bytes]") -> bool:
    """Kill the driver."""
    process.kill()
    return process.wait() != 0


def end_local_worker(process: "subprocess.Popen[bytes]") -> bool:
    """Kill a worker, if there is one."""
    with suppress(psutil.NoSuchProcess):
        for worker in psutil.Process(process.pid).children():
            if "serve(" in " ".join(worker.cmdline()):
                worker.kill()
                return True
    return False


def kill_on_the_way(folder: Path, options: Sequence[str], kills: Sequence[Kill], seed: int, **variables: str) -> int:
    """Prepare `folder`, do `kills` at random moments, start a killed driver again, and return how many there were.

    Between two of them some tasks are done. No task is done again.
    """
    draws, before, n_kills = random.Random(seed), dict[str, int](), 0
    process = start_driver(folder, *options, **variables)
    try:
        for kill in kills:
            target = len(before) + draws.randint(1, MOST_TASKS)
            while process.poll() is None and len(after := done_tasks(folder)) < target:
                time.sleep(0.005)
            time.sleep(draws.random() / 20)
            n_kills += kill(process)
            check_whole(folder)
            after = done_tasks(folder)
            if process.poll() == 0 or not work_of(folder):
                break
            assert before.items() <= after.items()
            before = after
            if process.poll() == -signal.SIGKILL:
                process = start_driver(folder, *options, **variables)
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.wait()
    assert [path.name for path in folder.parent.glob(f".{folder.name}*")] == []
    return n_kills
