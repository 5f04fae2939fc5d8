"""A run that is loaded recommends what its report has measured."""

from dataclasses import replace
from pathlib import Path

import pytest

from bert4rec import load
from bert4rec.inference.load import network_of
from bert4rec.inference.source import find_source
from bert4rec.inference.user_histories import UserHistories
from bert4rec.runtime.errors import DataError
from tests.runs import flip, report_of


def test_hits_of_recommendations_are_those_of_the_report(made: Path) -> None:
    """The test target is the last item of a history; it is asked for by what stands before it."""
    recommender = load(made)
    histories = [items for part in UserHistories(recommender.dataset, recommender.ids).all() for _, items in part]
    tested = [items for items in histories if len(items) >= 3]
    found = recommender.recommend([items[:-1] for items in tested], 10)
    ranks = [
        next((rank for rank, one in enumerate(row, 1) if one.item == items[-1]), 0)
        for items, row in zip(tested, found, strict=True)
    ]
    full = report_of(made)["test"]["full"]
    assert len(tested) == full["users"]
    for k in (1, 5, 10):
        assert sum(0 < rank <= k for rank in ranks) / len(ranks) == full[f"HR@{k}"]


def test_a_checkpoint_is_loaded_too(made: Path) -> None:
    best = load(made / "checkpoints" / "best").recommend([[1, 2, 3]], 3)
    assert load(made).recommend([[1, 2, 3]], 3) == best
    step = (made / "checkpoints" / "best").resolve()
    assert load(str(step)).recommend([[1, 2, 3]], 3) == best


def test_what_is_missing_damaged_or_foreign_is_named(whole: Path, tmp_path: Path, log_folder: Path) -> None:
    with pytest.raises(
        DataError, match="neither a run folder with a checkpoint, nor a checkpoint, nor a model package"
    ):
        load(tmp_path / "nothing")
    with pytest.raises(DataError, match=r"is not the dataset that .*/whole was trained on"):
        load(whole, dataset=log_folder)
    with pytest.raises(DataError, match="no dataset folder"):
        load(whole, dataset=tmp_path)
    best = (whole / "checkpoints" / "best").resolve()
    flip(next(best.glob("*.distcp")), 1000)
    with pytest.raises(DataError, match=r"this checkpoint is damaged: .* has another checksum"):
        load(whole)


def test_a_checkpoint_with_other_weights_is_refused_in_one_line(made: Path) -> None:
    source = find_source(made)
    config = dict(source.trained.metadata["config"])
    config["model"] = config["model"] | {"times": "history"}
    other = replace(source, trained=replace(source.trained, metadata={**source.trained.metadata, "config": config}))
    with pytest.raises(DataError, match=r"is of another version of bert4rec; train it again: .*dates.weight") as caught:
        network_of(other)
    assert "\n" not in str(caught.value)
