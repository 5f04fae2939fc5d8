"""Dataset folders compared, and changed by hand, whole again afterwards."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import datasets

from bert4rec.runtime.files import sample_sha256, sha256


def rewrite(folder: Path, split: str, change: Callable[[datasets.Dataset], datasets.Dataset]) -> None:
    """Save a split again after `change`, and its checksums."""
    rows = change(datasets.load_from_disk(str(folder / split), keep_in_memory=True))
    shutil.rmtree(folder / split)
    rows.save_to_disk(str(folder / split))
    path = folder / "metadata.json"
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "metadata.json"]
    files = {
        path.relative_to(folder).as_posix(): {
            "bytes": path.stat().st_size,
            "sha256": sha256(path),
            "sample_sha256": sample_sha256(path),
        }
        for path in paths
    }
    path.write_text(json.dumps(json.loads(path.read_text()) | {"files": files}))


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of the folder, `metadata.json` without when and of which file it was made."""
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    metadata = json.loads(files["metadata.json"])
    for name in ("created_at", "created_from"):
        metadata.pop(name, None)
    return {**files, "metadata.json": json.dumps(metadata).encode()}


def files_of(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every file, with the time at which it was last written."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): (path.read_bytes(), path.stat().st_mtime_ns) for path in paths}
