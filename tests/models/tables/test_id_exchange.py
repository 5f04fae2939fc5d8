"""The ids of the next batch travel while a step runs: nothing else changes, and nothing is left on its way."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert4rec.config.tables import Config
from tests.conftest import FACTORS
from tests.processes import jobs

ADAM = {"parallelism.sparse_optimizer": "adam"}  # rows are trained as parameters: gradients go the ids' way back
COMMON = {"parallelism.mode": "dmp", "training.n_epochs": 1, "training.n_train_negatives": 20}
SETTINGS: list[dict[str, Any]] = [
    {"training.loss": "sampled_softmax", "training.max_skipped_steps": 2},
    {"training.loss": "sampled_softmax"} | ADAM,
    {"training.loss": "softmax"},
    FACTORS | {"training.loss": "sampled_softmax"} | ADAM,
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_training_is_the_same_to_the_bit_as_without(
    pools: Any, small_config: Callable[..., Config], settings: dict[str, Any], tmp_path: Path
) -> None:
    config = small_config(**COMMON | settings)
    found = pools(2).run(jobs.train_part, config, tmp_path / "early")
    expected = pools(2).run(jobs.train_waiting_for_ids, config, tmp_path / "late")
    assert len(found[0]["losses"]) > 1
    for mine, other in zip(found, expected, strict=True):
        assert mine["losses"] == other["losses"]
        assert mine["metrics"] == other["metrics"]
        for kind in ("weights", "moments"):
            np.testing.assert_equal(mine[kind], other[kind])


def test_what_was_begun_and_does_not_come_is_ended(pools: Any, small_config: Callable[..., Config]) -> None:
    config = small_config(**COMMON | {"training.loss": "sampled_softmax"})
    assert pools(2).run(jobs.open_exchanges_after, config, n_begun=2) == [(2, 0)] * 2
    with pytest.raises(AssertionError, match="a lookup that was begun has not come"):
        pools(2).run(jobs.open_exchanges_after, config, n_begun=3)
