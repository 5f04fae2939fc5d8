"""Trained weights together with the dataset folder of their ids."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert4rec.checkpoint.stored_tensors import StoredTensors
from bert4rec.checkpoint.trained import Trained, find_trained
from bert4rec.config.abilities import CAUSAL
from bert4rec.dataset.reader import read_metadata
from bert4rec.runtime import manifest
from bert4rec.runtime.errors import DataError


@dataclass(frozen=True)
class Source:
    """A checkpoint that was verified, its `dataset` folder, and what that says of itself."""

    trained: Trained
    dataset: Path
    about_data: Mapping[str, Any]

    @property
    def leaves_out_seen(self) -> bool:
        """Return whether the evaluation of the run has left out items that a user has seen."""
        return bool(self.trained.settings["evaluation.seen_items"] == "leave_out")

    @property
    def is_causal(self) -> bool:
        """Return whether a position of the model sees only earlier ones."""
        return self.trained.model["kind"] in CAUSAL

    def tensors(self) -> StoredTensors:
        """Return the tensors of the checkpoint; those of the model have the prefix `MODEL`."""
        return StoredTensors(self.trained.folder)


def find_source(path: Path, dataset: Path | None = None) -> Source:
    """Find the best checkpoint of the run folder or checkpoint `path`; `dataset`: its moved dataset folder.

    Raises `DataError`, in one line, for what is missing, damaged or does not belong together.
    """
    trained = find_trained(path)
    if trained.is_package:
        raise DataError(f"{path}: is a model package already; name the run that it was exported from")
    if problem := manifest.problem_of(trained.folder):
        raise DataError(f"{trained.folder}: this checkpoint is damaged: {problem}")
    folder = dataset or trained.dataset
    about_data = read_metadata(folder)
    if about_data["fingerprint"] != trained.metadata["fingerprint"]:
        advice = 'name that one by --dataset=FOLDER, in Python by dataset="FOLDER"'
        raise DataError(f"{folder}: is not the dataset that {path} was trained on; {advice}")
    return Source(trained, folder, about_data)
