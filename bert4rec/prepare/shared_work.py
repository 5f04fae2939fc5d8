"""Keep the files of tasks in a bucket, for machines that share no disk.

The program and the hosts of the tasks each have a folder, in which a file has the same name as in the bucket. A path in
this folder can therefore be sent to another host. A file that is not in it yet is fetched, whole by `fetched`, or only
the ranges that are read by `open_rows`.
"""

import io
import json
import logging
import os
import pickle
import shutil
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from bert4rec.config.stored import workshop
from bert4rec.runtime import storage
from bert4rec.runtime.errors import DataError, UserError

RESULT = "result.json"
TASK_INPUTS = "inputs"  # folder of what the tasks read and no task has written
FORGOTTEN_AFTER = 86_400  # seconds without a new file, after which a host removes what is left of a preparation
logger = logging.getLogger(__name__)
_works: dict[Path, "SharedWork"] = {}  # of this process, by their folders


class SharedWork:
    """The files of the tasks of a preparation, below the address `url` and in the folder `root` of this host.

    `inputs`: files of the program's host, with their names below `url`.
    """

    def __init__(self, url: str, inputs: dict[str, str] | None = None) -> None:
        self.url, self.root, self.inputs = url, workshop(url), inputs or {}
        self.scratch: Path | None = None  # of the task that this process runs
        _works[self.root] = self

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what pickle needs: the folder of another host may have another path."""
        return SharedWork, (self.url, self.inputs)

    def address(self, path: Path) -> str:
        """Return the address of a file in `root`."""
        return f"{self.url}/{path.relative_to(self.root).as_posix()}"

    def done(self) -> set[str]:
        """Return the names of the folders of the tasks that are done."""
        return {name.removesuffix(f"/{RESULT}") for name in storage.names(self.url) if name.endswith(f"/{RESULT}")}

    def add_input(self, path: Path, names: Sequence[str] = (".",)) -> None:
        """Send a file, or the files `names` of a folder, which tasks read by this path."""
        place = f"{TASK_INPUTS}/{len(self.inputs)}-{path.name}"
        sizes = {name: (path / name).stat().st_size for name in names}

        def send(name: str) -> int:
            whole = os.path.normpath(f"{place}/{name}")
            if self._sent_before.get(whole.removeprefix(f"{TASK_INPUTS}/")) != sizes[name]:
                storage.upload(path / name, f"{self.url}/{whole}")
            return sizes[name]

        storage.in_parallel(send, sizes, sum(sizes.values()))
        self.inputs[str(path)] = place
        link = self.root / place
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(path.absolute())

    @cached_property
    def _sent_before(self) -> dict[str, int]:
        """Return the inputs that an older run has sent, by their names, with their bytes."""
        return storage.names(f"{self.url}/{TASK_INPUTS}")

    def fetch(self, path: Path) -> Path:
        """Return the local file of `path`, or the folder of an input, fetched if necessary.

        What another task has written is kept as long as this task runs, what many tasks read as long as the work.
        """
        name = path.relative_to(self.root).as_posix()
        is_lasting = self.scratch is None or "/" not in name or name.startswith(f"{TASK_INPUTS}/")
        target = path if is_lasting or self.scratch is None else self.scratch / name
        if not target.exists():
            self._fetch(name, target, storage.names(self.address(path)) if name.startswith(f"{TASK_INPUTS}/") else ())
        return target

    def _fetch(self, name: str, target: Path, names: Collection[str] = ()) -> None:
        """Fetch a file, or the files `names` of a folder: whole, since other processes of this host may wait for it."""
        part = target.with_name(f".{uuid.uuid4().hex}")
        for inner in names or ["."]:
            (part / inner).parent.mkdir(parents=True, exist_ok=True)
            storage.download(f"{self.url}/{os.path.normpath(f'{name}/{inner}')}", part / inner)
        try:
            part.rename(target)
        except OSError:  # another process was as fast with a folder
            if not target.exists():
                raise
            shutil.rmtree(part)

    def fetch_files(self, folder: Path, patterns: Sequence[str]) -> None:
        """Fetch the files of a task's folder that fit one of the `patterns`."""
        for name in storage.names(self.address(folder)) if patterns else ():
            if any(fnmatch(name, pattern) for pattern in patterns) and not (folder / name).exists():
                self._fetch(f"{folder.name}/{name}", folder / name)

    def remove(self, stage: str, patterns: Sequence[str]) -> None:
        """Remove the files of a stage's tasks that fit one of the `patterns`."""
        wanted = [f"{stage}-??????/{pattern}" for pattern in patterns]
        names = [name for name in storage.names(self.url) if any(fnmatch(name, pattern) for pattern in wanted)]
        storage.for_each(lambda name: storage.remove(f"{self.url}/{name}"), names)

    def run(self, task: Callable[..., dict[str, Any]], name: str, packed: bytes) -> dict[str, Any]:
        """Return what a task returns; it runs unless the bucket has its result."""
        if (text := storage.read(f"{self.url}/{name}/{RESULT}")) is None:
            self._forget_others()
            place = self.root / f"task-{uuid.uuid4().hex}"
            attempt, self.scratch = place / "written", place / "fetched"
            attempt.mkdir(parents=True)
            try:
                text = self._named(json.dumps(task(attempt, *self.unpack(packed))), _in_json).encode()
                sizes = {path.relative_to(attempt).as_posix(): path.stat().st_size for path in _files(attempt)}

                def send(file: str) -> int:
                    storage.upload(attempt / file, f"{self.url}/{name}/{file}")
                    return sizes[file]

                storage.for_each(send, sizes)
                storage.write(f"{self.url}/{name}/{RESULT}", text)
            except UserError as error:
                error.args = tuple(self._named(str(part)) for part in error.args)
                raise
            finally:
                self.scratch = None
                shutil.rmtree(place, ignore_errors=True)
        result: dict[str, Any] = json.loads(text)
        return result

    def _named(self, text: str, written: Callable[[str], str] = str) -> str:
        """Return `text` with the inputs called as on the program's host; `written`: how `text` has a path."""
        for path, name in self.inputs.items():
            text = text.replace(written(str(self.root / name)), written(path))
        return text

    def pack(self, arguments: Sequence[Any]) -> bytes:
        """Return the arguments of a task as bytes in which paths of this host are names."""
        content = io.BytesIO()
        _Packer(content, self._name_of).dump(arguments)
        return content.getvalue()

    def unpack(self, packed: bytes) -> Sequence[Any]:
        """Return the arguments of a task with paths of this host."""
        arguments: Sequence[Any] = _Unpacker(io.BytesIO(packed), self.root).load()
        return arguments

    def _name_of(self, value: Any) -> str | None:
        if not isinstance(value, Path):
            return None
        if value.is_relative_to(self.root):
            return value.relative_to(self.root).as_posix()
        return self.inputs.get(str(value))

    def _forget_others(self) -> None:
        """Remove what preparations that ended long ago have left on this host."""
        for other in self.root.parent.parent.glob("*/[!.]*.work-*"):
            if other != self.root and time.time() - other.stat().st_mtime > FORGOTTEN_AFTER:
                shutil.rmtree(other, ignore_errors=True)

    def close(self, *, is_kept: bool) -> None:
        """Remove the files on this host, and unless they are kept those in the bucket."""
        _works.pop(self.root, None)
        shutil.rmtree(self.root, ignore_errors=True)
        if not is_kept:
            try:
                storage.remove_all(self.url)
            except DataError as error:  # the dataset is made, or another error says why it is not
                logger.warning(f"{error}; then remove {self.url}")


def fetched(path: Path) -> Path:
    """Return a file that a task reads, on this host."""
    work = _work_of(path)
    return path if work is None or path.exists() else work.fetch(path)


@contextmanager
def open_rows(path: Path) -> Iterator[pa.NativeFile]:
    """Yield an open file for a task that reads a part of it: from the disk, or those bytes from the bucket."""
    work = _work_of(path)
    file = pa.OSFile(str(path), "rb") if work is None or path.exists() else storage.open_ranges(work.address(path))
    with file:
        yield file


def is_shared(path: Path) -> bool:
    """Return whether a file is in a bucket, and not on this host."""
    return _work_of(path) is not None and not path.exists()


def send(path: Path) -> None:
    """Send a file that the program has written for tasks, if their files are in a bucket."""
    if (work := _work_of(path)) is not None:
        storage.upload(path, work.address(path))


def _work_of(path: Path) -> SharedWork | None:
    return next((work for root, work in _works.items() if path.is_relative_to(root)), None)


def _in_json(text: str) -> str:
    return json.dumps(text)[1:-1]


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


class _Packer(pickle.Pickler):
    def __init__(self, content: io.BytesIO, name_of: Callable[[Any], str | None]) -> None:
        super().__init__(content)
        self._name_of = name_of

    def persistent_id(self, value: Any) -> str | None:
        return self._name_of(value)


class _Unpacker(pickle.Unpickler):
    def __init__(self, content: io.BytesIO, root: Path) -> None:
        super().__init__(content)
        self._root = root

    def persistent_load(self, name: str) -> Path:
        return self._root / name
