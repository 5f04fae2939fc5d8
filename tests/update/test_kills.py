"""Updates in real processes: killed at random moments, and on two processes.

NIGHTS=25 in the environment makes as many nights instead of three.
"""

import multiprocessing
import os
import random
import subprocess
import sys
import time
from collections import Counter
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest
import torch

from bert4rec import load
from bert4rec.__main__ import main
from bert4rec.checkpoint.models_folder import read_updates
from bert4rec.dataset.check import check_dataset
from bert4rec.update.versions import make_first_version
from tests.launch import ROOT
from tests.runs import tensors_of
from tests.update.conftest import champion, day_of

NIGHTS = int(os.environ.get("NIGHTS", "3"))
MOST_KILLS = 12  # of an update
LONGEST = 300  # seconds of an update
pytestmark = [
    pytest.mark.long,  # three minutes
    pytest.mark.usefixtures("alone", "quick"), pytest.mark.filterwarnings("ignore::FutureWarning"),
]  # fmt: skip


def day_file(model: Path, number: int) -> Path:
    return model.parents[1] / f"day-{number}.csv"


def type_update(model: Path, number: int) -> None:
    """Do an update with the rows of a day, in a process of its own, and end with its status."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    sys.exit(main(["update", str(model), f"--data={day_file(model, number)}"]))


def started(model: Path, number: int) -> ForkServerProcess:
    """A process that does an update; all of them have the same imports from their server, which takes no time."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bert4rec.update.nightly", "tests.update.test_kills"])
    process = context.Process(target=type_update, args=(model, number))
    process.start()
    return process


def step_of(model: Path) -> str:
    """The last thing that an unfinished update has written."""
    files = sorted((model / "next").glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
    return files[-1].stem if files else "begin or switch"


def test_updates_that_are_killed_at_random_moments_end_with_the_bits_of_unbroken_ones(
    shop: Path,
    first_run: Path,
    tmp_path: Path,
) -> None:
    make_first_version(other := tmp_path / "models" / "unbroken", first_run)
    numbers, seconds, kills = range(3, 3 + NIGHTS), [], Counter[str]()
    for number in numbers:
        day_of(number).write_csv(day_file(shop, number))
        began = time.monotonic()
        process = started(other, number)
        process.join(LONGEST)
        assert process.exitcode in (0, 3)
        seconds.append(time.monotonic() - began)
    draw = random.Random(1)
    for number, usual in zip(numbers, seconds, strict=True):
        for n in range(MOST_KILLS + 1):
            process = started(shop, number)
            process.join(LONGEST if n == MOST_KILLS else 0.7 * draw.random() ** 2 * usual)
            if process.exitcode is not None:
                break
            process.kill()
            process.join()
            kills[step_of(shop)] += 1
            assert load(champion(shop)).recommend([["1"]], 1)[0]  # the champion answers
        assert process.exitcode in (0, 3)  # 3: it was killed when all was done, and the rows are there already
    print(kills)
    assert kills.total() >= 6
    check_dataset(shop / "dataset")
    one, two = (tensors_of((champion(place) / "checkpoints" / "best").resolve()) for place in (shop, other))
    assert all(torch.equal(one[name], two[name]) for name in one.keys() | two.keys())
    updates = ([one for one in read_updates(place) if one["decision"] != "stopped"] for place in (shop, other))
    decisions = [[update["reasons"] for update in lines] for lines in updates]
    assert decisions[0] == decisions[1]
    assert len(decisions[0]) == len(numbers)


def test_two_processes_update_a_model(shop: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command = [*launcher, "-m", "bert4rec", "update", str(shop), f"--data={day_file(shop, 3)}"]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, timeout=LONGEST).returncode == 0
    (line,) = read_updates(shop)
    assert line["taken"]
    assert load(champion(shop)).recommend([["1"]], 1)[0]
