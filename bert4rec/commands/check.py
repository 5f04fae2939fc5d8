"""`bert4rec check DATASET_DIR`: the checks in their order, and what they have shown."""

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bert4rec.runtime.console import log_to_terminal
from bert4rec.runtime.errors import DataError

if TYPE_CHECKING:
    from bert4rec.dataset.check.metadata import Metadata
    from bert4rec.dataset.check.tally import Tally

SUMMARY = "whether a dataset folder is whole and leaks nothing, proven row by row"

RULES = {
    "leave_one_out": "the last item of each user with 3 or more, nothing of it in train or validation",
    "time": "the first item after the instant of the split, nothing from then on in train or validation",
    "none": "no test, all interactions are in train",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The dataset folder."""
    parser.description = (
        "Proves that a dataset folder is whole and that nothing leaks, by position: every byte as it was written, "
        "every training window where it must be, every target behind the history that is trained on, no negative that "
        "its user has taken. Exit status 2: the first thing that is wrong, in one line."
    )
    parser.add_argument("folder", metavar="DATASET_DIR", type=Path, help="one dataset folder")


def run(arguments: argparse.Namespace) -> int:
    """Check a dataset folder, and print what was shown; the exit status: 0, or 130 when stopped.

    Raises `UserError` for the first thing that is wrong with the folder.
    """
    # Only now, because importing Arrow takes time that the other commands need not wait for.
    from bert4rec.dataset.check.content import check_content
    from bert4rec.dataset.check.metadata import check_files, read_metadata

    log_to_terminal(stream="stderr")
    started = time.monotonic()
    try:
        metadata = read_metadata(arguments.folder)
        size = check_files(metadata)
        tally = check_content(metadata)
    except OSError as error:
        raise DataError(f"{error.filename or arguments.folder}: cannot be read: {error.strerror}") from None
    except KeyboardInterrupt:
        print("stopped: nothing was shown", file=sys.stderr)
        return 130
    print(summary(metadata, tally, size))
    print(f"whole, and nothing leaks: checked in {time.monotonic() - started:.1f} s")
    return 0


def summary(metadata: "Metadata", tally: "Tally", size: int) -> str:
    """What was shown of the folder of `size` bytes, with its counts, in a few lines."""
    again = f", {tally.overlaps:,} positions that overlap the same in both" if metadata.step < metadata.max_len else ""
    parallel = [name for name, there in (("times", metadata.has_times), ("ratings", metadata.has_ratings)) if there]
    left_out = tally.shares["left_out"].total()
    drawn = 2 * metadata.n_negatives * (tally.validated + tally.tested - left_out)
    without = f"; {left_out:,} rows without, of users with too few unseen items" if left_out else ""
    rows = {
        "files": f"{len(metadata.files)} with {size:,} bytes: sizes and checksums as in metadata.json, no other file",
        "train": f"{tally.windows:,} windows, each where it must be{again}; {tally.positions:,} positions",
        "validation": f"{tally.validated:,} users: the training history, and the item that comes next as the target",
        "test": f"{tally.tested:,} users: all before the target; {RULES[metadata.split]}",
        "negatives": f"{drawn:,}, {metadata.n_negatives} a user and protocol: distinct, none that the user has taken"
        + without,
        "lists": f"items{''.join(f', {name}' for name in parallel)}: ids in range"
        + (", oldest first" if metadata.has_times else "")
        + (", finite" if metadata.has_ratings else ""),
        "tables": f"{metadata.n_users:,} users, {metadata.n_items:,} items: "
        "distinct originals, counts as in the splits",
        "interactions": f"{tally.rows:,}",
    }
    if metadata.split == "none":
        del rows["validation"], rows["negatives"]
        rows["test"] = RULES["none"]
    return "\n".join([f"{metadata.folder}", *(f"  {name:13} {text}" for name, text in rows.items())])
