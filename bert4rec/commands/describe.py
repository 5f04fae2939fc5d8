"""`bert4rec describe DATASET`: print what a dataset holds and what stands out, or write it as a page with charts."""

import argparse
from pathlib import Path

from bert4rec.config.stored import dataset_folder
from bert4rec.runtime.console import log_to_terminal, visible

DESCRIPTION_PAGE = "description.html"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the dataset folder and `--html`."""
    parser.description = (
        "Prints the counts of a dataset, and what stands out in its log, with the option that deals with it."
    )
    parser.add_argument("folder", metavar="DATASET", help="dataset folder, or its address in object storage")
    parser.add_argument(
        "--html", metavar="FILE", nargs="?", type=Path, const=Path(DESCRIPTION_PAGE),
        help=f"also write a page with charts (default FILE: {DESCRIPTION_PAGE} in the current folder)",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Print what a dataset holds, and write the page if asked to; return 0. Raises `UserError`."""
    from bert4rec.dataset.findings import findings
    from bert4rec.dataset.format import describe
    from bert4rec.dataset.reader import open_dataset

    log_to_terminal(stream="stderr")
    dataset = open_dataset(dataset_folder(arguments.folder), verify=False)
    print(visible("\n".join([describe(dataset.metadata), "", *map(str, findings(dataset.metadata))])))
    if arguments.html is not None:
        from bert4rec.report.dataset_page import write_dataset_page
        from bert4rec.runtime.errors import UserError

        try:
            print(f"page: {write_dataset_page(dataset, arguments.html)}")
        except OSError as error:
            raise UserError(f"{arguments.html}: cannot be written: {error.strerror}") from None
    return 0
