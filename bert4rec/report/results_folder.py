"""Make a folder of results that is complete or absent, and replaces no other folder."""

import errno
import os
import platform
import shutil
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

import torch

from bert4rec.checkpoint.run_folder import numbers
from bert4rec.config.addresses import without_secrets
from bert4rec.runtime.errors import SettingsError
from bert4rec.runtime.files import sync

FOLDER_TAKEN = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)


class ResultsFolder:
    """A folder `unfinished`; `finish` renames it to `folder`, otherwise the context removes it.

    The name is `folder`-2, -3, … if `folder` exists. Raises `SettingsError` if no folder can be created there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = Path(os.path.abspath(folder))  # resolves "..", but no links
        self._shown = folder

    def __enter__(self) -> Self:
        try:
            if not self._folder.name:
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            self._folder.parent.mkdir(parents=True, exist_ok=True)
            self.unfinished = Path(tempfile.mkdtemp(".tmp", f"{self._folder.name}.", self._folder.parent))
            self.unfinished.chmod(0o755)
        except OSError as error:
            raise SettingsError(
                f"{self._shown}: cannot be made: {error.strerror}; name another folder with --output=FOLDER"
            ) from None
        return self

    def finish(self) -> Path:
        """Rename the folder, and return its final path."""
        for number in numbers():
            folder = self._folder.with_name(f"{self._folder.name}{number}")
            try:
                self.unfinished.rename(folder)  # an empty folder is replaced
            except OSError as error:
                if error.errno not in FOLDER_TAKEN:
                    raise
                continue
            sync(folder.parent)
            return self._shown.with_name(folder.name) if self._shown.name else folder
        raise AssertionError

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.unfinished, ignore_errors=True)


def environment(device: torch.device, world_size: int) -> dict[str, Any]:
    """Return the versions, the machine, the processes, and the command without secrets."""
    packages = ("torch", "torchrec", "datasets", "polars", "numpy", "pyarrow")
    return {
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
        "system": platform.platform(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu",
        "threads_per_process": torch.get_num_threads(),
        "world_size": world_size,
        "command": [without_secrets(word) for word in sys.argv],
    }
