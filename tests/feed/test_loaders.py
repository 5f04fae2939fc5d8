"""Loader processes: their group, their server, what the garbage collector leaves out; each in a process of its own."""

import os
import sys
from pathlib import Path

from tests.launch import ROOT, start

PRELOADED = """
import gc, os
before = os.getpgrp()
import bert4rec.feed.preloaded
print(before, os.getpgrp() == os.getpid(), len(gc.get_objects()))
"""


def test_a_loader_process_leaves_the_group_of_the_launcher_and_its_objects_garbage_collection() -> None:
    group, is_alone, n_objects = start([sys.executable, "-c", PRELOADED]).stdout.split()
    assert (int(group), is_alone) == (os.getpgrp(), "True")
    assert int(n_objects) < 1000  # of some ten thousand


SERVER = """
import os, sys
from multiprocessing import forkserver
from bert4rec.feed.fork_server import fork_server, start_ahead

def tell(pipe):
    sys.path.clear()  # what is not there yet cannot be imported any more
    import bert4rec.feed.batches, bert4rec.__main__
    pipe.send((os.getppid(), os.getpgrp(), os.getpgid(os.getppid())))

if __name__ == "__main__":
    start_ahead()
    assert "torch" not in sys.modules
    server = forkserver._forkserver._forkserver_pid
    ours, theirs = fork_server().Pipe()
    process = fork_server().Process(target=tell, args=(theirs,))
    process.start()
    parent, group, group_of_parent = ours.recv()
    process.join()
    print(parent == server, group == group_of_parent == server != os.getpgrp())
"""


def test_a_server_that_was_started_ahead_has_what_loader_processes_need(tmp_path: Path) -> None:
    """Without torch in the process that starts it, and out of the launcher's group."""
    program = tmp_path / "program.py"
    program.write_text(SERVER)
    done = start([sys.executable, str(program)], PYTHONPATH=str(ROOT))
    assert (done.stdout, done.stderr) == ("True True\n", "")
