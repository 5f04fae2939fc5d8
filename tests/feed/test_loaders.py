"""Loader processes: their group, their server, their end; each in a process of its own."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch import ROOT, environment, start

SERVER = """
import gc, os, sys
from multiprocessing import forkserver
from bert4rec.feed.fork_server import fork_server, start_ahead

def tell(pipe):
    n_objects = len(gc.get_objects())
    sys.path.clear()  # what is not there yet cannot be imported any more
    import bert4rec.feed.batches, bert4rec.__main__
    pipe.send((os.getppid(), os.getpgrp(), os.getpgid(os.getppid()), n_objects))

if __name__ == "__main__":
    start_ahead()
    assert "torch" not in sys.modules
    server = forkserver._forkserver._forkserver_pid
    ours, theirs = fork_server().Pipe()
    process = fork_server().Process(target=tell, args=(theirs,))
    process.start()
    parent, group, group_of_parent, n_objects = ours.recv()
    process.join()
    print(parent == server, group == group_of_parent == server != os.getpgrp(), n_objects < 3000)
"""


def test_a_server_that_was_started_ahead_has_what_loader_processes_need(tmp_path: Path) -> None:
    """Without torch in the process that starts it, out of the launcher's group and of garbage collection."""
    program = tmp_path / "program.py"
    program.write_text(SERVER)
    done = start([sys.executable, str(program)], PYTHONPATH=str(ROOT))
    assert (done.stdout, done.stderr) == ("True True True\n", "")


KILLED = """
import os, signal, sys
from multiprocessing import active_children
from pathlib import Path
from bert4rec.feed.batches import TrainingBatches, Windows
from bert4rec.feed.masking import Masking
from bert4rec.dataset.histories import Histories, TrainingWindows
from bert4rec.runtime.collectives import Partition
if __name__ == "__main__":
    windows = TrainingWindows(Histories(Path(sys.argv[1]), 10**6), max_len=12, step=12)
    batches = TrainingBatches(
        Windows(windows, Masking(1, 10**6, 0.2, 0.1, 1.0, 0.0)), Partition(), n_epochs=9, per_device=2, seed=1
    ).batches(num_workers=2)
    next(batches)
    print(*(child.pid for child in active_children()), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.long
def test_loader_processes_end_with_a_training_that_is_killed(small_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "killed.py").write_text(KILLED)
    command, variables = (
        [sys.executable, str(tmp_path / "killed.py"), str(small_folder)],
        environment(PYTHONPATH=str(ROOT)),
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, env=variables, **pipes) as process:
        output, _ = process.communicate(timeout=900)  # it ends when no process has the pipe open
    assert process.returncode == -signal.SIGKILL
    assert len(output.split()) == 2
