"""A training with item features ends with the same bits after an interruption: hidden ids depend on the step alone."""

from pathlib import Path

import pytest
import torch

from bert4rec.checkpoint.run_folder import found
from bert4rec.checkpoint.stored_tensors import StoredTensors
from bert4rec.config.load import load_config
from bert4rec.config.tables import Config
from bert4rec.training.run import run
from tests.conftest import SHORT, SMALL
from tests.fixture_types import Patch
from tests.runs import FORWARD, assert_same_results, in_step, interrupted

pytestmark = [pytest.mark.usefixtures("alone"), pytest.mark.filterwarnings("ignore::FutureWarning")]


@pytest.mark.parametrize(
    ("loss", "tables_from", "mode"),
    [
        ("softmax", 1_000_000, "ddp"), ("sampled_softmax", 1_000_000, "ddp"), ("softmax", 4, "ddp"),
        ("sampled_softmax", 4, "dmp"),
    ],
)  # fmt: skip
def test_an_interrupted_training_ends_as_one_without_a_break(
    featured_folder: Path, tmp_path: Path, monkeypatch: Patch, loss: str, tables_from: int, mode: str
) -> None:
    """The same metrics, weights and optimizer state."""

    def make(name: str, resume: str = "") -> Config:
        settings = SMALL | SHORT | {
            "data.dataset_dir": str(featured_folder), "run.dir": str(tmp_path / "runs"), "run.name": name,
            "run.resume": resume, "model.id_dropout": 0.4, "model.feature_tables_from": tables_from,
            "training.loss": loss, "training.n_train_negatives": 9, "training.per_device_train_batch_size": 16,
            "parallelism.mode": mode,
        }  # fmt: skip
        return load_config(None, settings)

    whole = run(make("whole"))
    with monkeypatch.context() as patch:
        in_step(patch, *FORWARD, 6)
        interrupted(make("broken", "auto"))
    resumed = run(make("broken", "auto"))
    assert_same_results(resumed, whole)
    ends = [StoredTensors(found(folder / "checkpoints")[-1]) for folder in (resumed, whole)]
    assert [*ends[0]] == [*ends[1]]
    assert all(torch.equal(*(end.read(name) for end in ends)) for name in ends[0])
