"""Which runs were trained on a dataset, and their own links to its items, which outlive the dataset."""

import contextlib
import os
import shutil
from pathlib import Path

from bert4rec.dataset.format import METADATA, fingerprint_of
from bert4rec.dataset.reader import files_of_items, read_metadata
from bert4rec.runtime.files import link_or_copy, shortened

CATALOGUE = "items"  # folder in a run: links to the items of its dataset, and to `metadata.json`
MOST_NAMED = 3  # runs that a message names


def link_catalogue(dataset: Path, run: Path) -> None:
    """Give the folder `run` links to the items of its `dataset`, and note beside the dataset where its runs are.

    The files are copied where links cannot be made. A dataset on a read-only disk gets no note.
    """
    links = run / CATALOGUE
    if fingerprint_of(links) != fingerprint_of(dataset):
        shutil.rmtree(links, ignore_errors=True)
        for name in files_of_items(read_metadata(dataset)):
            link_or_copy(dataset / name, links / name)
        shutil.copyfile(dataset / METADATA, links / METADATA)  # says that all links are there
    note, parent = _note(dataset), run.resolve().parent
    with contextlib.suppress(OSError):
        lines = _lines(note)
        for line in (os.path.relpath(parent, note.parent), str(parent)):  # for folders that move together, or alone
            if line not in lines:
                with note.open("a", encoding="utf-8") as file:
                    file.write(f"{line}\n")


def runs_of(dataset: Path) -> list[Path]:
    """Return the runs that were trained on what the folder `dataset` holds now, unless they were removed or moved."""
    note, fingerprint = _note(dataset), fingerprint_of(dataset)
    links = {path.resolve() for line in _lines(note) for path in (note.parent / line).glob(f"*/{CATALOGUE}")}
    return [shortened(path.parent) for path in sorted(links) if fingerprint and fingerprint_of(path) == fingerprint]


def named(runs: list[Path]) -> str:
    """Return the names of the runs, at most three of them, and a verb.

    >>> named([Path("runs/a")]), named([Path("a"), Path("b"), Path("c"), Path("d")])
    ('runs/a was', 'a, b, c and 1 more were')
    """
    names = ", ".join(map(str, runs[:MOST_NAMED]))
    more = f" and {len(runs) - MOST_NAMED} more" if len(runs) > MOST_NAMED else ""
    return f"{names}{more} {'was' if len(runs) == 1 else 'were'}"


def _note(dataset: Path) -> Path:
    """Return the file beside a dataset with the folders of its runs, a line each: the dataset itself never changes."""
    place = dataset.resolve()
    return place.with_name(f".{place.name}.runs")


def _lines(note: Path) -> list[str]:
    try:
        return note.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
