"""What `metadata.json` says of a dataset folder, and whether the files are those that it lists."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert4rec.dataset.schema import DATASET_FORMAT, ITEMS, METADATA, MOST_IDS, SPLITS, STATE, USERS
from bert4rec.runtime.console import NO_BAR, ProgressBar
from bert4rec.runtime.errors import DataError

REMAKE = "make the dataset again with `bert4rec prepare`"

NEEDED = (USERS, ITEMS, *(f"{split}/{STATE}" for split in SPLITS))
BYTES_AT_ONCE = 1 << 22  # read for a checksum

COUNTS = ("users", "items", "rows", "train_windows", "train_positions", "validation_users", "test_users")
KINDS: dict[str, type] = {
    **dict.fromkeys(("max_len", *COUNTS), int),
    **dict.fromkeys(("source", "fingerprint"), str),
    **dict.fromkeys(("has_times", "has_ratings"), bool),
    **dict.fromkeys(("preprocessing", "files"), dict),
}
SHARES = ("repeated_targets", "left_out")  # counted since: an older folder does not say
SETTINGS: dict[str, type] = {"split": str, "sliding_step": int, "n_eval_negatives": int}


@dataclass(frozen=True)
class Metadata:
    """What is checked against: the settings and counts of `metadata.json`.

    `step`: items between the ends of two windows. `n_validated`: users to validate, None for all who can be. `instant`:
    seconds at which a split by time begins its test, None for another split. `sparse_users`, `sparse_items`: whether
    an id may be without interactions. `counts`: name → number, for the names of `COUNTS`. `files`: relative path →
    `bytes` and `sha256`. `has_target_times`: not in an older folder, even if it `has_times`. `shares`: name → split →
    `users` of `of`, for the names of `SHARES` that there are.
    """

    folder: Path
    split: str
    max_len: int
    step: int
    n_validated: int | None
    n_negatives: int
    has_times: bool
    has_ratings: bool
    has_target_times: bool
    instant: int | None
    sparse_users: bool
    sparse_items: bool
    counts: Mapping[str, int]
    files: Mapping[str, Mapping[str, Any]]
    shares: Mapping[str, Any]

    @property
    def n_users(self) -> int:
        """Users, with ids from 0."""
        return self.counts["users"]

    @property
    def n_items(self) -> int:
        """Items, with ids from `FIRST_ITEM_ID`."""
        return self.counts["items"]


def read_metadata(folder: Path) -> Metadata:
    """Read `metadata.json`; raises `DataError` where it is missing, of another format, or contradicts itself."""
    path = folder / METADATA
    metadata = _load(path)
    if (found := metadata.get("format_version")) != DATASET_FORMAT:
        raise DataError(f"{path}: format_version {found}, this program reads {DATASET_FORMAT}; {REMAKE}")
    _check_kinds(path, metadata, KINDS)
    settings = metadata["preprocessing"]
    n_validated = settings.get("validation_users")
    _check_kinds(path, settings, SETTINGS | ({} if n_validated == "all" else {"validation_users": int}))
    by_time = settings["split"] == "time"
    if by_time:
        _check_kinds(path, metadata, {"split_instant": int})
    _check_limits(path, metadata)
    _check_fingerprint(path, metadata)
    return Metadata(
        folder=folder,
        split=settings["split"],
        max_len=metadata["max_len"],
        step=settings["sliding_step"] or metadata["max_len"],
        n_validated=None if n_validated == "all" else n_validated,
        n_negatives=settings["n_eval_negatives"],
        has_times=metadata["has_times"],
        has_ratings=metadata["has_ratings"],
        has_target_times=metadata["has_times"] and bool(metadata.get("has_target_times")),
        instant=metadata["split_instant"] if by_time else None,
        sparse_users=bool(metadata.get("extends")),
        sparse_items=bool(metadata.get("extends")) or metadata["source"] == "random",
        counts={name: metadata[name] for name in COUNTS},
        files=metadata["files"],
        shares={name: metadata[name] for name in SHARES if name in metadata},
    )


def check_files(metadata: Metadata) -> int:
    """Whether the folder holds the files of `metadata.json` and no other, and every byte is as it was written.

    Returns the bytes in all. Raises `DataError` for the first file that is missing, too many, or changed.
    """
    paths = (path.relative_to(metadata.folder).as_posix() for path in metadata.folder.rglob("*") if not path.is_dir())
    found = set(paths) - {METADATA}
    for name in sorted({*metadata.files, *NEEDED} - found):
        raise DataError(f"{metadata.folder / name}: is missing; {REMAKE}")
    for name in sorted(found - {*metadata.files}):
        raise DataError(f"{metadata.folder / name}: is not listed in metadata.json; move it out of the folder")
    for name, entry in metadata.files.items():
        path, size = metadata.folder / name, entry["bytes"]
        if (is_size := path.stat().st_size) != size:
            raise DataError(f"{path}: has {is_size} bytes, metadata.json says {size}; {REMAKE}")
    total = sum(entry["bytes"] for entry in metadata.files.values())
    _check_sums(metadata, total)
    return total


def _load(path: Path) -> dict[str, Any]:
    try:
        metadata = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(
            f"{path.parent}: no dataset folder (no metadata.json); name one that `bert4rec prepare` has made"
        ) from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error}); {REMAKE}") from None
    if not isinstance(metadata, dict):
        raise DataError(f"{path}: does not describe a dataset; {REMAKE}")
    return metadata


def _check_kinds(path: Path, table: Mapping[str, Any], kinds: Mapping[str, type]) -> None:
    for name, kind in kinds.items():
        if type(table.get(name)) is not kind:  # a bool is an int for isinstance
            found = json.dumps(table.get(name), ensure_ascii=False)[:40]
            raise DataError(f"{path}: {name} = {found}: must be of type {kind.__name__}; {REMAKE}")


def _check_limits(path: Path, metadata: Mapping[str, Any]) -> None:
    """Numbers that no dataset has, on which the checks of the content would stumble."""
    settings = metadata["preprocessing"]
    for name in ("max_len", "users", "items", "n_eval_negatives"):
        if (found := (metadata | settings)[name]) < 1:
            raise DataError(f"{path}: {name} = {found}: must be at least 1; {REMAKE}")
    if max(metadata["users"], metadata["items"]) > MOST_IDS:
        raise DataError(f"{path}: more than {MOST_IDS} users or items cannot have ids; {REMAKE}")
    if not 0 <= settings["sliding_step"] <= metadata["max_len"]:
        raise DataError(
            f"{path}: sliding_step = {settings['sliding_step']}: must be from 0 to max_len = {metadata['max_len']}; "
            f"{REMAKE}"
        )
    if settings["split"] not in ("leave_one_out", "time", "none"):
        raise DataError(f'{path}: split = "{settings["split"]}": this program knows no such split; {REMAKE}')


def _check_fingerprint(path: Path, metadata: Mapping[str, Any]) -> None:
    files = metadata["files"]
    for name, entry in files.items():
        if not isinstance(entry, dict) or type(entry.get("bytes")) is not int or type(entry.get("sha256")) is not str:
            raise DataError(f"{path}: files: {name} has no size and checksum; {REMAKE}")
    if hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest() != metadata["fingerprint"]:
        raise DataError(f"{path}: the fingerprint is not that of the files listed; {REMAKE}")


def _check_sums(metadata: Metadata, total: int) -> None:
    done = 0
    with ProgressBar(total, form=NO_BAR) as bar:
        for name, entry in metadata.files.items():
            digest = hashlib.sha256()
            with (metadata.folder / name).open("rb") as file:
                while block := file.read(BYTES_AT_ONCE):
                    digest.update(block)
                    done += len(block)
                    if bar.is_due():
                        how_far = f"{done:,} of {total:,} bytes for the checksums"
                        bar.show(done, f"read {how_far} ({done / total:.0%}, {bar.seconds:.0f} s)")
            if digest.hexdigest() != entry["sha256"]:
                raise DataError(f"{metadata.folder / name}: its checksum is not that of metadata.json; {REMAKE}")
