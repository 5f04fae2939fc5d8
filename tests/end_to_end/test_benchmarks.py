"""The tables of large catalogues, made for real with a small one, and of early stopping."""

import sys

import pytest

from benchmarks.early_stopping import Outcome, Validation, outcome
from benchmarks.large_catalogue import Contestant, table
from tests.launch import start

TIMED = {"sequences_per_second": 100.0, "step_seconds": 0.16, "peak_memory": 5e8, "sent_per_step": 2.5e8}


@pytest.mark.long
def test_both_modes_stand_in_the_table() -> None:
    options = "--items=2000 --width=8 --processes=2 --losses=gbce --rounds=1 --seconds=0.1"
    command = [sys.executable, "-m", "benchmarks.large_catalogue", *options.split()]
    done = start(command)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "`adam` in `ddp`, `rowwise_adagrad` in `dmp`" in done.stdout
    for mode, line in zip(("`ddp`", "`dmp`"), done.stdout.splitlines()[-2:], strict=True):
        cells = [cell.strip() for cell in line.strip("| ").split("|")]
        assert cells[:4] == ["2,000", mode, "2", "`gbce`"]
        rate, step, memory, sent = (float(cell.replace(",", "")) for cell in cells[4:8])
        assert rate == pytest.approx(16 / step * 1000, rel=0.2)
        assert (memory > 50, sent > 0.01) == (True, True)


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("torch.distributed.run --standalone --nproc_per_node=2 -m benchmarks.save_pause --items=2000 --rounds=1",
         "from a copy  step "),
        ("benchmarks.item_features --items=2000 --features=50,9 --rounds=1 --seconds=0.1 --model.max_len=50",
         "a step with features takes "),
    ],
)  # fmt: skip
def test_it_measures(command: str, line: str) -> None:
    done = start([sys.executable, "-m", *command.split()])
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert line in done.stdout


def test_rounds_become_medians_of_figures_and_of_ratios() -> None:
    ddp, dmp = (Contestant(500_000, 2, "gbce", mode) for mode in ("ddp", "dmp"))
    slow, fast, faster = (TIMED | {"sequences_per_second": rate} for rate in (100.0, 1000.0, 1200.0))
    assert table({ddp: [slow, slow, fast], dmp: [fast, faster, faster]}) == (
        "| items | mode | processes | loss | sequences/s | ms a step | peak MB a process | MB sent a step | of ddp |\n"
        "|---:|---|---:|---|---:|---:|---:|---:|---:|\n"
        "| 500,000 | `ddp` | 2 | `gbce` | 100 | 160 | 500 | 250 |  |\n"
        "| 500,000 | `dmp` | 2 | `gbce` | 1,200 | 160 | 500 | 250 | 10 |"
    )


@pytest.mark.parametrize(
    ("least", "share", "steps", "found"),
    [
        (2, 0.0, 0, Outcome(1 - 0.3 / 0.4, 1 - 4 / 8, True)),  # at epoch 8, before the best of all
        (3, 0.0, 0, Outcome(0.0, 1 - 10 / 16, True)),
        (1, 0.4, 0, Outcome(1 - 0.3 / 0.4, 1 - 4 / 8, True)),  # at epoch 6 only a third of the epochs
        (9, 0.0, 0, Outcome(0.0, 1 - 10 / 18, False)),
        (2, 0.0, 81, Outcome(0.0, 1 - 10 / 14, True)),  # at epoch 8 it is too early
    ],
)
def test_what_a_rule_of_early_stopping_loses_and_saves(least: int, share: float, steps: int, found: Outcome) -> None:
    ndcg = [0.1, 0.3, 0.2, 0.2, 0.4, 0.3, 0.3, 0.3, 0.3]
    curve = [Validation(10 * epoch, epoch, value) for epoch, value in zip(range(2, 20, 2), ndcg, strict=True)]
    assert outcome(curve, least, share, steps) == found
