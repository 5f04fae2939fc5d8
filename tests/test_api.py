"""The package from Python: prepare, train, load; nothing said, nothing left behind."""

import asyncio
import contextlib
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import bert4rec
from bert4rec.config.tables import Config
from bert4rec.dataset.runs import link_catalogue
from bert4rec.runtime.errors import DataError, SettingsError
from tests.checks import one_line
from tests.conftest import SHORT, SMALL
from tests.folders import contents
from tests.runs import FORWARD, in_step
from tests.training.test_parts import snapshot

ROOT = Path(__file__).parents[1]

# Somebody else's program, in which any warning is an error, and nothing may be said.
PROGRAM = """
import json, logging, os, signal, sys, warnings
from pathlib import Path
assert not any(name in sys.modules for name in ("torch", "polars", "pydantic"))
from bert4rec import load, prepare, train
settings = json.loads(sys.argv[1])

def state():
    root = logging.getLogger()
    return (dict(os.environ), list(warnings.filters), root.level, list(root.handlers), sys.stdout, sys.stderr,
            logging.getLogger("bert4rec").handlers, [signal.getsignal(n) for n in (2, 15, 1)])

before = state()
dataset = prepare(settings)
assert state() == before, (state(), before)
run = train(settings)
assert state() == before, (state(), before)
import bert4rec.prepare.engine
from bert4rec import prepare as still
assert still is prepare and "matplotlib.pyplot" not in sys.modules
n_found = len(run.load().recommend([[1, 2]], 3)[0])
Path("found").write_text(json.dumps([repr(dataset), str(run.folder), n_found]))
"""


@pytest.mark.long
def test_a_program_of_others_prepares_trains_and_recommends(small_folder: Path, tmp_path: Path) -> None:
    settings = SMALL | {"training.n_epochs": 1}
    command = [sys.executable, "-W", "error", "-c", PROGRAM, json.dumps(settings)]
    variables = os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert json.loads((tmp_path / "found").read_text()) == [
        "Dataset('data/synthetic': 60 users, 130 items, 915 interactions)", "runs/synthetic", 3,
    ]  # fmt: skip
    assert contents(tmp_path / "data/synthetic") == contents(small_folder)  # that which the command has made


@pytest.fixture
def settings(make: Callable[..., Config], small_folder: Path, tmp_path: Path, alone: None) -> dict[str, Any]:
    return SMALL | SHORT | {"data.dataset_dir": small_folder, "run.dir": tmp_path / "runs"}


def test_ctrl_c_is_a_keyboard_interrupt_when_all_is_saved_and_the_run_goes_on(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In an event loop, as in a notebook, which has handlers of its own."""
    received: list[int] = []

    async def cell() -> bert4rec.Run:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, received.append, signal.SIGUSR1)
        before = (snapshot(), [signal.getsignal(number) for number in (1, 2, 15)])
        with monkeypatch.context() as patch:
            in_step(patch, *FORWARD, 10, sent=signal.SIGINT)
            with pytest.raises(KeyboardInterrupt, match=r"^stopped by SIGINT: saved after step 1\d; continue with: "):
                bert4rec.train(settings)
        assert (snapshot(), [signal.getsignal(number) for number in (1, 2, 15)]) == before
        run = bert4rec.train({**settings, "resume": "auto"})
        os.kill(os.getpid(), signal.SIGUSR1)
        await asyncio.sleep(0.1)
        loop.remove_signal_handler(signal.SIGUSR1)
        return run

    heeded = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run = asyncio.run(cell())
    finally:
        signal.signal(signal.SIGINT, heeded)
    assert received == [signal.SIGUSR1]  # the loop's own way to hear of signals is there again
    assert run.folder == tmp_path / "runs" / "small"
    assert (run.report["training"]["epochs"], len(run.report["training"]["resumed"])) == (3, 1)


def test_a_training_in_another_thread_takes_the_dataset_that_a_preparation_returns(settings: dict[str, Any]) -> None:
    dataset = bert4rec.prepare({name: value for name, value in settings.items() if name.startswith(("data.", "prep"))})
    short = {"run.dir": settings["run.dir"], **SHORT, "training.n_epochs": 1}
    runs: list[bert4rec.Run] = []
    thread = threading.Thread(target=lambda: runs.append(bert4rec.train(short, dataset=dataset)))
    thread.start()
    thread.join()
    assert runs[0].report["dataset"]["fingerprint"] == dataset.metadata["fingerprint"]
    assert runs[0].report["training"]["epochs"] == 1


@pytest.mark.parametrize(
    ("function", "settings", "error", "start"),
    [
        (bert4rec.prepare, {"data.pth": "x"}, SettingsError, "data.pth: "),
        (bert4rec.prepare, {"data.path": "none.csv"}, DataError, "none.csv: "),
        (bert4rec.train, {"data.dataset_dir": "nowhere"}, DataError, "nowhere: "),
        (bert4rec.train, {"resume": "nowhere"}, SettingsError, 'run.resume = "nowhere": '),
        (bert4rec.prepare, None, DataError, "prepare: "), (bert4rec.load, None, SettingsError, "load: "),
        (bert4rec.load, "nowhere", DataError, "nowhere: "),
    ],
)  # fmt: skip
def test_what_cannot_be_is_raised_in_one_line_and_leaves_nothing(
    alone: None, function: Callable[..., Any], settings: Any, error: type[Exception], start: str
) -> None:
    before = snapshot()
    with one_line(start, error=error) as caught:
        function(settings)
    assert isinstance(caught.value, bert4rec.UserError)
    assert snapshot() == before
    with pytest.raises(AttributeError, match="trian"):
        _ = bert4rec.trian


def test_a_finished_run_is_returned_as_it_is(whole: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "bert4rec"):
        logging.getLogger("bert4rec").propagate = True
        run = bert4rec.train({"resume": whole})
    assert run.folder == whole
    assert caplog.messages[-1].startswith(str(whole))


ROWS = {
    "customer": [f"c-{row % 30}" for row in range(400)], "sku": [f"S{row * 7 % 23}" for row in range(400)],
    "at": [1_700_000_000 + row for row in range(400)],
}  # fmt: skip


def made_from(data: Any, folder: Path, **settings: Any) -> dict[str, str]:
    """The files of the dataset that differ by what was prepared alone."""
    dataset = bert4rec.prepare(data, {"data.dataset_dir": folder, **settings})
    assert dataset.metadata["created_from"]["name"] in ("frame.parquet", "log.csv")
    return {name: value for name, value in contents(folder).items() if name not in ("metadata.json", "README.md")}


def test_a_frame_is_prepared_like_the_file_with_its_rows(alone: None, tmp_path: Path) -> None:
    frame = pl.DataFrame(ROWS)
    frame.write_csv(tmp_path / "log.csv")
    expected = made_from(tmp_path / "log.csv", tmp_path / "a")
    assert made_from(str(tmp_path / "log.csv"), tmp_path / "b") == expected
    kinds: list[Any] = [frame, frame.to_arrow(), frame.with_columns(pl.col("sku").cast(pl.Categorical))]
    kinds += [frame.with_columns(pl.from_epoch("at"))]
    with contextlib.suppress(ImportError):
        import pandas as pd

        table = pd.DataFrame(ROWS)
        kinds += [table, table.set_index(pd.Index(range(7, 407))), table.set_index("customer")]
    for data in kinds:  # a frame replaces the dataset of a frame
        assert made_from(data, tmp_path / "frame") == expected
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_a_frame_does_not_replace_the_dataset_of_another_frame_that_a_run_was_trained_on(
    alone: None, tmp_path: Path
) -> None:
    frame, folder = pl.DataFrame(ROWS), tmp_path / "data" / "log"
    expected = made_from(frame, folder)
    (tmp_path / "runs" / "log").mkdir(parents=True)
    link_catalogue(folder, tmp_path / "runs" / "log")
    assert made_from(frame.to_arrow(), folder) == expected  # the same rows
    with one_line(f"{folder}: ", '{"data.replace": True}', error=DataError):
        made_from(frame.head(300), folder)
    assert made_from(frame, folder) == expected
    assert made_from(frame.head(300), folder, **{"data.replace": True}) != expected


def test_what_cannot_be_prepared_is_refused_in_one_line(alone: None, tmp_path: Path) -> None:
    frame, folder = pl.DataFrame(ROWS), {"data.dataset_dir": tmp_path / "x"}
    mixed = pa.table({"user": [1], "item": [2]})
    frame.write_csv(tmp_path / "log.csv")
    for arguments, start in (
        ((frame,), "data.dataset_dir: "), ((frame, {}), "data.dataset_dir: "), (({}, {}), "settings"),
        ((frame, {**folder, "data.path": "x.csv"}), "data.path = x.csv: "), ((frame.lazy(), folder), "prepare: "),
        (([1, 2], folder), "prepare: "), ((frame.head(0), folder), "the frame"),
        ((mixed.rename_columns(["a", "b"]), folder), "the frame"),
        ((tmp_path / "no.csv", folder), f"{tmp_path}/no.csv: "),
    ):  # fmt: skip
        with one_line(start, error=bert4rec.UserError):
            bert4rec.prepare(*arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["log.csv"]
    made_from(tmp_path / "log.csv", tmp_path / "x")
    with one_line(f"{tmp_path}/x: ", error=bert4rec.UserError):
        bert4rec.prepare(frame, folder)


def test_the_advice_of_a_frame_is_for_python(alone: None, tmp_path: Path) -> None:
    frame = pl.DataFrame(ROWS).select(x="customer", y="sku", at="at")
    settings = {"data.dataset_dir": tmp_path / "x"}
    with one_line("the frame: ", error=DataError) as caught:
        bert4rec.prepare(frame, settings)
    advice = re.search(r"\{.*\}", str(caught.value))
    assert advice
    assert "bert4rec prepare" not in str(caught.value)
    assert bert4rec.prepare(frame, settings | json.loads(advice[0])).n_items == 23
