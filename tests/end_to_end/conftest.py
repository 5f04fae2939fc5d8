"""Settings of runs that are interrupted."""

from typing import Any

import pytest

from bert4rec.config.tables import Config
from tests.fixture_types import Settings


@pytest.fixture
def make(small_config: Settings) -> Settings:
    """Settings of runs of two processes that make a checkpoint every few steps."""

    def settings(**changes: Any) -> Config:
        usual = {
            "training.n_epochs": 60, "training.per_device_train_batch_size": 4, "training.patience": 0,
            "checkpoint.every_steps": 10, "training.eval_every_n_epochs": 10,
        }  # fmt: skip
        return small_config(**usual | changes)

    return settings
