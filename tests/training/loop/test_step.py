"""Steps that cannot be made."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from bert4rec.checkpoint import manager, store
from bert4rec.models.bert4rec import Bert4Rec
from bert4rec.runtime.errors import DivergenceError
from bert4rec.training.run import run
from tests.conftest import leave_group
from tests.runs import Make, report_of

pytestmark = [
    pytest.mark.usefixtures("alone"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # of the libraries about themselves
]


def slowly(*arguments: Any, **options: Any) -> None:
    time.sleep(0.5)
    store.save(*arguments, **options)


def test_a_step_without_a_finite_loss_is_left_out_within_the_budget(
    make: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    original, calls = Bert4Rec.forward, 0

    def sometimes(self: Bert4Rec, *args: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return original(self, *args) * (float("nan") if calls % 9 == 5 else 1.0)

    monkeypatch.setattr(Bert4Rec, "forward", sometimes)
    report = report_of(run(make(**{"training.max_skipped_steps": 2, "training.n_epochs": 2})))
    assert report["training"]["steps"] == 14
    assert "step 5: the loss is not finite, skipped (1 of 2)\n" in capsys.readouterr().out
    calls = 0
    with pytest.raises(DivergenceError, match=r"2 steps were not finite, training.max_skipped_steps"):
        run(make(**{"training.max_skipped_steps": 1, "training.n_epochs": 2}))
    leave_group()
    calls = 0
    with pytest.raises(DivergenceError) as caught:
        run(make(**{"training.n_epochs": 1, "run.name": "early"}))
    early = tmp_path / "runs" / "early"
    assert str(caught.value) == (
        "the training loss is nan after 7 steps; start again with lower learning rates: bert4rec train "
        f"--config={early}/config.toml --training.learning_rate=0.0001 --parallelism.sparse_learning_rate=0.0001"
    )
    leave_group()
    calls = -4
    monkeypatch.setattr(manager, "save", slowly)  # the best weights are still being written when the loss is nan
    with pytest.raises(DivergenceError) as caught:
        run(make(**{"training.n_epochs": 2, "run.name": "late"}))
    late = tmp_path / "runs" / "late"
    assert (late / "checkpoints" / "best").is_dir()
    assert str(caught.value) == (
        "the training loss is nan after 14 steps; start again with lower learning rates, from the best weights: "
        f"bert4rec train --config={late}/config.toml --training.learning_rate=0.0001 "
        f"--parallelism.sparse_learning_rate=0.0001 --run.init_from={late}"
    )
