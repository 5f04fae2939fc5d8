"""The server in a process of its own: when it is started, and what its processes find there."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
PROGRAM = """
import os, sys
from multiprocessing import forkserver
from bert4rec.feed.loaders.server import fork_server, start_ahead

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
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, program], cwd=ROOT, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert (done.stdout, done.stderr) == ("True True\n", "")
