"""What a training may change for all, and what it leaves behind."""

import logging
import os
import random
import warnings
from contextlib import suppress
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from bert4rec.runtime.console import quiet_libraries
from bert4rec.runtime.processes import preserve_global_state, process_group, seed_everything, this_process


def snapshot() -> list[Any]:
    loggers = [logging.getLogger(name) for name in (None, "torch", "torchrec")]
    return [
        random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist(), torch.get_num_threads(),
        torch.backends.mkldnn.enabled, torch.get_float32_matmul_precision(), dist.is_initialized(),
        torch.are_deterministic_algorithms_enabled(), list(warnings.filters),
        {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        [(logger.level, list(logger.handlers)) for logger in loggers],
    ]  # fmt: skip


def turn_everything() -> None:
    """As a training does, and the libraries that it imports."""
    seed_everything(7, 0)
    torch.set_num_threads(2)
    torch.use_deterministic_algorithms(True)
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    torch.set_float32_matmul_precision("high")
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    logging.getLogger().addHandler(logging.StreamHandler())


def test_all_is_as_before_after_an_end_and_after_a_failure(alone: None) -> None:
    torch.set_num_threads(1)
    before = snapshot()
    with quiet_libraries(), preserve_global_state():
        turn_everything()
        warnings.warn("of a library", FutureWarning, stacklevel=1)
        assert logging.getLogger("torchrec").level == logging.ERROR
    assert snapshot() == before
    group = process_group(this_process("cpu"), deterministic=True)
    with suppress(ZeroDivisionError), quiet_libraries(), preserve_global_state(), group:
        turn_everything()
        _ = 1 / 0
    assert snapshot() == before


def test_a_group_that_was_there_stays(group_of_one: None) -> None:
    with preserve_global_state():
        pass
    assert dist.is_initialized()
