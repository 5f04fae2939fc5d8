"""What a training may change for all, and what it leaves behind."""

import logging
import os
import random
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from bert4rec.runtime.console import quiet_libraries
from bert4rec.runtime.processes import preserve_global_state, process_group, seed_everything, this_process


def snapshot() -> dict[str, Any]:
    root = logging.getLogger()
    return {
        "python": random.getstate(),
        "numpy": str(np.random.get_state()),
        "torch": torch.get_rng_state().tolist(),
        "threads": torch.get_num_threads(),
        "products": (torch.backends.mkldnn.enabled, torch.get_float32_matmul_precision()),
        "deterministic": (torch.are_deterministic_algorithms_enabled(), dist.is_initialized()),
        "environment": {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        "loggers": [(root.level, list(root.handlers))] + [logging.getLogger(n).level for n in ("torch", "torchrec")],
        "warnings": list(warnings.filters),
    }


@pytest.fixture
def before(alone: None) -> Iterator[dict[str, Any]]:
    torch.set_num_threads(1)
    return snapshot()


def turn_everything() -> None:
    """As a training does, and the libraries that it imports."""
    seed_everything(7, 0)
    torch.set_num_threads(2)
    torch.use_deterministic_algorithms(True)
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    torch.set_float32_matmul_precision("high")
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    logging.getLogger().addHandler(logging.StreamHandler())


def lose_a_training() -> None:
    with quiet_libraries(), preserve_global_state(), process_group(this_process("cpu"), deterministic=True):
        turn_everything()
        raise RuntimeError("lost")


def test_all_is_as_before_after_an_end_and_after_a_failure(before: dict[str, Any]) -> None:
    with quiet_libraries(), preserve_global_state():
        turn_everything()
        warnings.warn("of a library", FutureWarning, stacklevel=1)
        assert logging.getLogger("torchrec").level == logging.ERROR
    assert snapshot() == before
    with pytest.raises(RuntimeError, match="lost"):
        lose_a_training()
    assert snapshot() == before


def test_a_group_that_was_there_stays(group_of_one: None) -> None:
    with preserve_global_state():
        pass
    assert dist.is_initialized()
