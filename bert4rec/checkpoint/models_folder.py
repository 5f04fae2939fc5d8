"""A models folder: versions of a model, which never change, and aliases, which move. Without torch and Arrow."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from bert4rec.runtime.errors import DataError, SettingsError, join_names
from bert4rec.runtime.files import atomic_write, shortened, sync, withdraw_directory

MODELS_PAGE = "index.html"
ALIASES = "aliases.json"  # makes a folder a models folder
UPDATES = "updates.jsonl"  # a line for each update
DATASET, VERSIONS = "dataset", "versions"  # folders
ABOUT, PACKAGE = "version.json", "package"  # what a version has besides its run
CHAMPION, CHALLENGER, PREVIOUS_CHAMPION = "champion", "challenger", "previous"
NAME_OF_VERSION = "%Y-%m-%dT%H-%M-%S"  # UTC, when its update began
VERSION_NAME = re.compile(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d(?:-(\d+))?")
WITHDRAWN = re.compile(rf"{VERSION_NAME.pattern}\.[0-9a-f]{{32}}")  # a version whose removal was interrupted


@dataclass(frozen=True)
class Version:
    """The `folder` of a version, what its `version.json` says `about` it, and the `aliases` that name it."""

    folder: Path
    about: Mapping[str, Any]
    aliases: Sequence[str]

    @property
    def name(self) -> str:
        """Return the name of the version, the time when its update began."""
        return self.folder.name

    @property
    def n_bytes(self) -> int:
        """Return the size of its files; those that other folders share count whole."""
        paths = [Path(folder, name) for folder, _, names in os.walk(self.folder) for name in names]
        return sum(path.lstat().st_size for path in paths)


def is_models_folder(path: Path) -> bool:
    """Return whether `path` is a models folder, even if it is damaged."""
    return (path / ALIASES).is_file()


def run_at(path: Path) -> Path:
    """Return the run of the champion if `path` is a models folder, else `path` itself. Raises `DataError`."""
    return version_folder(path, read_aliases(path)[CHAMPION]) if is_models_folder(path) else path


def models_folder_of(run: Path) -> Path | None:
    """Return the models folder that the folder `run` is a version of; None if it is no version."""
    versions = run.absolute().parent
    is_version = versions.name == VERSIONS and is_models_folder(versions.parent)
    return shortened(versions.parent) if is_version else None


def read_aliases(models: Path) -> dict[str, str]:
    """Return alias → name of its version; there is always a champion. Raises `DataError`."""
    path = models / ALIASES
    try:
        aliases: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
        if not all(isinstance(name, str) for name in [aliases[CHAMPION], *aliases.values()]):
            raise TypeError("a version is no text")
    except FileNotFoundError:
        advice = "make one of a run: bert4rec update MODEL --from RUN"
        raise DataError(f"{models}: expected a models folder, with {ALIASES}; {advice}") from None
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        form = f'{{"{CHAMPION}": "VERSION"}}'
        raise DataError(f"{path}: cannot be read ({error}); write {form} into it, a folder of {VERSIONS}/") from None
    return aliases


def write_aliases(models: Path, aliases: Mapping[str, str]) -> None:
    """Replace all aliases in one step: a process that reads them, on any machine, has the old or the new ones."""
    atomic_write(models / ALIASES, json.dumps(aliases, indent=1, sort_keys=True) + "\n")
    sync(models)


def set_champion(models: Path, name: str) -> None:
    """Let a version be the champion, the champion before it `previous`, and no version the challenger.

    A version that is the champion already changes nothing. Raises `DataError` if there is no such version.
    """
    aliases = read_aliases(models)
    if name != aliases[CHAMPION]:
        version_folder(models, name)
        write_aliases(models, {CHAMPION: name, PREVIOUS_CHAMPION: aliases[CHAMPION]})


def set_challenger(models: Path, name: str) -> None:
    """Let a version be the challenger. Raises `DataError` if there is no such version."""
    version_folder(models, name)
    write_aliases(models, read_aliases(models) | {CHALLENGER: name})


def roll_back(models: Path) -> dict[str, str]:
    """Let the champion and the previous one change their aliases, and return the new ones.

    A second time restores the first state. Raises `DataError` if there is no previous champion.
    """
    aliases = read_aliases(models)
    if PREVIOUS_CHAMPION not in aliases:
        raise DataError(f"{models}: no version was champion before {aliases[CHAMPION]}: there is nothing to go back to")
    version_folder(models, aliases[PREVIOUS_CHAMPION])
    aliases |= {CHAMPION: aliases[PREVIOUS_CHAMPION], PREVIOUS_CHAMPION: aliases[CHAMPION]}
    write_aliases(models, aliases)
    return aliases


def version_folder(models: Path, name: str) -> Path:
    """Return the folder of a version, given by its name. Raises `DataError` if it is missing."""
    if not VERSION_NAME.fullmatch(name) or not (folder := models / VERSIONS / name).is_dir():
        names = [version.name for version in reversed(find_versions(models))]
        raise DataError(f"{models}: has no version {name}; expected: {join_names(names) or 'a version'}")
    return folder


def find_versions(models: Path) -> list[Version]:
    """Return the versions, the oldest first. Raises `DataError` if a file cannot be read."""
    aliases = read_aliases(models)
    folders = [path for path in (models / VERSIONS).glob("*") if VERSION_NAME.fullmatch(path.name) and path.is_dir()]
    named = {folder: [alias for alias, name in aliases.items() if name == folder.name] for folder in folders}
    return [Version(folder, _about(folder), named[folder]) for folder in sorted(folders, key=_order)]


def find_version(models: Path, name: str) -> Version:
    """Return the version with this name or alias. Raises `DataError` if there is none."""
    folder = version_folder(models, read_aliases(models).get(name, name))
    return next(version for version in find_versions(models) if version.folder == folder)


def new_version_name(models: Path, began: datetime) -> str:
    """Return a name that no version and no update has, for one that `began` at a time in UTC."""
    name, number = began.strftime(NAME_OF_VERSION), 1
    updates = {update["time"] for update in read_updates(models)}  # one that was stopped has no version
    while (free := name if number == 1 else f"{name}-{number}") in updates or (models / VERSIONS / free).exists():
        number += 1
    return free


def prune(models: Path, *, keep: int) -> dict[str, int]:
    """Remove all versions but the newest `keep` and those that an alias names; return removed version → its bytes.

    Raises `SettingsError` if `keep` is below 1, and `DataError` if a version cannot be removed.
    """
    if keep < 1:
        raise SettingsError(f"--keep={keep}: must be at least 1")
    old = [version for version in find_versions(models)[:-keep] if not version.aliases]
    sizes = {version.name: version.n_bytes for version in old}
    interrupted = [path for path in (models / VERSIONS).glob("*") if WITHDRAWN.fullmatch(path.name)]
    for folder in (*interrupted, *(version.folder for version in old)):
        withdraw_directory(folder)
        if folder.exists():
            raise DataError(f"{folder}: cannot be removed; make its folder writable")
    return sizes


def read_updates(models: Path) -> list[dict[str, Any]]:
    """Return the lines of `updates.jsonl`, the oldest first; [] without one. Raises `DataError`."""
    path = models / UPDATES
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None


def appended_by(models: Path) -> set[str]:
    """Return the names of the updates whose rows the dataset has. Raises `DataError`."""
    return {update["time"] for update in read_updates(models) if update["decision"] != "stopped"}


def _about(folder: Path) -> dict[str, Any]:
    try:
        about: dict[str, Any] = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{folder / ABOUT}: cannot be read: {error}") from None
    return about


def _order(folder: Path) -> tuple[str, int]:
    match = VERSION_NAME.fullmatch(folder.name)
    assert match is not None, "other folders are no versions"
    return folder.name.removesuffix(f"-{match[1]}" if match[1] else ""), int(match[1] or 1)
