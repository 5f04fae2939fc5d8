"""Raw interactions → dataset folder: `python preprocessing.py …` is `bert4rec prepare …`."""

import sys
from collections.abc import Sequence

from bert4rec.runtime.startup import exit_for_missing, require_python

try:
    require_python()
    from bert4rec.__main__ import main as bert4rec
except ModuleNotFoundError as error:
    exit_for_missing(error)


def main(argv: Sequence[str]) -> int:
    """Run the command line `argv` and return the exit status: 0, or 2 for bad settings or input, 130 when stopped."""
    return bert4rec(["prepare", *argv], prog="python preprocessing.py")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
