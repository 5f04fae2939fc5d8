"""Weights saved by some processes in one mode load into any number of processes in any other."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert4rec.config import Config
from tests.distributed import jobs
from tests.distributed.test_parallelize import TABLES, assemble


@pytest.mark.parametrize(
    ("writers", "written_by", "readers", "read_by"),
    [
        (2, {"mode": "dmp"}, 1, {"mode": "dmp"}),
        (2, {"mode": "dmp"}, 3, {"mode": "dmp", "sharding_type": "column_wise", "sparse_optimizer": "sgd"}),
        (3, {"mode": "dmp"}, 2, {"mode": "ddp"}),
        (1, {"mode": "ddp"}, 2, {"mode": "dmp", "sharding_type": "table_wise"}),
    ],
)
def test_weights_survive_another_sharding(
    pools: Any,
    small_config: Callable[..., Config],
    tmp_path: Path,
    writers: int,
    written_by: dict[str, str],
    readers: int,
    read_by: dict[str, str],
) -> None:
    def config(how: dict[str, str], seed: int) -> Config:
        return small_config(**{f"parallelism.{key}": value for key, value in how.items()}, **{"training.seed": seed})

    saved = pools(writers).run(jobs.save, config(written_by, seed=1), tmp_path / "weights")
    loaded = pools(readers).run(jobs.load, config(read_by, seed=2), tmp_path / "weights")
    for name, parts in saved[0].items():
        if name in TABLES:
            np.testing.assert_array_equal(assemble(loaded, name), assemble(saved, name))
        else:
            np.testing.assert_array_equal(loaded[0][name][0][2], parts[0][2])
    assert [path.name for path in tmp_path.iterdir()] == ["weights"]
