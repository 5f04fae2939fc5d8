"""A run, one of its checkpoints, or a model package as a recommender: on one process, without a process group."""

from pathlib import Path

from bert4rec.checkpoint.package import is_package, read_settings
from bert4rec.checkpoint.stored_tensors import MODEL
from bert4rec.inference.item_ids import ItemIds
from bert4rec.inference.network import ItemVectors, Network, make_network
from bert4rec.inference.package import read_ids, read_network
from bert4rec.inference.recommender import Recommender
from bert4rec.inference.source import Source, find_source
from bert4rec.models.names import TABLE
from bert4rec.runtime.errors import DataError, in_one_line


def load(path: str | Path, *, dataset: str | Path | None = None) -> Recommender:
    """Load the model of a run folder (its best weights), of one of its checkpoints, or of a model package.

    `dataset` is the folder that it was trained on, where that is not where the run's settings say; a package needs one
    for the histories of its users alone. Raises `DataError`, in one line, for what is missing, damaged or does not
    belong together.
    """
    folder, data = Path(path), None if dataset is None else Path(dataset)
    if is_package(folder):
        return _of_package(folder, data)
    source = find_source(folder, data)
    network, ids = network_of(source), ItemIds.read(source.dataset)
    return Recommender(network, ids, dataset=source.dataset, leaves_out_seen=source.leaves_out_seen)


def network_of(source: Source) -> Network | ItemVectors:
    """Return the network of a checkpoint, however it was sharded; without histories its item vectors.

    Raises `DataError` where it has other weights than this version of the program trains.
    """
    stored = source.tensors()
    if not source.trained.takes_histories:
        return ItemVectors(stored.read(MODEL + TABLE), source.trained.model["embed_dim"])
    tensors = {name.removeprefix(MODEL): stored.read(name) for name in stored if name.startswith(MODEL)}
    try:
        return make_network(tensors, source.trained.model, is_causal=source.is_causal)
    except (KeyError, RuntimeError) as error:
        reason = f"is of another version of bert4rec; train it again: {in_one_line(error)}"
        raise DataError(f"{source.trained.folder}: {reason}") from None


def _of_package(folder: Path, dataset: Path | None) -> Recommender:
    settings = read_settings(folder)
    if dataset is not None:
        _check_dataset(folder, dataset, settings["fingerprint"])
    network, ids = read_network(folder, settings), read_ids(folder, settings)
    return Recommender(network, ids, dataset=dataset, leaves_out_seen=settings["leaves_out_seen"], is_package=True)


def _check_dataset(folder: Path, dataset: Path, fingerprint: str) -> None:
    from bert4rec.dataset.reader import read_metadata

    if read_metadata(dataset)["fingerprint"] != fingerprint:
        raise DataError(f"{dataset}: is not the dataset that {folder} was trained on")
