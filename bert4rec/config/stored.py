"""Turn the place of a dataset into a folder of this host: one in object storage is brought into a cache first.

The cache has a folder for each fingerprint, which is whole or not there.
"""

import hashlib
import json
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from bert4rec.config.addresses import check_dataset_address
from bert4rec.runtime import storage
from bert4rec.runtime.errors import DataError, format_bytes, pluralize
from bert4rec.runtime.files import atomic_write, cache_folder, only_process, sha256

METADATA = "metadata.json"  # of a dataset: it is written last, and has sizes and checksums of all other files
logger = logging.getLogger(__name__)


def dataset_folder(place: str | Path) -> Path:
    """Return the folder of the dataset at `place`; for an address, that of the cache, which gets its files.

    One process of a host fetches them, and others wait; what it has fetched stays if it is killed. Raises `DataError`
    in one line if there is no dataset at an address, or if it cannot be fetched. A missing folder is no error.
    """
    try:
        place = check_dataset_address(str(place))
    except ValueError as error:
        raise DataError(f"{place}: {error}") from None
    if not storage.is_stored(place):
        return Path(place)
    content, about = stored_metadata(place)
    if about is None:
        advice = f"make it with `bert4rec prepare` and --data.dataset_dir={place}"
        raise DataError(f"{place}: expected a dataset; there is no {METADATA}; {advice}")
    folder = cached(about["fingerprint"])
    try:
        if not (folder / METADATA).is_file():
            folder.parent.mkdir(parents=True, exist_ok=True)
            with only_process(folder.parent):
                if not (folder / METADATA).is_file():
                    _fetch(place, about["files"], content, folder)
        elif (folder / METADATA).read_bytes() != content:  # when and from what it was made does not count
            atomic_write(folder / METADATA, content)
    except OSError as error:
        if isinstance(error, DataError):
            raise
        reason = f"{error.strerror or error}; set XDG_CACHE_HOME to a folder with room"
        raise DataError(f"{error.filename or folder}: {reason}") from None
    return folder


def cached(fingerprint: str) -> Path:
    """Return the folder in the cache for the dataset with this fingerprint, whether it is there or not."""
    return cache_folder() / "datasets" / fingerprint


def stored_metadata(url: str) -> tuple[bytes, dict[str, Any] | None]:
    """Return `metadata.json` of the dataset at an address, as it is and read; None without one. Raises `DataError`."""
    content = storage.read(f"{url}/{METADATA}")
    if content is None:
        return b"", None
    try:
        about: dict[str, Any] = json.loads(content)
        files, fingerprint = about["files"], about["fingerprint"]
        is_sound = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest() == fingerprint
        is_sound = is_sound and all(map(_is_inside, files)) and all(file["bytes"] >= 0 for file in files.values())
    except (ValueError, LookupError, TypeError, AttributeError):
        is_sound = False
    if not is_sound:
        raise DataError(f"{url}/{METADATA}: does not describe a dataset; prepare it again")
    return content, about


def _is_inside(name: str) -> bool:
    """Return whether the name of a file stays in its folder."""
    return not PurePosixPath(name).is_absolute() and ".." not in PurePosixPath(name).parts


def _fetch(url: str, files: Mapping[str, Mapping[str, Any]], metadata: bytes, folder: Path) -> None:
    """Fetch the files of the dataset at `url` into `folder`, which gets its name when it has them all."""
    unfinished, n_bytes = folder.with_name(f".{folder.name}.new"), sum(file["bytes"] for file in files.values())

    def fetch(name: str) -> int:
        file, path = files[name], unfinished / name
        if not path.is_file() or path.stat().st_size != file["bytes"]:
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(f".{path.name}.part")
            storage.download(f"{url}/{name}", part)
            if part.stat().st_size != file["bytes"] or sha256(part) != file["sha256"]:
                part.unlink()
                raise DataError(f"{url}/{name}: is not as {METADATA} describes it; if it is being replaced, try again")
            part.replace(path)
        return int(file["bytes"])

    what = f"{pluralize(len(files), 'file')}, {format_bytes(n_bytes)}"
    logger.info(f"{url}: fetching {what}")
    storage.in_parallel(fetch, files, n_bytes)
    shutil.rmtree(folder, ignore_errors=True)  # without metadata.json: not whole
    (unfinished / METADATA).write_bytes(metadata)
    unfinished.rename(folder)
    logger.info(f"{url}: is in {folder}")


def workshop(url: str) -> Path:
    """Return the folder of this host where a dataset is made that then goes to this address."""
    return cache_folder() / "prepare" / hashlib.sha256(url.encode()).hexdigest()[:16] / PurePosixPath(url).name
