"""A training that is interrupted ends with the bits of one without a break, each kind with all that it can know."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from bert4rec.checkpoint.run_folder import found
from bert4rec.checkpoint.stored_tensors import StoredTensors
from bert4rec.config.load import load_config
from bert4rec.config.tables import Config
from bert4rec.models.matrix_factorization import MatrixFactorization
from bert4rec.models.sequence_model import SequenceModel
from bert4rec.training.run import run
from tests.conftest import BY_HAND, RATED, SHORT, SMALL
from tests.fixture_types import Patch
from tests.runs import assert_same_results, in_step, interrupted, report_of

pytestmark = pytest.mark.usefixtures("alone")

ABILITIES = {
    "model.id_dropout": 0.4, "model.feature_tables_from": 4, "training.event_weights": {"purchase": 1.0, "cart": 0.5},
    "training.average_age": 0.1, "training.per_device_train_batch_size": 16, "training.n_train_negatives": 9,
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("bert4rec", {"training.loss": "softmax", "parallelism.mode": "ddp", "model.times": "history"}),
        ("sasrec", {"training.loss": "sampled_softmax", "parallelism.mode": "dmp", "model.times": "target"}),
        (
            "matrix_factorization",
            RATED | {"training.learning_rate": 0.01, "model.dropout": 0.5, "model.form": "neural"},
        ),
    ],
)
def test_an_interrupted_training_ends_as_one_without_a_break(
    event_folder: Path, rated_folder: Path, tmp_path: Path, monkeypatch: Patch, kind: str, changes: dict[str, Any]
) -> None:
    folder = rated_folder if kind == "matrix_factorization" else event_folder
    recipe = json.loads((folder / "metadata.json").read_text())["preprocessing"]
    usual = SMALL | BY_HAND | SHORT | {f"preprocessing.{key}": value for key, value in recipe.items()}

    def make(name: str) -> Config:
        places = {"data.dataset_dir": str(folder), "run.dir": str(tmp_path), "run.name": name, "run.resume": "auto"}
        return load_config(
            None,
            usual | places | ({} if kind == "matrix_factorization" else ABILITIES) | changes | {"model.kind": kind},
        )

    whole = run(make("whole"))
    with monkeypatch.context() as patch:
        in_step(patch, MatrixFactorization if kind == "matrix_factorization" else SequenceModel, "forward", 6)
        interrupted(make("broken"))
    resumed = run(make("broken"))
    assert_same_results(resumed, whole)
    assert report_of(resumed).get("ratings") == report_of(whole).get("ratings")
    ends = [StoredTensors(found(folder / "checkpoints")[-1]) for folder in (resumed, whole)]
    assert [*ends[0]] == [*ends[1]]
    assert all(torch.equal(*(end.read(name) for end in ends)) for name in ends[0])
