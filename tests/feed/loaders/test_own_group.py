"""The process group of whoever imports the module, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
PROGRAM = """
import os
before = os.getpgrp()
import bert4rec.feed.loaders.own_group
print(before, os.getpgrp() == os.getpid())
"""


def test_who_imports_it_leaves_the_group_of_the_launcher() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == f"{os.getpgrp()} True\n"
