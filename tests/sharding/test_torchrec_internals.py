"""What is used beside the public interfaces of torch, TorchRec and fbgemm is there, in the versions that are pinned."""

import ast
import dataclasses
import inspect
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner.types import Perf, Shard, ShardingOption, Storage, TopologyFactory, TrainerConfig

from bert4rec.models.tables import Table
from bert4rec.sharding import torchrec_internals
from bert4rec.sharding.parallelize import _Sharder
from bert4rec.sharding.plan import make_plan
from bert4rec.sharding.torchrec_internals import (
    kernels,
    lookup_of_whole_table,
    n_features,
    one_shard_tensor,
    sharded_tensor,
    with_input_lengths,
)
from scripts.requirements import requirements
from tests.sharding.make_job import NO_LIMIT, make_job

ROOT = Path(__file__).parents[2]

# package → the versions for which every name below was read in the sources and used. Before one is added here: look at
# what bert4rec/sharding/torchrec_internals.py does with each name, in the sources of that version.
# Of torchrec 1.6.1 and fbgemm-gpu 1.6.0 the names of the kernel, the planner and the sharded collection were only read;
# of torch 2.11, with which they go, none.
CHECKED = {"torch": ["2.13.0"], "torchrec": ["1.8.0"], "fbgemm-gpu": ["1.8.0"]}

FIELDS = {Perf: ["fwd_compute", "fwd_comms", "bwd_compute", "bwd_comms", "prefetch_compute"], Storage: ["hbm", "ddr"],
          Shard: ["size", "offset", "rank", "storage", "perf"]}  # fmt: skip


def require(package: str, holder: Any, *names: str) -> None:
    missing = [name for name in names if not hasattr(holder, name)]
    assert not missing, f"{package} {version(package)}: {holder!r} has no {missing}; checked for {CHECKED[package]}"


@pytest.mark.parametrize("package", CHECKED)
def test_the_pinned_version_is_one_that_was_checked(package: str) -> None:
    (pinned,) = (text.removeprefix(f"{package}==") for text in requirements() if text.startswith(f"{package}=="))
    assert pinned in CHECKED[package], (
        f"pyproject.toml pins {package} {pinned}, and its internals were checked for {', '.join(CHECKED[package])}: "
        f"look at the sources of {pinned}, then add it to CHECKED in {Path(__file__).name}"
    )


def test_no_other_file_pins_them() -> None:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    assert not [line for line in lines if line.startswith(tuple(f"{package}==" for package in CHECKED))]


def test_torch_has_what_is_used(group_of_one: None) -> None:
    require("torch", ShardedTensor, "_init_from_local_shards_and_global_metadata")
    made_from = inspect.signature(ShardedTensor._init_from_local_shards_and_global_metadata).parameters
    assert "process_group" in made_from
    tensor = one_shard_tensor(torch.ones(2, 3))
    require("torch", torch, "_foreach_lerp_")
    require("torch", tensor, "_process_group", "local_shards", "metadata")
    copy = sharded_tensor(tensor.local_shards(), tensor.metadata(), like=tensor)
    assert copy._process_group is tensor._process_group is dist.group.WORLD


def test_fbgemm_and_the_sharded_collection_have_what_is_used(group_of_one: None) -> None:
    job = make_job(20, loss="sampled_softmax")
    model = DistributedModelParallel(
        job.built, device=torch.device("cpu"), plan=make_plan(job, NO_LIMIT).sharding_plan,
        sharders=[_Sharder(job, 0.1)], init_data_parallel=False,
    )  # fmt: skip
    table = model.module.item_table
    assert isinstance(table, Table)
    require("torchrec", table.collection, "_lookups")
    (found,) = kernels(model.module)
    assert n_features(found) == 2  # sequences, candidates
    names = "iter iter_cpu weights_host max_D use_cpu feature_table_map weights_precision embedding_specs"
    require("fbgemm-gpu", found, *names.split())
    assert lookup_of_whole_table(table.collection, (20, 68)) is not None
    assert lookup_of_whole_table(table.collection, (40, 68)) is None
    assert (found.use_cpu, found.max_D, found.weights_host.numel()) == (True, 68, 20 * 68)


def test_the_planner_has_what_is_used() -> None:
    for holder, names in FIELDS.items():
        known = {field.name for field in dataclasses.fields(holder)}
        assert not set(names) - known, f"torchrec {version('torchrec')}: {holder} has no {set(names) - known}"
    for holder, arguments in {
        TrainerConfig: {"world_size", "local_world_size", "ddr_cap_bytes", "hbm_cap_bytes"},
        ShardingOption: {"name", "input_lengths", "sharding_type", "shards"},
    }.items():
        assert arguments <= inspect.signature(holder).parameters.keys()
    require("torchrec", TopologyFactory, "create_topology")
    sizes = {"world_size": 16, "local_world_size": 8, "hbm": 80 * 10**9, "ddr": 10**9}
    topology = torchrec_internals.make_topology(device_type="cuda", **sizes)
    require("torchrec", topology, "hbm_mem_bw", "ddr_mem_bw", "hbm_to_ddr_mem_bw", "intra_host_bw", "inter_host_bw")
    require("torchrec", torchrec_internals.perf_estimator(topology, {}), "estimate")


def test_an_option_is_changed_in_a_copy() -> None:
    option = SimpleNamespace(input_lengths=[5.0, 3.0], shards=[Shard([1, 2], [0, 0]), Shard([1, 2], [1, 0])])
    changed = with_input_lengths(option, [7.0, 0.0])
    changed.shards[0].size[0] = 9
    assert (changed.input_lengths, len(changed.shards)) == ([7.0, 0.0], 1)
    assert (option.input_lengths, len(option.shards), option.shards[0].size) == ([5.0, 3.0], 2, [1, 2])


LIBRARIES = ("torch", "torchrec", "fbgemm_gpu")
OURS = {"self", "cls", "os"}  # os._exit has no other name
DOCUMENTED = {"_replace", "_asdict", "_fields", "_check"}  # of named tuples, and torch._check for exported programs
HIDDEN = {"iter_cpu", "feature_table_map", "weights_host", "max_D", "_lookups", "_process_group"}


def hidden_names(path: Path) -> list[str]:
    """What a file uses of the libraries that begins with `_`, or that they do not document."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in LIBRARIES:
            parts = [*node.module.split("."), *(alias.name for alias in node.names)]
            found += [f"{node.module}: {part}" for part in parts if part.startswith("_")]
        if isinstance(node, ast.Attribute) and not (isinstance(node.value, ast.Name) and node.value.id in OURS):
            is_private = node.attr.startswith("_") and not node.attr.startswith("__")
            if node.attr in HIDDEN or (is_private and node.attr not in DOCUMENTED):
                found.append(f".{node.attr}")
    return [f"{path.relative_to(ROOT)}: {name}" for name in found]


def test_no_other_module_uses_what_is_private() -> None:
    allowed = ROOT / "bert4rec/sharding/torchrec_internals.py"
    assert hidden_names(allowed)
    paths = [path for path in (ROOT / "bert4rec").rglob("*.py") if path != allowed]
    assert not [name for path in paths for name in hidden_names(path)]
