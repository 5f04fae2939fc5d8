"""The manifest of a folder: which files it must have, and their checksums; what is written last and verified first.

It vouches for every byte but its own name: a checkpoint holds a pickle, so nothing of one that was damaged is read.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias

from bert4rec.runtime.files import sha256, write_whole

MANIFEST = "manifest.json"

Files: TypeAlias = dict[str, dict[str, int | str]]


def describe(folder: Path, names: Iterable[str]) -> Files:
    """Return the size and checksum of the files `names` in `folder`."""
    return {name: {"bytes": (folder / name).stat().st_size, "sha256": sha256(folder / name)} for name in names}


def seal(folder: Path, files: Files) -> None:
    """Write the manifest of `files`, all files of `folder`."""
    write_whole(folder / MANIFEST, _text(files))


def problem_of(folder: Path, *, looks_at: Callable[[int], bool] = lambda _: True) -> str:
    """Return what is wrong with `folder`, "" if nothing is; only files whose number `looks_at` accepts are read."""
    try:
        text = (folder / MANIFEST).read_text()
        files = json.loads(text)
        if text != _text(files):
            return f"{MANIFEST} is damaged"
        for number, (name, entry) in enumerate(files.items()):
            if looks_at(number) and (found := _problem_of_file(folder / name, entry)):
                return found
    except FileNotFoundError:
        return f"{MANIFEST} is missing"
    except (OSError, ValueError, AttributeError, TypeError, KeyError):
        return f"{MANIFEST} is damaged"
    return ""


def _problem_of_file(path: Path, entry: dict[str, int | str]) -> str:
    try:
        size = path.stat().st_size
        if size != entry["bytes"]:
            return f"{path.name} has {size:,} bytes, not {entry['bytes']:,}"
        return "" if sha256(path) == entry["sha256"] else f"{path.name} has another checksum"
    except FileNotFoundError:
        return f"{path.name} is missing"
    except OSError as error:
        return f"{path.name} cannot be read: {error.strerror}"


def _text(files: Files) -> str:
    """The only form that is taken: with any byte changed, the text is another one, or says something wrong."""
    return json.dumps(dict(sorted(files.items())), indent=1) + "\n"
