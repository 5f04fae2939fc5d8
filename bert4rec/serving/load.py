"""Load the model of a run or of a checkpoint as a recommender, without a process group and without TorchRec."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bert4rec.checkpoint.package import is_package
from bert4rec.checkpoint.prior import read_prior
from bert4rec.checkpoint.run_folder import (
    COMES_AGAIN,
    RECENT_COUNTS,
    Trained,
    find_counted,
    find_trained,
    untrained_kind,
)
from bert4rec.checkpoint.stored_tensors import MODEL_PREFIX, StoredTensors
from bert4rec.dataset.format import fingerprint_of
from bert4rec.dataset.hidden import HiddenEvents
from bert4rec.dataset.reader import open_catalogue, open_dataset, read_metadata
from bert4rec.evaluation.seen_items import BY_ITEM, SeenRule
from bert4rec.feed.batch import Lookup
from bert4rec.feed.features import FeatureReader, feature_reader_of
from bert4rec.models.again import comes_again
from bert4rec.models.baselines import BaselineFactory
from bert4rec.models.item_features import CANDIDATE, SAMPLED_ITEMS, FeatureEncoder, FeatureSettings
from bert4rec.models.names import FEATURE_TABLE, FEATURE_VALUES, FEATURES, TABLE
from bert4rec.models.prior import Prior
from bert4rec.models.transitions import TrainingHistories
from bert4rec.runtime import files
from bert4rec.runtime.arrays import Array, Bools
from bert4rec.runtime.collectives import Partition
from bert4rec.runtime.errors import DataError, in_one_line
from bert4rec.serving.counted import Counted
from bert4rec.serving.histories import ItemIds
from bert4rec.serving.network import ItemVectors, Network, make_network
from bert4rec.serving.recommender import NAME_DATASET, Recommender
from bert4rec.serving.stored_items import StoredItemIds

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Source:
    """A verified checkpoint, the folders of its `items` and of its `dataset`, and the metadata of the dataset.

    `dataset` is None if it is missing or was made again with other content. `users` is the folder of the histories of
    users: `dataset`, or a dataset in its place that extends it; else None.
    """

    trained: Trained
    items: Path
    dataset: Path | None
    about_data: Mapping[str, Any]
    users: Path | None

    @property
    def leaves_out_seen(self) -> SeenRule:
        """Return whether the evaluation of the run leaves out seen items."""
        rule = self.trained.settings["evaluation.seen_items"]
        return BY_ITEM if rule == BY_ITEM else bool(rule == "leave_out")

    @cached_property
    def ids(self) -> ItemIds:
        """Return the items of the dataset, with the recent counts of the run if it recommends by them.

        Raises `DataError` if they cannot be read.
        """
        counts, again = _facts_of_items(self.trained, RECENT_COUNTS), partial(read_again, self.trained, self.dataset)
        return StoredItemIds(self.items, recent_counts=None if counts is None else counts.astype(np.int64), again=again)

    @property
    def prior(self) -> Prior | None:
        """Return the prior that is added to the scores; None for none. Raises `DataError` if it cannot be read."""
        weights = self.trained.prior_weights
        return read_prior(self.trained.prior, self.trained.n_items, weights) if weights else None

    def tensors(self) -> StoredTensors:
        """Return the tensors of the checkpoint; those of the model have the prefix `MODEL_PREFIX`.

        With item features, the rows of the item table are the whole vectors of the items, so that nothing else is
        needed to score them.
        """
        stored = StoredTensors(self.trained.folder)
        if MODEL_PREFIX + FEATURE_VALUES not in stored:
            return stored
        tables_from = self.trained.model["feature_tables_from"]
        reader = feature_reader_of(open_catalogue(self.items), tables_from)
        assert reader is not None, "the fingerprint is that of the dataset with the features"
        return TensorsWithFeatures(self.trained.folder, reader)


def read_again(trained: Trained, dataset: Path | None) -> Bools:
    """Return which items [V] may come again, as the run keeps it, or else counted in its `dataset`.

    Raises `DataError` if there is neither.
    """
    if (again := _facts_of_items(trained, COMES_AGAIN)) is not None:
        return again.astype(bool)
    if dataset is None:
        raise DataError(f"{trained.folder}: which items people take again is counted in its dataset; {NAME_DATASET}")
    return comes_again(TrainingHistories(open_dataset(dataset)))


def _facts_of_items(trained: Trained, name: str) -> Array | None:
    """Return the array [V] in the file `name` of the run; None if there is none. Raises `DataError`."""
    if trained.run is None or not (path := trained.run / name).is_file():
        return None
    try:
        facts = np.load(path)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path}: cannot be read: {in_one_line(error)}") from None
    if facts.shape != (trained.n_items,):
        raise DataError(f"{path}: has the shape {facts.shape}, not ({trained.n_items},)")
    return facts


class TensorsWithFeatures(StoredTensors):
    """The tensors of a checkpoint whose item table has the features of items added, instead of their weights."""

    def __init__(self, folder: Path, reader: FeatureReader) -> None:
        super().__init__(folder)
        weights = {
            name.removeprefix(MODEL_PREFIX + FEATURES): super(type(self), self).read(name) for name in self._features()
        }
        self._encoder = FeatureEncoder(FeatureSettings(reader.sizes), weights["values"].shape[1])
        tables = {name: weights.pop(FEATURE_TABLE.format(name)) for name in reader.sizes.tables}
        self._encoder.load_state_dict(weights, assign=True)
        self._encoder.tables.update({name: _WholeTable(vectors) for name, vectors in tables.items()})
        self._encoder.requires_grad_(False).eval().reader = reader
        self._encoder.align_cold_items(self.first_rows(MODEL_PREFIX + TABLE, SAMPLED_ITEMS))

    def __iter__(self) -> Iterator[str]:
        left_out = self._features()
        return (name for name in super().__iter__() if name not in left_out)

    def read(self, name: str) -> Tensor:
        """Return the whole tensor."""
        return torch.cat([*self.blocks(name)]) if name == MODEL_PREFIX + TABLE else super().read(name)

    def blocks(self, name: str) -> Iterator[Tensor]:
        """Yield the tensor's rows in order; those of the item table are whole vectors of items."""
        first = 0
        for block in super().blocks(name):
            items = Lookup.of(torch.arange(first, first := first + len(block)))
            is_of_items = name == MODEL_PREFIX + TABLE
            yield self._encoder({CANDIDATE: block}, {CANDIDATE: items})[CANDIDATE] if is_of_items else block

    def _features(self) -> list[str]:
        return [name for name in super().__iter__() if name.startswith(MODEL_PREFIX + FEATURES)]


class _WholeTable(nn.Module):
    """The vectors of all values of a feature."""

    def __init__(self, vectors: Tensor) -> None:
        super().__init__()
        self.vectors = vectors

    def look_up(self, lookups: Mapping[str, Lookup]) -> dict[str, Tensor]:
        """Return the vectors [U, d] of each lookup's ids."""
        return {name: self.vectors[lookup.ids] for name, lookup in lookups.items()}


def find_source(path: Path, dataset: Path | None = None) -> Source:
    """Return the best checkpoint of the run `path`, or the checkpoint `path`; `dataset` is its moved dataset folder.

    A models folder means its champion. The items come from the run's own links, so that a run needs its dataset for the
    histories of its users only, and there a dataset that extends it will do; but a model that only counts is counted in
    it.
    Raises `DataError`, in one line, if something is missing or damaged, or if the dataset is another one.
    """
    if is_package(path):
        raise DataError(f"{path}: is a model package already; name the run that it was exported from")
    if untrained_kind(path):
        source = _source_of(find_counted(path), path, dataset)
        if source.dataset is None:
            reason = _not_the_dataset(dataset or source.trained.dataset, path)
            raise DataError(f"{reason}, from which it counts again; {NAME_DATASET}")
        return source
    trained = find_trained(path)
    if problem := files.problem_of(trained.folder):
        raise DataError(f"{trained.folder}: this checkpoint is damaged: {problem}")
    return _source_of(trained, path, dataset)


def _source_of(trained: Trained, path: Path, dataset: Path | None) -> Source:
    place = dataset or trained.dataset
    is_same, has_users = trained.is_of(place), trained.has_users_in(place)
    items = (None if has_users and not is_same else dataset) or trained.catalogue or place
    about_data = read_metadata(items)
    if about_data["fingerprint"] != trained.metadata["fingerprint"]:
        raise DataError(f"{_not_the_dataset(items, path)}; {NAME_DATASET}")
    return Source(trained, items, place if is_same else None, about_data, place if has_users else None)


def _not_the_dataset(folder: Path, run: Path) -> str:
    if not fingerprint_of(folder):
        return f"the dataset of {run} is not at {folder}"
    return f"{folder}: is not the dataset that {run} was trained on"


def load_run(path: Path, dataset: Path | None = None) -> Recommender:
    """Return the model of a run folder (its best weights), of one of its checkpoints, or of a models folder's champion.

    `dataset` is the folder of the training data, if it was moved; it is needed for the histories of its users, and for
    a model that only counts, which is counted again. For histories, a dataset that extends it will do.
    Raises `DataError`, in one line, if something is missing or damaged, or if the dataset is another one.
    """
    source = find_source(path, dataset)
    trained = source.trained
    return Recommender(
        network_of(source), source.ids, dataset=source.users, leaves_out_seen=source.leaves_out_seen,
        no_users=_not_the_dataset(trained.dataset, path),
        hidden=HiddenEvents.of(trained.metadata["config"]["preprocessing"], trained.kinds),
        prior=source.prior, settings=trained.metadata["config"],
    )  # fmt: skip


def network_of(source: Source) -> Network | ItemVectors | Counted:
    """Return the network of a checkpoint with any sharding; for a matrix factorisation its item vectors.

    A model that only counts is counted again. Raises `DataError` if the weights are of another version of the program.
    """
    kind = source.trained.kind
    if not kind.is_trained:
        return Counted(kind.name, counting_of(source).scorer(kind.name, lambda: None), source.trained.kinds)
    stored = source.tensors()
    if not kind.is_transformer:
        return ItemVectors(stored.read(MODEL_PREFIX + TABLE), source.trained.model["embed_dim"])
    tensors = {name.removeprefix(MODEL_PREFIX): stored.read(name) for name in stored if name.startswith(MODEL_PREFIX)}
    try:
        trained = source.trained
        return make_network(tensors, trained.model, is_causal=trained.kind.is_causal, kinds=trained.kinds)
    except (KeyError, RuntimeError) as error:
        reason = f"is of another version of bert4rec; train it again: {in_one_line(error)}"
        raise DataError(f"{source.trained.folder}: {reason}") from None


def counting_of(source: Source) -> BaselineFactory:
    """Return what counts a model that is not trained in its dataset."""
    assert source.dataset is not None, "refused before"
    logger.info(f"{source.trained.kind.title} is counted from {source.dataset}")
    return BaselineFactory(dataset=open_dataset(source.dataset), partition=Partition())
