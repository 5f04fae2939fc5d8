"""What lies elsewhere as files of this machine, so that all stages read those alone."""

import glob
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bert4rec.config.tables import Data
from bert4rec.config.urls import is_url, without_secrets
from bert4rec.prepare.progress import Progress
from bert4rec.prepare.read.remote import copy_remote
from bert4rec.prepare.read.sources import named_columns
from bert4rec.runtime.errors import DataError


@dataclass(frozen=True)
class LocalFiles:
    """Hold the settings `data` with paths of this machine alone; `names`: of a path that is a copy its address."""

    data: Data
    names: Mapping[str, str] = field(default_factory=dict)

    def named(self, text: str) -> str:
        """Return `text` with the addresses in place of the paths of copies."""
        for path, url in self.names.items():
            text = text.replace(path, url)
        return text


@contextmanager
def local_files(data: Data, folder: Path, progress: Progress) -> Iterator[LocalFiles]:
    """Copy the remote files that `data` names into `folder`; in the block, errors name the addresses.

    Raises `DataError` for what cannot be copied.
    """
    names: dict[str, str] = {}
    changes: dict[str, str] = {}
    columns = named_columns(data).values() if data.source == "table" else None
    for key, place, needed in (("path", data.path, columns), ("titles_path", data.titles_path, None)):
        if is_url(place):
            changes[key] = _copied(place, folder / key, needed, names, progress)
    found = LocalFiles(data.model_copy(update=changes), names)
    try:
        yield found
    except DataError as error:
        raise DataError(found.named(str(error))) from None


def _copied(
    url: str, folder: Path, columns: Collection[str] | None, names: dict[str, str], progress: Progress
) -> str:  # fmt: skip
    """Return the path or the pattern of the copies in `folder`; each is added to `names`."""
    folder.mkdir(parents=True)
    files: dict[str, str] = {}
    with progress.stage("fetch", 0) as stage, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Polars', of a bucket whose region it looks up
        for path, name, n_rows in copy_remote(url, folder, columns):
            files[str(path)] = name
            stage.advance(0, n_rows)
    names |= files
    if len(files) == 1:
        return next(iter(files))
    pattern = f"{glob.escape(str(folder))}/*"
    names[pattern] = without_secrets(url)
    return pattern
