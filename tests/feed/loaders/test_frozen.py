"""What is there when the module is imported, in a process of its own."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
PROGRAM = "import gc, bert4rec.feed.loaders; import bert4rec.feed.loaders.frozen; print(len(gc.get_objects()))"


def test_what_is_there_is_not_searched_any_more() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1000  # of some ten thousand: what the interpreter has made since
