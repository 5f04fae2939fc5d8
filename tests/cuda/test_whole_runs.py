"""What a training on a GPU leaves on the disk: it goes on elsewhere, is the same again, and is used."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from bert4rec.api import load
from bert4rec.checkpoint.run_folder import find_trained, found
from bert4rec.checkpoint.stored_tensors import StoredTensors
from bert4rec.commands.evaluate import settings_of
from bert4rec.report.log import read_records
from bert4rec.training.evaluate import evaluate
from tests.cuda.conftest import Train, losses

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize(
    ("loss", "optimizer", "kernel"),
    [
        ("softmax", "adam", "fused"),
        ("sampled_softmax", "rowwise_adagrad", "fused"),
        ("sampled_softmax", "adagrad", "fused_uvm"),
        ("sampled_softmax", "adagrad", "fused_uvm_caching"),
    ],
)
def test_a_training_goes_from_the_cpu_to_the_gpu_and_back(train: Train, loss: str, optimizer: str, kernel: str) -> None:
    chosen: dict[str, Any] = {"training.loss": loss, "parallelism.sparse_optimizer": optimizer}
    if optimizer == "adam":
        chosen["parallelism.sparse_learning_rate"] = 0.01
    whole = train("cpu", **chosen)
    parts = train("cpu", **chosen | {"training.n_epochs": 3})
    chosen["run.resume"] = str(parts)
    train("cuda", **chosen | {"training.n_epochs": 7, "parallelism.compute_kernel": kernel})
    train("cpu", **chosen)
    np.testing.assert_allclose(losses(parts), losses(whole), rtol=0, atol=1e-3)
    assert [record["step"] for record in read_records(parts, "resume")] == [3, 7]


@pytest.mark.parametrize("loss", ["softmax", "sampled_softmax"])
def test_a_deterministic_training_has_the_same_bits_saved_beside_it_or_not_and_resumed(train: Train, loss: str) -> None:
    chosen = {
        "training.loss": loss, "training.deterministic": True, "model.dropout": 0.1, "checkpoint.every_steps": 1,
        "checkpoint.keep": 20,
    }  # fmt: skip
    one, other = (train(**chosen | {"checkpoint.async": is_beside}) for is_beside in (True, False))
    parts = train(**chosen | {"training.n_epochs": 5})
    train(**chosen | {"run.resume": str(parts)})
    assert losses(one) == losses(other) == losses(parts)
    pairs = zip(found(one / "checkpoints"), found(other / "checkpoints"), strict=True)
    states = [(StoredTensors(beside), StoredTensors(at_once)) for beside, at_once in pairs]
    assert len(states) == 10
    for beside, at_once in states:
        assert {*beside} == {*at_once}
        assert all(torch.equal(beside.read(name), at_once.read(name)) for name in beside)


def test_the_cpu_gives_the_ranks_of_the_gpu_and_recommends(train: Train, tmp_path: Path) -> None:
    folder = train()
    trained = find_trained(folder)
    again = evaluate(settings_of(trained, ["--parallelism.device=cpu"]), trained, tmp_path / "again").folder
    assert again is not None
    for split in ("validation", "test"):
        name = f"ranks-{split}.parquet"
        assert pq.read_table(again / name).equals(pq.read_table(folder / name))
    (best,) = load(folder).recommend([load(folder).ids.of([0, 1, 2])], k=10)
    scores = [each.score for each in best]
    assert len({each.item for each in best}) == 10
    assert scores == sorted(scores, reverse=True)
    assert np.isfinite(scores).all()
