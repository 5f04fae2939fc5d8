"""`bert4rec plan …`: print the sharding plan of a run on any cluster, or what a preparation takes."""

import argparse
import math
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from bert4rec.checkpoint.run_settings import only_dataset, with_dataset
from bert4rec.commands import plan_preparation
from bert4rec.config.kinds import KINDS, needs_negatives
from bert4rec.config.load import NO_FILE, USUAL_FILE, load_config, parse_command_line, settings_file, take_positional
from bert4rec.config.tables import PRIOR_UP_TO, Config
from bert4rec.runtime.console import hide_warnings
from bert4rec.runtime.errors import DataError, SettingsError, UserError, format_bytes
from bert4rec.runtime.files import GB
from bert4rec.runtime.startup import importing

if TYPE_CHECKING:  # torch takes seconds to import, and would delay help and errors
    from bert4rec.config.resolve import Facts
    from bert4rec.dataset.reader import Sizes
    from bert4rec.runtime.memory import Memory
    from bert4rec.sharding.plan import Plan


DEFAULT_GPU_GB = 80.0
DEFAULT_PROCESSES_PER_HOST = 8
USUAL_FILES = 1024  # the lowest usual limit of open files


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for the cluster and the catalogue; any setting is an option, too."""
    parser.usage = (
        "%(prog)s [DATASET] [--world-size=N] [--device=cpu|cuda] [--items=N] [--users=N] [--features=N,N,…]\n"
        "       [--table.key=value …]\n"
        "       %(prog)s --rows=N --users=N --items=N [--workers=N] [--id-bytes=N] [--preprocessing.key=value …]"
    )
    parser.description = (
        "Prints the bytes on each process and the time of a step for the tables, by the formulas that plan a run "
        "and by TorchRec's planner and estimator. Nothing is allocated, no GPU is needed. Exit status 1: it does not "
        "fit. With --rows: the tasks, files, bytes, memory and time of a preparation of that size."
    )
    parser.epilog = (
        "--table.key=value: any setting, as `bert4rec train` takes it: --mode=ddp, --model.embed_dim=128, …; "
        "--help-all lists all"
    )
    parser.set_defaults(settings=[])
    add = parser.add_argument

    def add_number(option: str, kind: type[int] | type[float], about: str, **options: Any) -> None:
        metavar = "N" if kind is int else "X"
        add(option, type=partial(_positive, option, kind), metavar=metavar, help=about, **options)

    add_number("--world-size", int, "processes (default: %(default)s)", default=1)
    add("--device", choices=("cpu", "cuda"), default="cpu", help="of the processes (default: %(default)s)")
    add_number("--items", int, "items in the catalogue (default: those of DATASET, or of the only dataset)")
    add_number("--users", int, "users, for a model with a table of them (default: those of the dataset)")
    features = "numbers of values of item features with one value an item (default: those of the dataset, or none)"
    add("--features", type=_numbers, metavar="N,N,…", help=features)
    processes = f"processes per host (default: {DEFAULT_PROCESSES_PER_HOST}, or --world-size if that is less)"
    add_number("--local-world-size", int, processes)
    add_number("--memory-gb", float, f"GB (10^9 bytes) of memory of a GPU (default: {DEFAULT_GPU_GB:g})")
    host_memory = "GB of memory of a host (default: on cpu what this host has available, on cuda no limit)"
    add_number("--host-memory-gb", float, host_memory)
    add_number("--rows", int, "rows of a log: plans its preparation, with --users and --items")
    add_number("--workers", int, "workers of the preparation (default: preprocessing.workers)")
    add_number("--id-bytes", int, "bytes of an id of the log that is text (default: ids are whole numbers)")
    add("--config", metavar="FILE", help=f"settings file (default: {USUAL_FILE}, if it exists)")


def run(arguments: argparse.Namespace) -> int:
    """Print the plan; return the exit status: 0 it fits, 1 it does not. Raises `UserError`."""
    if arguments.rows is not None:
        return plan_preparation.run(arguments)
    plan_preparation.refuse_without_rows(arguments)
    _check_cluster(arguments)
    arguments.dataset, options = take_positional(arguments.settings)
    overrides = parse_command_line([*options, f"--parallelism.device={arguments.device}"])[1]
    file, notes = settings_file(arguments.config), list[str]()
    if not arguments.dataset and _needs_dataset(load_config(file, overrides), arguments):
        arguments.dataset, notes = only_dataset(file, overrides, command="plan")
    config = load_config(file, with_dataset(arguments.dataset, overrides))
    if not KINDS[config.model.kind].is_trained:
        raise SettingsError(f'model.kind = "{config.model.kind}" is not trained: it has no plan; choose a trained kind')
    for note in ([NO_FILE] if file is None else []) + notes:
        print(note)
    hide_warnings()
    with importing():
        facts, sizes = _facts_and_sizes(config, arguments)
    n_processes, on_host = arguments.world_size, arguments.local_world_size
    plan = plan_of(config, facts, sizes, arguments.device, n_processes, on_host, _memory(arguments))
    from bert4rec.sharding.memory_check import few_negatives, refuse_unless_it_fits
    from bert4rec.sharding.plan import summary

    uneven, imbalance_lines = _load_imbalance(config, arguments, plan)
    assumed = _assumptions(config, arguments, plan)
    print("\n".join([summary(plan), *assumed, *_times(plan, uneven), *imbalance_lines]), flush=True)
    if warning := few_negatives(plan.job):
        print(f"warning: {warning}")
    try:
        refuse_unless_it_fits(plan, min_len=config.shortest_window)
    except SettingsError as refusal:
        print(refusal)
        return 1
    print("it fits")
    return 0


def plan_of(
    config: Config, facts: "Facts", sizes: "Sizes", device_type: str, world_size: int, local_world_size: int,
    memory: "Memory",
) -> "Plan":  # fmt: skip
    """Return the plan of a training with these settings. Raises `SettingsError` for settings that cannot be planned."""
    from bert4rec.config.resolve import resolve
    from bert4rec.sharding.plan import make_plan
    from bert4rec.training.build import job

    world: Any = {"device_type": device_type, "world_size": world_size, "local_world_size": local_world_size}
    return make_plan(job(resolve(config, device_type, facts, world_size), sizes, **world), memory)


def _facts_and_sizes(config: Config, arguments: argparse.Namespace) -> "tuple[Facts, Sizes]":
    """Return the facts that "auto" settings depend on, and the sizes of the tables, from the arguments or the dataset.

    With `--items`, all windows are assumed to be full; otherwise the dataset gives their mean length. A dataset that is
    named gives all sizes that have no argument, also with `--items`.
    """
    from bert4rec.config.resolve import Facts
    from bert4rec.dataset.item_features import BagFeature, FeatureSizes
    from bert4rec.dataset.reader import Sizes, open_dataset
    from bert4rec.training.build import facts_of_dataset, sizes_of, sources_of

    n_items, n_users, features = arguments.items or 0, arguments.users or 0, None
    if arguments.features:
        bags = [BagFeature(str(n_values), n_values) for n_values in arguments.features]
        features = FeatureSizes(tuple(bags), tables_from=config.model.feature_tables_from)
    if not arguments.dataset and not _needs_dataset(config, arguments):
        return Facts(n_items), Sizes(n_items, n_users, features=features, prior=sources_of(config, n_items))
    try:
        dataset = open_dataset(config.data.folder, verify=False)
    except DataError as error:
        option = "--users=N" if n_items else "--items=N"
        problem = str(error).partition("; ")[0]
        raise UserError(f"{problem}; run `bert4rec prepare` with these settings first, or set {option}") from None
    sizes = sizes_of(config, dataset)
    if n_items or n_users:
        sizes = sizes._replace(items=n_items or sizes.items, users=n_users or sizes.users, window_length=0.0)
    if n_items:
        sizes = sizes._replace(prior=sources_of(config, n_items))
    if features:
        sizes = sizes._replace(features=features)
    return Facts(n_items) if n_items else facts_of_dataset(config, dataset), sizes


def _needs_dataset(config: Config, arguments: argparse.Namespace) -> bool:
    """Return whether the arguments lack a size of a table."""
    has_users = "n_users" in KINDS[config.model.kind].size_arguments
    return arguments.items is None or (has_users and arguments.users is None)


def _check_cluster(arguments: argparse.Namespace) -> None:
    """Set the default of `--local-world-size`. Raises `SettingsError` for an impossible cluster."""
    if arguments.device == "cpu" and arguments.memory_gb is not None:
        raise SettingsError("--memory-gb: is the memory of a GPU; with --device=cpu use --host-memory-gb")
    world_size = arguments.world_size
    arguments.local_world_size = arguments.local_world_size or min(DEFAULT_PROCESSES_PER_HOST, world_size)
    if world_size % arguments.local_world_size:
        raise SettingsError(
            f"--world-size={world_size}: must be a multiple of the {arguments.local_world_size} processes of a host "
            "(--local-world-size)"
        )


def _positive(option: str, kind: type[int] | type[float], text: str) -> float:
    try:
        value = float(text)
        if kind is int and value.is_integer():  # 1e9, but the digits of 2_147_483_647_000_000_001 are not rounded
            value = int(value) if "e" in text.lower() else int(text)
        elif kind is int:
            value = 0
    except (ValueError, OverflowError):
        value = 0
    if not 0 < value < math.inf:
        what = "whole number" if kind is int else "number of GB"
        raise SettingsError(f"{option}={text}: must be a {what} above 0")
    return value


def _numbers(text: str) -> list[int]:
    return [int(_positive("--features", int, part)) for part in text.split(",")]


def _memory(arguments: argparse.Namespace) -> "Memory":
    """Return the memory limits of each process."""
    from bert4rec.runtime.host import host_memory
    from bert4rec.runtime.memory import Memory

    host = None if arguments.host_memory_gb is None else int(arguments.host_memory_gb * GB)
    if arguments.device == "cpu":
        return Memory(host=(host_memory() if host is None else host) // arguments.local_world_size)
    gpu = DEFAULT_GPU_GB if arguments.memory_gb is None else arguments.memory_gb
    return Memory(host=None if host is None else host // arguments.local_world_size, device=int(gpu * GB))


def _assumptions(config: Config, arguments: argparse.Namespace, plan: "Plan") -> Iterator[str]:
    """Yield a line for each default, and one for the open files that many processes need."""
    from bert4rec.runtime.processes import open_files_needed

    training = config.training
    if arguments.device == "cuda" and arguments.memory_gb is None:
        yield f"  assumed: {DEFAULT_GPU_GB:.0f} GB a GPU (--memory-gb)"
    if arguments.items and config.model.max_len == "auto" and KINDS[config.model.kind].is_transformer:
        yield f"  assumed: windows of at most {plan.job.model['max_len']} items (--model.max_len)"
    if arguments.items and config.model.prior == "auto" and plan.job.prior:
        yield f"  assumed: a log of at most {PRIOR_UP_TO:,} training positions (--model.prior)"
    if needs_negatives(plan.job.loss) and "auto" in (training.n_train_negatives, training.negatives_shared_by):
        shared_by = plan.job.negatives_shared_by
        who = "each process draws" if shared_by == 1 else f"{shared_by} processes share"
        yield f"  assumed: {who} {plan.job.n_train_negatives:,} negatives (--training.n_train_negatives)"
    if arguments.host_memory_gb is None:
        host = "this host's available memory" if arguments.device == "cpu" else "no limit of host memory"
        yield f"  assumed: {host} (--host-memory-gb)"
    if (files := open_files_needed(arguments.world_size)) > USUAL_FILES:
        yield f"  assumed: each process may open {files:,} files (`ulimit -Hn`)"


def _load_imbalance(config: Config, arguments: argparse.Namespace, plan: "Plan") -> tuple[float, list[str]]:
    """Return the load imbalance, which TorchRec's estimate ignores, and the line about it."""
    if plan.sharding_types.get("item") != "row_wise" or plan.job.group_size == 1:
        return 1.0, []
    if arguments.items:
        return 1.0, ["  assumed: all items are equally popular (without --items the popularity in the dataset counts)"]
    from bert4rec.dataset.reader import open_dataset
    from bert4rec.sharding.memory_check import load_imbalance

    folder = config.data.folder
    uneven = load_imbalance(plan.job, open_dataset(folder, verify=False).popularity)
    line = f"load imbalance: the busiest process serves {uneven:.2f} times the mean lookups, for the items of {folder}"
    return uneven, [f"  {line}"]


def _times(plan: "Plan", uneven: float) -> Iterator[str]:
    """Yield TorchRec's estimate for the slowest process, times the load imbalance, and the bandwidths it assumes."""
    if not plan.times:
        yield "embedding time: no estimate for ddp; every step all-reduces the gradients of the tables"
        return
    from bert4rec.sharding.footprint import message_bytes
    from bert4rec.sharding.plan import topology

    rank, time = max(plan.times.items(), key=lambda item: sum(item[1]))
    time = type(time)(*(part * uneven for part in time))
    yield (
        f"embedding time: {sum(time):.3g} ms a step, TorchRec's estimate for the slowest process ({rank}): "
        f"forward {time.forward_compute:.3g} ms of lookups, {time.forward_communication:.3g} ms of messages; "
        f"backward {time.backward_compute:.3g} and {time.backward_communication:.3g}"
    )
    if n_bytes := message_bytes(plan.job):
        what = f"{format_bytes(n_bytes)} of vectors to a process ({plan.job.messages})"
        yield f"  messages: {what}, as many bytes of gradients back"
    where = topology(plan.job)
    speeds = {"GPU memory": where.hbm_mem_bw, "host memory": where.ddr_mem_bw, "GPU to host": where.hbm_to_ddr_mem_bw,
              "within a host": where.intra_host_bw, "between hosts": where.inter_host_bw}  # fmt: skip
    yield "  assumed, in GB/s: " + ", ".join(f"{name} {speed * 1000 / GB:.0f}" for name, speed in speeds.items())
    for name, (n_bytes, milliseconds) in plan.messages().items():
        yield f"  {name}: {format_bytes(n_bytes)} a step to each process, {milliseconds:.3g} ms, not part of this time"
    if plan.job.updates["item"] == "dense_shards" and plan.job.scores_whole_catalogue:
        yield "  each process scores and updates its own rows: no messages, not part of this time"
    elif plan.job.scores_whole_catalogue and plan.sharding_types["item"] == "row_wise":
        yield "  each process scores its own share of the catalogue, which needs no messages"
