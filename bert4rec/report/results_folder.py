"""A folder of results that is there whole or not at all, and takes the place of no other."""

import errno
import os
import shutil
import tempfile
from pathlib import Path
from typing import Self

from bert4rec.checkpoint.run_folder import numbers
from bert4rec.runtime.errors import SettingsError
from bert4rec.runtime.files import sync

TAKEN = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)


class ResultsFolder:
    """As a context: the folder `unfinished`, which becomes `folder` by `finish`, and is gone at the end if it has not.

    `folder`-2, -3, … where something stands there. Raises `SettingsError` where nothing can be made there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = Path(os.path.abspath(folder))  # of "..", and not of links
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
        """Give the folder its name; which one that is."""
        for number in numbers():
            folder = self._folder.with_name(f"{self._folder.name}{number}")
            try:
                self.unfinished.rename(folder)  # an empty folder may stand there
            except OSError as error:
                if error.errno not in TAKEN:
                    raise
                continue
            sync(folder.parent)
            return self._shown.with_name(folder.name) if self._shown.name else folder
        raise AssertionError

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.unfinished, ignore_errors=True)
