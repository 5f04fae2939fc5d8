"""Dataset folder → run folder: `python train.py`, `torchrun … train.py` or `torchx run … --script train.py`."""

import logging
import os
import sys
import time
import warnings
from collections.abc import Sequence

from bert4rec.config import load_config, parse_command_line, usage
from bert4rec.errors import UserError

SECONDS_FOR_THE_FIRST = 5.0  # the other processes wait so long with an error, since one line is enough


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: 0 finished, 2 bad settings or input, 1 training diverged, 130 interrupted."""
    argv = sys.argv[1:] if argv is None else argv
    if "--help" in argv or "-h" in argv:
        print(usage("train.py"))
        return 0
    _quiet_libraries()
    try:
        config = load_config(*parse_command_line(argv))
        from bert4rec.run import run  # here: importing TorchRec takes seconds, a wrong setting should not wait for it

        run(config)
    except UserError as error:
        _show(error)
        return error.status
    except KeyboardInterrupt:
        return 130
    return 0


def _show(error: UserError) -> None:
    """One line from one process: the launcher ends the others when the first one ends."""
    rank = int(os.environ.get("RANK", 0))
    if rank:
        time.sleep(SECONDS_FOR_THE_FIRST)
    print(f"error: {error}" + (f" (process {rank})" if rank else ""), file=sys.stderr, flush=True)


def _quiet_libraries() -> None:
    """Hide what libraries say of their own affairs; errors stay."""
    warnings.simplefilter("ignore")
    logging.getLogger("torchrec").setLevel(logging.ERROR)
    logging.getLogger("torch").setLevel(logging.ERROR)


if __name__ == "__main__":
    from torch.distributed.elastic.multiprocessing.errors import record

    # `record` leaves the traceback of a crash in a file, where the launcher finds the first cause.
    sys.exit(record(main)())
