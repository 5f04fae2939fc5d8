"""In which one of all combinations of settings the shards of the item table are ordinary parameters."""

import itertools
from typing import get_args

from bert4rec.config.table_updates import trains_shards
from bert4rec.config.tables import Model, Parallelism, Training


def test_only_row_wise_shards_on_the_device_under_the_exact_softmax_over_the_table_are_trained() -> None:
    fields = [(Parallelism, "mode"), (Training, "loss"), (Model, "head"), (Parallelism, "sharding_type"),
              (Parallelism, "compute_kernel")]  # fmt: skip
    choices = [get_args(table.model_fields[name].annotation) for table, name in fields]
    every = list(itertools.product(*choices))
    assert len(every) == 2 * 4 * 2 * 4 * 3
    assert [how for how in every if trains_shards(*how)] == [("dmp", "softmax", "tied", "row_wise", "fused")]
