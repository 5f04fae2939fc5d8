"""Trained weights on the disk, by what a person names: a run, a checkpoint, a model package.

Nothing here imports torch: what cannot be used is said before that.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert4rec.checkpoint.package import is_package, read_settings
from bert4rec.checkpoint.run_folder import CHECKPOINTS, CONFIG, METADATA, METADATA_VERSION, checkpoint_of
from bert4rec.config.abilities import TRANSFORMERS
from bert4rec.config.load import flat
from bert4rec.config.tables import Data
from bert4rec.runtime import manifest
from bert4rec.runtime.errors import DataError
from bert4rec.runtime.files import sha256


@dataclass(frozen=True)
class Trained:
    """The weights in a `folder`, a checkpoint or a model package, with its `metadata` and the `run` it belongs to.

    `run` is None if the folder stands by itself.
    """

    folder: Path
    metadata: Mapping[str, Any]
    run: Path | None
    is_package: bool = False

    @property
    def n_items(self) -> int:
        """Return the number of items that the model knows."""
        return int(self.metadata["n_items"])

    @property
    def settings(self) -> dict[str, Any]:
        """Return all settings of its training, "table.key" → value."""
        return flat(self.metadata["config"])

    @property
    def model(self) -> dict[str, Any]:
        """Return the settings of the model."""
        model: dict[str, Any] = self.metadata["config"]["model"]
        return model

    @property
    def takes_histories(self) -> bool:
        """Return whether the model continues any history; else it only knows the users of its dataset."""
        return self.model["kind"] in TRANSFORMERS

    @property
    def loss(self) -> str:
        """Return the loss of its training."""
        return str(self.metadata["config"]["training"]["loss"])

    @property
    def dataset(self) -> Path:
        """Return the dataset folder of the settings, from here, or else from where the run was started."""
        from bert4rec.dataset.schema import METADATA as DATASET  # imports Arrow, for which no help should wait

        settings = self.metadata["config"]
        folder, runs = Data.model_validate(settings["data"]).folder, Path(settings["run"]["dir"])
        if self.run is None or runs.is_absolute() or ".." in runs.parts or (folder / DATASET).is_file():
            return folder
        parents = self.run.resolve().parents
        started = parents[len(runs.parts)] if len(runs.parts) < len(parents) else Path()
        return started / folder if (started / folder / DATASET).is_file() else folder

    @property
    def checksum(self) -> str:
        """Return the checksum of the manifest, which vouches for every byte of the folder."""
        return sha256(self.folder / manifest.MANIFEST)[:12]

    @property
    def is_reported(self) -> bool:
        """Return whether the run's report is about these weights: its best ones."""
        return self.run is not None and self.folder.resolve() == checkpoint_of(self.run).resolve()


def find_trained(path: Path) -> Trained:
    """Find the weights that `path` names: those of a run are its best. Raises `DataError`; no tensor is read."""
    if is_package(path):
        return Trained(path, read_settings(path), None, is_package=True)
    folder = checkpoint_of(path).resolve()  # of the link to the best, perhaps
    try:
        metadata = json.loads((folder / METADATA).read_text())
        version = metadata["facts_version"]
    except (OSError, ValueError, KeyError, TypeError):
        raise DataError(f"{folder}: this checkpoint is damaged: {METADATA} cannot be read") from None
    if version != METADATA_VERSION:
        raise DataError(
            f"{folder}: written by another version of this program (form {version}, here it is {METADATA_VERSION}); "
            "use that version"
        )
    if not (folder / manifest.MANIFEST).is_file():
        raise DataError(f"{folder}: this checkpoint is damaged: {manifest.MANIFEST} is missing")
    run = folder.parent.parent
    has_run = folder.parent.name == CHECKPOINTS and (run / CONFIG).is_file()
    return Trained(_from_here(folder), metadata, _from_here(run) if has_run else None)


def _from_here(path: Path) -> Path:
    """Return the path as a person would type it if it is below the current folder."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
