"""`python -m bert4rec plan …`: the plan of a run on a cluster that need not be there."""

import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bert4rec.config.load import load_config, parse_command_line
from bert4rec.config.tables import Config
from bert4rec.dataset.schema import METADATA
from bert4rec.runtime.errors import SettingsError, UserError

if TYPE_CHECKING:  # importing torch takes seconds, which an error need not wait for
    from bert4rec.runtime.memory import Memory
    from bert4rec.sharding.plan import Plan

USAGE = """usage: python -m bert4rec plan --world-size=N --device=cuda|cpu [--items=N] [--table.key=value …]

Who would hold what, in bytes, and how long a step would spend on the item table: by the formulas with which a run is
planned, and TorchRec's planner and estimator. Nothing is allocated, no GPU is needed. Exit status 1: it does not fit.

--world-size=N        processes
--device=cuda|cpu     of the processes
--items=N             items in the catalogue (default: those of the dataset folder of the settings)
--local-world-size=N  processes a host (default: 8, or all where there are fewer)
--memory-gb=X         GB (10^9 bytes) of memory of a GPU (default: 80)
--host-memory-gb=X    GB of memory of a host (default: on cpu what this host has available, on cuda no limit)
--config=FILE         settings file (default: config.toml)
--table.key=value     any setting, as train.py takes it: --mode=ddp, --model.embed_dim=128, …"""

GB = 1e9
DEFAULT_GPU_GB = 80.0
DEFAULT_PROCESSES_PER_HOST = 8
OPTIONS = ("world-size", "device", "items", "local-world-size", "memory-gb", "host-memory-gb")


@dataclass(frozen=True)
class Cluster:
    """What is asked about: `gpu_gb` and `host_gb` are None where nothing was said."""

    world_size: int
    local_world_size: int
    device_type: str
    n_items: int | None
    gpu_gb: float | None
    host_gb: float | None


def show_plan(argv: Sequence[str]) -> int:
    """Print the plan that `argv` asks for; the exit status: 0 it fits, 1 it does not.

    Raises `UserError` for arguments or settings that cannot be.
    """
    if "--help" in argv or "-h" in argv:
        print(USAGE)
        return 0
    own, rest = _split(argv)
    cluster = _cluster(own)
    config = load_config(*parse_command_line([*rest, f"--parallelism.device={cluster.device_type}"]))
    n_items = _catalogue(config) if cluster.n_items is None else cluster.n_items
    warnings.simplefilter("ignore")
    logging.getLogger("torchrec").setLevel(logging.ERROR)
    plan = _plan(config, cluster, n_items)
    from bert4rec.sharding.advice import refuse_unless_it_fits
    from bert4rec.sharding.plan import summary

    print("\n".join([summary(plan), *_assumptions(cluster), *_times(plan)]), flush=True)
    try:
        refuse_unless_it_fits(plan, min_len=config.shortest_window)
    except SettingsError as refusal:
        print(refusal)
        return 1
    print("it fits")
    return 0


def _plan(config: Config, cluster: Cluster, n_items: int) -> "Plan":
    from bert4rec.config.resolve import resolve
    from bert4rec.sharding.plan import make_plan
    from bert4rec.training.build import job

    wanted = job(
        resolve(config, cluster.device_type, n_items),
        n_items,
        device_type=cluster.device_type,
        world_size=cluster.world_size,
        local_world_size=cluster.local_world_size,
    )
    return make_plan(wanted, _memory(cluster))


def _split(argv: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The options of this command by name, and the words that are settings."""
    own: dict[str, str] = {}
    rest: list[str] = []
    words = iter(argv)
    for word in words:
        name, sign, text = word.removeprefix("--").partition("=")
        if not word.startswith("--") or name not in OPTIONS:
            rest += [word] if sign or not word.startswith("--") else [word, *_next(words)]
            continue
        found = [text] if sign else list(_next(words))
        if not found:
            raise SettingsError(f"--{name}: a value is missing; write --{name}=VALUE")
        own[name] = found[0]
    return own, rest


def _next(words: Iterator[str]) -> Iterator[str]:
    """The next word, if there is one."""
    for word in words:
        yield word
        return


def _cluster(own: Mapping[str, str]) -> Cluster:
    for name, example in (("world-size", "--world-size=8"), ("device", "--device=cuda")):
        if name not in own:
            raise SettingsError(f"--{name} is missing, for instance {example}; python -m bert4rec plan --help")
    if own["device"] not in ("cuda", "cpu"):
        raise SettingsError(f'--device={own["device"]}: must be "cuda" or "cpu"')
    if own["device"] == "cpu" and "memory-gb" in own:
        raise SettingsError("--memory-gb: is the memory of a GPU; with --device=cpu use --host-memory-gb")
    world_size = _count(own, "world-size")
    local = _count(own, "local-world-size") if "local-world-size" in own else DEFAULT_PROCESSES_PER_HOST
    local = local if "local-world-size" in own else min(local, world_size)
    if world_size % local:
        raise SettingsError(
            f"--world-size={world_size}: must be a multiple of the {local} processes of a host (--local-world-size)"
        )
    n_items = _count(own, "items") if "items" in own else None
    return Cluster(
        world_size, local, own["device"], n_items, _gigabytes(own, "memory-gb"), _gigabytes(own, "host-memory-gb")
    )


def _count(own: Mapping[str, str], name: str) -> int:
    text = own[name].replace("_", "")
    if not (text.isascii() and text.isdigit() and int(text)):
        raise SettingsError(f"--{name}={own[name]}: must be a whole number of at least 1")
    return int(text)


def _gigabytes(own: Mapping[str, str], name: str) -> float | None:
    if name not in own:
        return None
    try:
        value = float(own[name])
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise SettingsError(f"--{name}={own[name]}: must be a number of GB above 0")
    return value


def _catalogue(config: Config) -> int:
    """Items in the dataset folder of the settings."""
    path = config.data.folder / METADATA
    try:
        return int(json.loads(path.read_text())["items"])
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(
            f"{path}: does not say how many items there are; run `python preprocessing.py` with these settings first, "
            "or name them with --items=N"
        ) from None


def _memory(cluster: Cluster) -> "Memory":
    """What each process may take."""
    from bert4rec.runtime.memory import Memory, host_memory

    host = None if cluster.host_gb is None else int(cluster.host_gb * GB)
    if cluster.device_type == "cpu":
        return Memory(host=(host_memory() if host is None else host) // cluster.local_world_size)
    gpu = DEFAULT_GPU_GB if cluster.gpu_gb is None else cluster.gpu_gb
    return Memory(host=None if host is None else host // cluster.local_world_size, device=int(gpu * GB))


def _assumptions(cluster: Cluster) -> Iterator[str]:
    """What was taken for granted where nothing was said."""
    if cluster.device_type == "cuda" and cluster.gpu_gb is None:
        yield f"  assumed: {DEFAULT_GPU_GB:.0f} GB a GPU (--memory-gb)"
    if cluster.host_gb is None:
        host = "this host's available memory" if cluster.device_type == "cpu" else "as much host memory as it takes"
        yield f"  assumed: {host} (--host-memory-gb)"


def _times(plan: "Plan") -> Iterator[str]:
    """The slowest process by TorchRec's estimate, and the bandwidths that this rests on."""
    if not plan.times:
        yield "embedding time: no estimate for ddp; every step all-reduces the gradients of the tables"
        return
    from bert4rec.sharding.placement import machine

    rank, time = max(plan.times.items(), key=lambda item: sum(item[1]))
    yield (
        f"embedding time: {sum(time):.3g} ms a step, TorchRec's estimate for the slowest process ({rank}): "
        f"forward {time.forward_compute:.3g} ms of lookups, {time.forward_communication:.3g} ms of messages; "
        f"backward {time.backward_compute:.3g} and {time.backward_communication:.3g}"
    )
    where = machine(plan.job)
    speeds = {"GPU memory": where.hbm_mem_bw, "host memory": where.ddr_mem_bw, "GPU to host": where.hbm_to_ddr_mem_bw,
              "within a host": where.intra_host_bw, "between hosts": where.inter_host_bw}  # fmt: skip
    yield "  it takes for granted, in GB/s: " + ", ".join(
        f"{name} {speed * 1000 / GB:.0f}" for name, speed in speeds.items()
    )
    if plan.job.updates["item"] == "dense_shards":
        yield "  each process scores and updates the rows that it holds itself: without messages, and not in this time"
    elif plan.job.scores_whole_catalogue and plan.sharding_types["item"] == "row_wise":
        yield "  each process scores the share of the catalogue that it holds itself, so that share sends no messages"
