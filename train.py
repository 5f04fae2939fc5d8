"""Dataset folder → run folder, as `bert4rec train`; `torchrun … train.py` and `torchx … --script train.py` start it."""

import sys
from collections.abc import Sequence

from bert4rec.runtime.startup import exit_for_missing, require_python

try:
    require_python()
    from bert4rec.__main__ import main as bert4rec
except ModuleNotFoundError as error:
    exit_for_missing(error)


def main(argv: Sequence[str]) -> int:
    """The exit status: 0 finished, 2 bad settings or input, 130, 143 or 129 after SIGINT, SIGTERM or SIGHUP, else 1."""
    return bert4rec(["train", *argv], prog="python train.py")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
