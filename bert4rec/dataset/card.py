"""The dataset card: the `README.md` of a dataset folder, for a person and for the Hugging Face hub."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from bert4rec.dataset.format import describe, share_of


def dataset_card(
    metadata: Mapping[str, Any], folders: Mapping[str, tuple[int, Sequence[str]]], tables: Collection[str]
) -> str:
    """Return the card's text: the counts and settings of `metadata`, rows and columns of the `folders`, the `tables`.

    It names no time and no path of the machine: the same dataset has the same card.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters |= {"share": share_of, "thousands": "{:,}".format}
    present = {name for _, columns in folders.values() for name in columns}
    shown = {"folders": folders, "tables": tables, "present": present, "report": describe(metadata)}
    return environment.get_template("card.md.j2").render({**metadata, **shown})
