"""Load a model package as a recommender, with torch, NumPy and safetensors alone."""

from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file

from bert4rec.checkpoint.package import ITEM_LINES, PRIOR, SETTINGS, WEIGHTS, read_settings
from bert4rec.checkpoint.prior import read_prior
from bert4rec.config.kinds import KINDS
from bert4rec.dataset.format import fingerprints_of
from bert4rec.dataset.hidden import HiddenEvents
from bert4rec.models.names import TABLE
from bert4rec.runtime.collectives import Partition
from bert4rec.runtime.errors import DataError, in_one_line
from bert4rec.serving.counted import Counted
from bert4rec.serving.histories import ItemIds
from bert4rec.serving.network import Network, make_network
from bert4rec.serving.recommender import Recommender

LONGEST_ERROR = 200  # characters of an error of torch, which may list all missing weights


def read_network(folder: Path, settings: dict[str, Any]) -> Network:
    """Return the network of a package with these settings. Raises `DataError` if the weights do not fit them."""
    try:
        tensors = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{folder / WEIGHTS}: cannot be read: {in_one_line(error)[:LONGEST_ERROR]}") from None
    try:
        kinds = settings.get("events", ())
        network = make_network(tensors, settings["config"]["model"], is_causal=settings["is_causal"], kinds=kinds)
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        raise DataError(f"{folder}: {WEIGHTS} does not fit {SETTINGS}: {in_one_line(error)[:LONGEST_ERROR]}") from None
    if len(network.rows) != settings["n_items"]:
        raise DataError(f"{folder}: {TABLE} has {len(network.rows):,} rows, not {settings['n_items']:,}")
    return network


def read_counted(folder: Path, settings: dict[str, Any]) -> Counted:
    """Return what a package with these settings has counted. Raises `DataError` if it does not fit them."""
    from safetensors.numpy import load_file as load_arrays

    from bert4rec.models.baselines import scorer_of  # imports Arrow

    kind = settings["config"]["model"]["kind"]
    try:
        network = Counted(kind, scorer_of(kind, load_arrays(folder / WEIGHTS), Partition()), settings.get("events", ()))
    except (OSError, SafetensorError) as error:
        raise DataError(f"{folder / WEIGHTS}: cannot be read: {in_one_line(error)[:LONGEST_ERROR]}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{folder}: {WEIGHTS} does not fit {SETTINGS}: {in_one_line(error)[:LONGEST_ERROR]}") from None
    if len(network) != settings["n_items"]:
        raise DataError(f"{folder}: {WEIGHTS} has {len(network):,} items, not {settings['n_items']:,}")
    return network


def read_ids(folder: Path, settings: dict[str, Any]) -> ItemIds:
    """Return the items of a package with these settings. Raises `DataError` if their number differs."""
    ids = ItemIds.read_lines(folder / ITEM_LINES, are_numbers=settings["item_ids"] == "numbers")
    if len(ids) != settings["n_items"]:
        raise DataError(f"{folder}: {ITEM_LINES} has {len(ids):,} items, not {settings['n_items']:,}")
    return ids


def load_package(folder: Path, dataset: Path | None = None) -> Recommender:
    """Return the model of a package; `dataset` is the folder of its training data, for histories of its users.

    A dataset that extends it will do, too. Raises `DataError`, in one line, if something is missing or damaged, or if
    the dataset is another one.
    """
    settings = read_settings(folder)
    if dataset is not None:
        from bert4rec.dataset.reader import read_metadata  # imports Arrow

        if settings["fingerprint"] not in fingerprints_of(read_metadata(dataset)):
            raise DataError(f"{dataset}: is not the dataset that {folder} was trained on")
    kind = KINDS.get(settings["config"]["model"]["kind"])
    read = read_counted if kind is not None and not kind.is_trained else read_network
    network, ids = read(folder, settings), read_ids(folder, settings)
    weights = settings.get("prior")
    return Recommender(
        network, ids, dataset=dataset, leaves_out_seen=settings["leaves_out_seen"], is_package=True,
        no_users="a model package has no users",
        hidden=HiddenEvents.of(settings["config"]["preprocessing"], network.kinds),
        prior=read_prior(folder / PRIOR, len(ids), weights) if weights else None, settings=settings["config"],
    )  # fmt: skip
