"""The bar on a real terminal of 80 columns."""

import sys
from pathlib import Path

from tests.terminal import on_terminal, screen

ROOT = Path(__file__).parents[2]

TRAINING = """
from bert4rec.training.loop.progress import Progress
progress = Progress(shown=True)
progress.begin(1000, n_epochs=40, done=0)
try:
    for step in (1, 500):
        progress.update(step, epoch=step / 25, loss=6.54321, learning_rate=1e-3, rate=1390.4 * (step > 1), left=201.0)
    progress.say("above")
    print("READY", end="", flush=True)
    import time
    time.sleep(60)
except KeyboardInterrupt:
    progress.close()
    print("interrupted")
"""

PREPARING = """
import time
from bert4rec.runtime.console import close_bars
from bert4rec.prepare.progress import Progress
progress = Progress()
with progress.stage("read", 10) as stage:
    time.sleep(0.3)
    stage.advance(4, 24_500)
    try:
        print("READY", end="", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        close_bars()  # as where a second interrupt has kept the stage from it
        print("interrupted")
"""


def run(program: str, columns: int = 80) -> str:
    written, status = on_terminal(
        [sys.executable, "-c", program], folder=ROOT, interrupt_after="READY", columns=columns
    )
    assert status == 0, written
    return written


def test_the_bar_of_a_training_is_whole_and_stays() -> None:
    lines = screen(run(TRAINING))
    bar = "█" * 6 + "▌" + " " * 6
    assert lines == [
        "above",
        f" 50 % |{bar}| epoch 20.0/40  loss 6.543  1,390 sequences/s  3:21 left",
        "interrupted",
        "",
    ]


def test_nothing_is_wider_than_the_terminal_with_what_it_adds_itself() -> None:
    for columns in (60, 80, 120):
        for part in run(TRAINING, columns).replace("\x1b[K", "").replace("\r\n", "\r").split("\r"):
            assert len(part.partition("READY")[0].rstrip()) + len("^C") < columns


def test_the_bar_of_a_stage_has_no_stray_comma_and_goes() -> None:
    written = run(PREPARING)
    (drawn,) = [part for part in written.split("\r") if " 40 %" in part]
    figures = drawn.partition("READY")[0].split("| ")[1]
    assert figures.startswith("24,500 rows  ")
    assert ", " not in figures
    assert figures.endswith(" left")
    assert screen(written)[0] == "interrupted"
