"""Trainings of several processes with a GPU each are those of as many processes on the CPU."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert4rec.report.log import read_records
from tests.cuda.conftest import losses
from tests.cuda.processes import IS_STAND_IN
from tests.runs import report_of

pytestmark = pytest.mark.cuda

TOLERANCE = 1e-3  # of losses of about 5
SOFTMAX = {"training.loss": "softmax"}
SAMPLED = {"training.loss": "sampled_softmax", "training.n_train_negatives": 64}
OPTIMIZER = {"parallelism.sparse_optimizer": "rowwise_adagrad"}  # "auto" is another one on a GPU
GROUPS = {"parallelism.sharding_group_size": 2}

Train = Callable[..., tuple[Path, list[dict[str, Any]]]]


@pytest.fixture
def train(train_together: Callable[..., list[dict[str, Any]]]) -> Train:
    """The folder of a run, and what was seen by rank."""

    def made(n: int, device: str = "cuda", *, one_each: bool = False, **changes: Any) -> Any:
        seen = train_together(n, device, one_each=one_each, **OPTIMIZER | changes)
        return seen[0]["folder"], seen

    return made


@pytest.mark.parametrize(
    ("n", "one_each", "changes"),
    [
        (2, False, SOFTMAX),
        (2, True, SAMPLED | {"parallelism.sparse_optimizer": "adagrad"}),
        (2, False, SAMPLED | {"parallelism.mode": "ddp", "training.average_age": 0.1}),
        (2, True, SOFTMAX | {"parallelism.mode": "ddp"}),
        (4, False, SOFTMAX | {"model.kind": "sasrec"} | GROUPS),
        (4, True, SAMPLED | GROUPS | {"model.kind": "sasrec", "parallelism.sparse_optimizer": "adagrad"}),
        (4, False, SAMPLED | {"parallelism.sharding_type": "table_wise", "parallelism.messages": "bf16"}),
        (2, False, SAMPLED | {"training.precision": "bf16", "training.num_workers": 1}),
    ],
)
def test_processes_with_gpus_train_as_on_the_cpu(train: Train, n: int, one_each: bool, changes: dict[str, Any]) -> None:
    on_cpu, _ = train(n, "cpu", **changes)
    on_gpu, seen = train(n, one_each=one_each, **changes)
    is_short = "bf16" in changes.values()
    expected = losses(on_cpu)
    assert len(expected) == 20  # two steps an epoch: during the first one, the ids of the second travel
    assert expected[0] - min(expected) > 10 * TOLERANCE
    np.testing.assert_allclose(losses(on_gpu), expected, rtol=0, atol=0.05 if is_short else TOLERANCE)
    for split in ("validation", "test"):
        found, wanted = (report_of(folder)[split]["full"]["NDCG@10"] for folder in (on_gpu, on_cpu))
        assert found == pytest.approx(wanted, abs=0.1 if is_short else 0.02)
    messages = [[(name, stream) for name, _, stream, _ in seen_by_rank["collectives"]] for seen_by_rank in seen]
    assert all(len(seen_by_rank) > 10 for seen_by_rank in messages if IS_STAND_IN)
    assert all(seen_by_rank == messages[0] for seen_by_rank in messages)


def test_items_with_features_train_as_on_the_cpu(train: Train, featured_folder: Path) -> None:
    usual = {"data.dataset_dir": str(featured_folder), "training.n_train_negatives": 20}
    for loss, tables_from in ((SOFTMAX, 4), (SAMPLED, 4), (SAMPLED, 1_000_000)):
        changes = loss | usual | {"model.feature_tables_from": tables_from}
        on_cpu, on_gpu = (losses(train(2, device, **changes)[0]) for device in ("cpu", "cuda"))
        np.testing.assert_allclose(on_gpu, on_cpu, rtol=0, atol=TOLERANCE)


def test_a_training_goes_on_with_more_gpus(train: Train) -> None:
    changes = SOFTMAX | {"checkpoint.every_steps": 1}
    whole, _ = train(2, "cpu", **changes)
    parts, _ = train(2, **changes | {"training.n_epochs": 3})
    changes |= {"run.resume": str(parts)}
    train(4, **changes | GROUPS | {"training.n_epochs": 7})
    train(2, one_each=True, **changes)
    np.testing.assert_allclose(losses(parts), losses(whole), rtol=0, atol=TOLERANCE)
    assert [record["step"] for record in read_records(parts, "resume")] == [6, 14]
