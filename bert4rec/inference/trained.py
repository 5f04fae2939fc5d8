"""What a training has left: the checkpoint of its weights, and the dataset folder whose ids they belong to."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert4rec.checkpoint.run_folder import BEST, CHECKPOINTS, METADATA, found
from bert4rec.checkpoint.stored_tensors import StoredTensors
from bert4rec.config.tables import Data
from bert4rec.dataset.reader import read_metadata
from bert4rec.dataset.schema import METADATA as DATASET
from bert4rec.runtime import manifest
from bert4rec.runtime.errors import DataError

MODEL = "model."  # how the names of a model's tensors begin in a checkpoint
MANY_REPEATS = 0.05  # of test targets that their users have seen before: there seen items are worth recommending


@dataclass(frozen=True)
class Trained:
    """A `checkpoint` that was verified, what it says of itself, its `dataset` folder, and what that says of itself."""

    checkpoint: Path
    metadata: Mapping[str, Any]
    dataset: Path
    about_data: Mapping[str, Any]

    @property
    def model(self) -> dict[str, Any]:
        """The settings of the model."""
        return {"kind": "bert4rec", **self.metadata["config"]["model"]}

    @property
    def is_causal(self) -> bool:
        """Whether a position of the model sees only what stands before it."""
        from bert4rec.models.kinds import KINDS  # imports TorchRec, which a model package does without

        return KINDS[self.model["kind"]].is_causal

    @property
    def leaves_out_seen(self) -> bool:
        """Whether next items are hardly ever seen ones in the data that the model was trained on."""
        counts = self.about_data.get("repeated_targets", {}).get("test", {"users": 0, "of": 0})
        return bool(counts["users"] <= MANY_REPEATS * counts["of"])

    def tensors(self) -> StoredTensors:
        """Of the checkpoint; those of the model have `MODEL` before their names."""
        return StoredTensors(self.checkpoint)


def find_trained(path: Path, dataset: Path | None = None) -> Trained:
    """The best checkpoint of the run folder `path`, or the checkpoint that it is; `dataset`: where that was moved.

    Raises `DataError`, in one line, for what is missing, damaged or does not belong together.
    """
    checkpoint = _checkpoint(path)
    if problem := manifest.problem_of(checkpoint):
        raise DataError(f"{checkpoint}: this checkpoint is damaged: {problem}")
    metadata = json.loads((checkpoint / METADATA).read_text())
    folder = dataset or _dataset_of(metadata["config"], checkpoint)
    about_data = read_metadata(folder)
    if about_data["fingerprint"] != metadata["fingerprint"]:
        advice = 'name that one by --dataset=FOLDER, in Python by dataset="FOLDER"'
        raise DataError(f"{folder}: is not the dataset that {path} was trained on; {advice}")
    return Trained(checkpoint, metadata, folder, about_data)


def _dataset_of(settings: Mapping[str, Any], checkpoint: Path) -> Path:
    """Where the settings say; a relative path is taken from here, or else from where the training was started."""
    folder, runs = Data.model_validate(settings["data"]).folder, Path(settings["run"]["dir"])
    if runs.is_absolute() or (folder / DATASET).is_file():
        return folder
    run = checkpoint.resolve().parents[1]
    started = run.parents[len(runs.parts)]
    return started / folder if (started / folder / DATASET).is_file() else folder


def _checkpoint(path: Path) -> Path:
    """The checkpoint that `path` is, or the best one of the run that it is, or else its last one."""
    present = [path, path / CHECKPOINTS / BEST, *found(path / CHECKPOINTS)[::-1]]
    folder = next((folder for folder in present if (folder / METADATA).is_file()), None)
    if folder is None:
        raise DataError(f"{path}: neither a run folder with a checkpoint, nor a checkpoint, nor a model package")
    return folder
