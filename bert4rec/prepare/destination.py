"""Put a dataset into a folder, or at an address in object storage, and refuse what may not be replaced there."""

import itertools
import json
import logging
import shlex
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from bert4rec.config.sources import OWN_DATA
from bert4rec.config.stored import METADATA, cached, stored_metadata, workshop
from bert4rec.config.tables import Config, Data
from bert4rec.dataset.format import fingerprint_of
from bert4rec.dataset.reader import read_metadata
from bert4rec.dataset.runs import named, runs_of
from bert4rec.prepare.folder import clear_target, created_from, free_folder
from bert4rec.runtime import storage
from bert4rec.runtime.errors import DataError, format_bytes, pluralize

SENDING = ".unfinished"  # name of a file in storage while a dataset is written there
logger = logging.getLogger(__name__)


def origin_of(data: Data) -> dict[str, str]:
    """Return the entry of `metadata.json` that identifies the input."""
    return created_from(data.source, data.path, {"table": data.table, "query": data.query})


class Destination:
    """The `folder` where a dataset is made, and its `place`: the same, or an address where it is stored then."""

    def __init__(self, config: Config) -> None:
        self._config, self.place = config, config.data.place
        self.delivered: Mapping[str, str] = {}  # names of files of the new dataset that are in the bucket → addresses
        self.folder, self._is_named = Path(self.place), bool(config.data.dataset_dir)

    def before(self) -> Mapping[str, Any] | None:
        """Return what `metadata.json` says of the dataset there; None if there is none, or if it cannot be read."""
        with suppress(OSError, ValueError):
            about: dict[str, Any] = json.loads((self.folder / METADATA).read_text(encoding="utf-8"))
            return about
        return {} if (self.folder / METADATA).is_file() else None

    def runs(self) -> list[Path]:
        """Return the runs that were trained on the dataset there, as far as they are known."""
        return runs_of(self.folder)

    def fingerprint(self) -> str:
        """Return the fingerprint of the dataset there; "" if there is none."""
        return fingerprint_of(self.folder)

    def free(self, fingerprint: str = "") -> str:
        """Return a place like this one that is free, or holds the dataset with this `fingerprint`."""
        return str(free_folder(self.folder, fingerprint))

    def recipe(self) -> Mapping[str, Any]:
        """Return the settings of [preprocessing] of the dataset there. Raises `DataError` if it is damaged."""
        settings: Mapping[str, Any] = read_metadata(self.folder)["preprocessing"]
        return settings

    def clear(self) -> None:
        """Remove what killed runs left. Raises `DataError` if there is anything but a dataset."""
        clear_target(self.folder)

    def refuse_early(self) -> None:
        """Raise `DataError` if it is known before the work that the dataset there may not be replaced."""
        if self._config.data.replace:
            return
        if not (runs := self.runs()):
            self.refuse_another_input()
        elif self._is_named and self.recipe() != self._config.preprocessing.recipe:
            self._refuse_to_replace(runs)

    def refuse_another_input(self) -> None:
        """Raise `DataError` if the dataset there was made from another input.

        Of the formats of a user's own data the path identifies the input; else the source does.
        """
        data = self._config.data
        about, origin, name = self.before(), origin_of(data), "an input that it does not name"
        if about is None:
            return
        with suppress(LookupError, TypeError, AttributeError):
            before = about["created_from"]
            is_same_path = data.source not in OWN_DATA or before.get("path_sha256") == origin.get("path_sha256")
            if before["source"] == origin["source"] and is_same_path:
                return
            name = _input_name(before)
        new = f"a {origin['name']} that lies elsewhere" if name == _input_name(origin) else _input_name(origin)
        raise DataError(
            f"{self.place}: holds a dataset made from {name}, this one is from {new}; {self._how_to_keep()}"
        )

    def receive(self, new: Path) -> Path | None:
        """Return the folder for the dataset that was made in `new`; None if it is stored now, and not in a folder.

        Raises `DataError` like `refuse_early`: another preparation, or a training, may have begun and finished.
        """
        fingerprint = fingerprint_of(new)
        self.refuse_early()
        is_free = self._config.data.replace or not (runs := self.runs()) or self.fingerprint() == fingerprint
        if not is_free and self._is_named:
            self._refuse_to_replace(runs)
        return self._take(new, fingerprint, is_free=is_free)

    def _take(self, new: Path, fingerprint: str, *, is_free: bool) -> Path | None:
        if not is_free:
            self.place = self.free(fingerprint)
            self.folder = Path(self.place)
        return self.folder

    def _refuse_to_replace(self, runs: list[Path]) -> NoReturn:
        """Raise `DataError`: the dataset there, on which `runs` were trained, would be replaced by another one."""
        raise DataError(
            f"{self.place}: {named(runs)} trained on this dataset, and the new one differs; {self._how_to_keep()}"
        )

    def _how_to_keep(self) -> str:
        """Return the advice for a dataset that would be replaced: another place, or the option that replaces it."""
        option = shlex.quote(f"--data.dataset_dir={self.free()}")
        return f'to keep both add {option}, to replace it --replace (in Python {{"data.replace": True}})'


class StoredDestination(Destination):
    """An address, and the folder of this host where its dataset is made.

    The runs on it that are known are those of this host, which has fetched it.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.folder = workshop(self.place)

    def before(self) -> Mapping[str, Any] | None:
        """Return what `metadata.json` says of the dataset there; None if there is none."""
        return stored_metadata(self.place)[1]

    def fingerprint(self) -> str:
        """Return the fingerprint of the dataset there; "" if there is none."""
        return str((self.before() or {"fingerprint": ""})["fingerprint"])

    def runs(self) -> list[Path]:
        """Return the runs of this host that were trained on the dataset there."""
        fingerprint = self.fingerprint()
        return runs_of(cached(fingerprint)) if fingerprint else []

    def recipe(self) -> Mapping[str, Any]:
        """Return the settings of [preprocessing] of the dataset there."""
        settings: Mapping[str, Any] = (self.before() or {}).get("preprocessing", {})
        return settings

    def free(self, fingerprint: str = "") -> str:
        """Return the first of the address and -2, -3, … that has no dataset."""
        others = (f"{self.place}-{number}" for number in itertools.count(2))
        return next(other for other in others if stored_metadata(other)[1] is None)

    def clear(self) -> None:
        """Raise `DataError` if there are files at the address that are of no dataset, or if it cannot be read."""
        super().clear()
        if self.before() is None:
            there = storage.names(self.place)
            if there and SENDING not in there:
                raise DataError(f"{self.place}: is not empty and not a dataset; choose another data.dataset_dir")

    def _take(self, new: Path, fingerprint: str, *, is_free: bool) -> None:
        self._store(new)

    def _store(self, new: Path) -> None:
        """Upload the dataset `new`: `metadata.json` last, and that of the dataset before it is removed first."""
        sizes = {path.relative_to(new).as_posix(): path.stat().st_size for path in new.rglob("*") if path.is_file()}
        names = {name: n_bytes for name, n_bytes in sizes.items() if not name.startswith(".") and name != METADATA}

        names |= dict.fromkeys(self.delivered, 0)

        def upload(name: str) -> int:
            if name in self.delivered:
                storage.copy(self.delivered[name], f"{self.place}/{name}")
            else:
                storage.upload(new / name, f"{self.place}/{name}")
            return names[name]

        storage.write(f"{self.place}/{SENDING}", b"")
        storage.remove(f"{self.place}/{METADATA}")
        older = [name for name in storage.names(self.place) if name not in {*names, SENDING}]
        logger.info(f"{self.place}: sending {pluralize(len(names) + 1, 'file')}, {format_bytes(sum(sizes.values()))}")
        storage.in_parallel(upload, names, sum(names.values()))
        storage.remove(*(f"{self.place}/{name}" for name in older))
        storage.upload(new / METADATA, f"{self.place}/{METADATA}")
        storage.remove(f"{self.place}/{SENDING}")


def destination_of(config: Config) -> Destination:
    """Return where the dataset of `config` goes."""
    return StoredDestination(config) if storage.is_stored(config.data.place) else Destination(config)


def _input_name(origin: Mapping[str, str]) -> str:
    rows = origin.get("table") or origin.get("query") or origin["source"]
    return f"{origin['name']} ({rows})" if "name" in origin else origin["source"]
