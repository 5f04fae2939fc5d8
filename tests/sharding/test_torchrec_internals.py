"""What is used beside the public interfaces of torch, TorchRec and fbgemm, for the versions that are pinned."""

from pathlib import Path

import pytest
import torch
from torchrec.distributed.model_parallel import DistributedModelParallel

from bert4rec.models.tables import Table
from bert4rec.sharding.parallelize import _Sharder
from bert4rec.sharding.plan import make_plan
from bert4rec.sharding.torchrec_internals import kernels, lookup_of_whole_table, n_features
from scripts.requirements import requirements
from tests.sharding.make_job import NO_LIMIT, make_job

ROOT = Path(__file__).parents[2]

# package → the versions for which every name below was read in the sources and used. Before one is added here: look at
# what bert4rec/sharding/torchrec_internals.py does with each name, in the sources of that version.
# Of torchrec 1.6.1 and fbgemm-gpu 1.6.0 the names of the kernel, the planner and the sharded collection were only read;
# of torch 2.11, with which they go, none.
CHECKED = {"torch": ["2.13.0"], "torchrec": ["1.8.0"], "fbgemm-gpu": ["1.8.0"]}


@pytest.mark.parametrize("package", CHECKED)
def test_the_pinned_version_is_one_that_was_checked(package: str) -> None:
    (pinned,) = (text.removeprefix(f"{package}==") for text in requirements() if text.startswith(f"{package}=="))
    assert pinned in CHECKED[package], f"look at the sources of {package} {pinned}, then add it to CHECKED"
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    assert not [line for line in lines if line.startswith(f"{package}==")]  # no other file pins it


def test_the_kernel_of_a_sharded_collection(group_of_one: None) -> None:
    job = make_job(20, loss="sampled_softmax")
    model = DistributedModelParallel(
        job.built, device=torch.device("cpu"), plan=make_plan(job, NO_LIMIT).sharding_plan,
        sharders=[_Sharder(job, 0.1)], init_data_parallel=False,
    )  # fmt: skip
    table = model.module.item_table
    assert isinstance(table, Table)
    (found,) = kernels(model.module)
    assert n_features(found) == 2  # sequences, candidates
    assert lookup_of_whole_table(table.collection, (20, 68)) is not None
    assert lookup_of_whole_table(table.collection, (40, 68)) is None
    assert (found.use_cpu, found.max_D, found.weights_host.numel()) == (True, 68, 20 * 68)
