"""Updates in real processes: killed at random moments, and on two processes."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from bert4rec import load
from bert4rec.checkpoint.models_folder import read_updates
from bert4rec.dataset.check import check_dataset
from bert4rec.update.versions import make_first_version
from tests.launch import ROOT
from tests.runs import tensors_of
from tests.update.conftest import champion

MOST_KILLS = 8  # of an update
pytestmark = [
    pytest.mark.long,  # three minutes
    pytest.mark.usefixtures("alone", "quick"), pytest.mark.filterwarnings("ignore::FutureWarning"),
]  # fmt: skip


def update(model: Path, number: int, *before: str) -> subprocess.Popen[bytes]:
    """An update of a model with the rows of a day, in a process of its own."""
    day = model.parents[1] / f"day-{number}.csv"
    command = [sys.executable, *before, "-m", "bert4rec", "update", str(model), f"--data={day}"]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def test_updates_that_are_killed_at_random_moments_end_with_the_bits_of_unbroken_ones(
    shop: Path,
    first_run: Path,
    tmp_path: Path,
) -> None:
    make_first_version(other := tmp_path / "models" / "unbroken", first_run)
    numbers, seconds, n_kills = (3, 4, 5), [], 0
    for number in numbers:
        began = time.monotonic()
        assert update(other, number).wait(300) == 0
        seconds.append(time.monotonic() - began)
    draw = random.Random(1)
    for number, usual in zip(numbers, seconds, strict=True):
        killed = 0
        while (process := update(shop, number)) is not None:
            enough = killed >= MOST_KILLS
            try:
                status = process.wait(300 if enough else draw.uniform(0.3, 0.8) * usual)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
                killed += 1
                assert load(champion(shop)).recommend([["1"]], 1)[0]  # the champion answers
                continue
            assert status in (0, 3)  # 3: it was killed when all was done, and the rows are there already
            break
        n_kills += killed
    assert n_kills >= 6
    check_dataset(shop / "dataset")
    one, two = (tensors_of((champion(place) / "checkpoints" / "best").resolve()) for place in (shop, other))
    assert all(torch.equal(one[name], two[name]) for name in one.keys() | two.keys())
    updates = ([one for one in read_updates(place) if one["decision"] != "stopped"] for place in (shop, other))
    decisions = [[update["reasons"] for update in lines] for lines in updates]
    assert decisions[0] == decisions[1]
    assert len(decisions[0]) == len(numbers)


def test_two_processes_update_a_model(shop: Path) -> None:
    process = update(shop, 3, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
    assert process.wait(300) == 0
    (line,) = read_updates(shop)
    assert line["taken"]
    assert load(champion(shop)).recommend([["1"]], 1)[0]
