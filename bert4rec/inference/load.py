"""A run, or one of its checkpoints, as a recommender on one process: no process group, no launcher."""

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor

from bert4rec.checkpoint.run_folder import BEST, CHECKPOINTS, METADATA, found
from bert4rec.config.tables import Data
from bert4rec.dataset.reader import read_metadata
from bert4rec.dataset.schema import FIRST_ITEM_ID, table_rows
from bert4rec.inference.item_ids import ItemIds
from bert4rec.inference.network import Network
from bert4rec.inference.recommender import Recommender
from bert4rec.models.item_table import BIAS_COLUMNS
from bert4rec.models.kinds import KINDS
from bert4rec.models.transformer import Encoder
from bert4rec.runtime import manifest
from bert4rec.runtime.errors import DataError

MANY_REPEATS = 0.05  # of test targets that their users have seen before: there seen items are worth recommending


def load(path: str | Path, *, dataset: str | Path | None = None) -> Recommender:
    """The model of a run folder (its best weights), or of one of its checkpoints, ready to recommend.

    `dataset` is the folder that it was trained on, where that is not where the run's settings say. Raises `DataError`,
    in one line, for what is missing, damaged or does not belong together.
    """
    folder = _checkpoint(Path(path))
    if problem := manifest.problem_of(folder):
        raise DataError(f"{folder}: this checkpoint is damaged: {problem}")
    metadata = json.loads((folder / METADATA).read_text())
    settings = metadata["config"]
    data = Path(dataset) if dataset is not None else _dataset_of(settings)
    about_data = read_metadata(data)
    if about_data["fingerprint"] != metadata["fingerprint"]:
        advice = 'name that one by --dataset=FOLDER, in Python by dataset="FOLDER"'
        raise DataError(f"{data}: is not the dataset that {path} was trained on; {advice}")
    network = read_network(folder, settings["model"], metadata["n_items"])
    return Recommender(network, ItemIds.read(data), dataset=data, leaves_out_seen=_suggests_new_items(about_data))


def read_network(checkpoint: Path, model: Mapping[str, Any], n_items: int) -> Network:
    """The network of a whole checkpoint, by the settings of its model, however its table was sharded."""
    shape = {key: model[key] for key in ("embed_dim", "n_heads", "n_layers", "ffn_dim", "max_len", "dropout")}
    encoder = Encoder(**shape, is_causal=KINDS[model.get("kind", "bert4rec")].is_causal, device="cpu")
    width, has_bias, is_tied = model["embed_dim"], model["output_bias"], model["head"] == "tied"
    rows = torch.empty(table_rows(n_items), width + (BIAS_COLUMNS if is_tied and has_bias else 0))
    tensors = {f"model.encoder.{name}": value for name, value in encoder.state_dict().items()}
    tensors["model.item_table.embeddings.item.weight"] = rows
    if not is_tied:
        tensors["model.head.weight"] = torch.empty(n_items, width)
        if has_bias:
            tensors["model.head.bias"] = torch.empty(n_items)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no process group is meant
        dcp.load(tensors, checkpoint_id=checkpoint, no_dist=True)
    return Network(encoder, rows[:, :width], rows[FIRST_ITEM_ID:] if is_tied else _of_head(tensors))


def _of_head(tensors: Mapping[str, Tensor]) -> Tensor:
    """Vectors [V, D] of a layer of scores, with its biases behind them."""
    weight, bias = tensors["model.head.weight"], tensors.get("model.head.bias")
    return weight if bias is None else torch.cat([weight, bias[:, None]], dim=1)


def _checkpoint(path: Path) -> Path:
    """The checkpoint that `path` is, or the best one of the run that it is, or else its last one."""
    present = [path, path / CHECKPOINTS / BEST, *found(path / CHECKPOINTS)[::-1]]
    folder = next((folder for folder in present if (folder / METADATA).is_file()), None)
    if folder is None:
        raise DataError(f"{path}: neither a run folder with a checkpoint nor a checkpoint")
    return folder


def _dataset_of(settings: Mapping[str, Any]) -> Path:
    return Data.model_validate(settings["data"]).folder


def _suggests_new_items(about_data: Mapping[str, Any]) -> bool:
    """Whether next items are hardly ever seen ones in the data that the model was trained on."""
    counts = about_data.get("repeated_targets", {}).get("test", {"users": 0, "of": 0})
    return counts["users"] <= MANY_REPEATS * counts["of"]
