"""`bert4rec check DATASET_DIR`: check that a dataset folder is complete and that no target leaks into the training."""

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert4rec.config.stored import dataset_folder
from bert4rec.runtime.console import log_to_terminal, visible
from bert4rec.runtime.errors import DataError

COUNTED = ("train_positions", "validation_users", "test_users", "users", "items", "rows")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the dataset folder."""
    parser.description = (
        "Check that every byte is as it was written, every target is where the split puts it, training ends before "
        "the targets, and no negative was taken by its user. Exit status 2: the first thing that is wrong, in one line."
    )
    parser.add_argument("folder", metavar="DATASET_DIR", help="one dataset folder, or its address in object storage")


def run(arguments: argparse.Namespace) -> int:
    """Check a dataset folder and print its counts; return 0. Raises `UserError` for the first thing that is wrong."""
    # Imported late, because Arrow takes time to import.
    from bert4rec.dataset.check import check_dataset
    from bert4rec.dataset.findings import findings

    log_to_terminal(stream="stderr")
    started = time.monotonic()
    folder = dataset_folder(arguments.folder)
    try:
        metadata = check_dataset(folder)
    except OSError as error:
        raise DataError(f"{error.filename or folder}: cannot be read: {error.strerror}") from None
    print(visible(summary(folder, metadata)))
    for finding in findings(metadata):
        print(visible(f"  {finding}"))
    print(f"complete, and no target is in the training part: checked in {time.monotonic() - started:.1f} s")
    return 0


def summary(folder: Path, metadata: Mapping[str, Any]) -> str:
    """Return the checked counts of a folder in a few lines."""
    settings, n_bytes = metadata["preprocessing"], sum(entry["bytes"] for entry in metadata["files"].values())
    counts = {"files": len(metadata["files"]), "bytes": n_bytes} | {name: metadata[name] for name in COUNTED}
    if settings["split"] != "none":
        counts["negatives per user and protocol"] = settings["n_eval_negatives"]
        for split, share in metadata["left_out"].items():
            counts[f"{split} users without negatives"] = share["users"]
    return "\n".join([f"{folder}", *(f"  {name.replace('_', ' '):32}{count:>15,}" for name, count in counts.items())])
