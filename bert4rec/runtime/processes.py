"""The processes of a run: rank and device of this process, and a process group that is formed and destroyed cleanly."""

import gc
import itertools
import logging
import os
import random
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from threading import Timer

import numpy as np
import torch
import torch.distributed as dist

from bert4rec.runtime.errors import RunInterruptedError, SettingsError, pluralize
from bert4rec.runtime.memory import compile_few_kernels
from bert4rec.runtime.startup import threads_of_process

SECONDS_TO_COME = 1800.0  # timeout for the start of all processes: hosts of a cluster may start minutes apart
SECONDS_OF_SILENCE = 10.0  # before a process logs that it waits
MESHES = 3  # gloo groups that connect every pair of processes: for steps, checkpoints and decisions
OTHER_FILES = 100  # other open files of a process: about 20 on CPU; the rest for CUDA and NCCL
SHARES_STORE = "TORCHELASTIC_USE_AGENT_STORE"

MORE_FILES = "raise the hard limit: `ulimit -Hn`, LimitNOFILE= of a service, or /etc/security/limits.conf"

DROPOUT_STREAM = 0x44524F50  # separates dropout's draws from all other generators that are seeded with two numbers

logger = logging.getLogger(__name__)
_calls = itertools.count()


@dataclass(frozen=True)
class Processes:
    """The place of this process in the run: `rank` among all hosts, `local_rank` on this host.

    It waits at most `minutes` for another process.
    """

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    device: torch.device
    minutes: float = 10.0

    @property
    def is_rank_zero(self) -> bool:
        """Return whether this process writes and prints."""
        return self.rank == 0


def this_process(device_setting: str, store: dist.Store | None = None, *, minutes: float = 10.0) -> Processes:
    """Return this process from torchrun's environment variables; without a launcher it is the only process.

    With a launcher, also raise the limit of open files. If each process of a host sees a single GPU of its own, which
    the processes compare in the `store`, it uses that GPU. Raises `SettingsError` for too few GPUs or open files.
    """
    if "RANK" not in os.environ:
        return Processes(0, 0, 1, 1, choose_device(device_setting, local_rank=0, local_world_size=1), minutes)
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    rank, local_rank, world_size, local_world_size = (int(os.environ[name]) for name in names)
    allow_open_files(world_size)
    if store and device_setting != "cpu" and local_world_size > 1 and has_own_gpu(store, local_world_size):
        return Processes(rank, local_rank, world_size, local_world_size, torch.device("cuda", 0), minutes)
    device = choose_device(device_setting, local_rank=local_rank, local_world_size=local_world_size)
    if rank == 0 and device_setting == "auto" and device.type == "cpu" and torch.cuda.device_count():
        shared = f"{pluralize(local_world_size, 'process')} share {pluralize(torch.cuda.device_count(), 'GPU')}"
        logger.info(f"training on CPU: {shared}; start one per GPU")
    return Processes(rank, local_rank, world_size, local_world_size, device, minutes)


def choose_device(setting: str, *, local_rank: int, local_world_size: int) -> torch.device:
    """Return the device of this process: the CPU or its own GPU; "auto" uses GPUs if there is one per process.

    Raises `SettingsError` if `setting` is "cuda" and there are fewer GPUs than processes.
    """
    n_gpus = torch.cuda.device_count()
    if setting == "cuda" and n_gpus < local_world_size:
        raise SettingsError(
            f'parallelism.device = "cuda": {pluralize(local_world_size, "process")} on this host but '
            f'{pluralize(n_gpus, "GPU")}; start at most one process per GPU, or set parallelism.device = "cpu"'
        )
    if setting == "cpu" or n_gpus < local_world_size:
        return torch.device("cpu")
    return torch.device("cuda", local_rank)


def has_own_gpu(store: dist.Store, local_world_size: int) -> bool:
    """Return whether each process of this host sees one GPU that no other one sees, as under `srun --gpus-per-task=1`.

    GPUs are compared by their UUIDs, since each process calls its GPU cuda:0. Every process of the host calls this and
    gets the same result. Raises `RunInterruptedError` if a process does not start in time.
    """
    n_seen = torch.cuda.device_count()
    if n_seen >= local_world_size:
        return False
    store = dist.PrefixStore(f"gpus/{socket.gethostname()}/{os.environ.get('GROUP_RANK', '')}", store)
    is_new = n_seen == 1 and store.add(f"seen/{torch.cuda.get_device_properties(0).uuid}", 1) == 1
    store.add("different", int(is_new))
    if store.add("asked", 1) == local_world_size:
        store.set("own", str(int(store.add("different", 0) == local_world_size)))
    try:
        store.wait(["own"], timedelta(seconds=SECONDS_TO_COME))
    except dist.DistError:
        raise RunInterruptedError(
            f"some of the {local_world_size} processes of this host did not start within {SECONDS_TO_COME:g} s; read "
            "their output and start again"
        ) from None
    return store.get("own") == b"1"


def open_files_needed(world_size: int) -> int:
    """Return the number of files that each of `world_size` processes may open; nearly all are connections."""
    return MESHES * (world_size - 1) + OTHER_FILES


def allow_open_files(world_size: int) -> None:
    """Raise this process's limit of open files to the hard limit. Raises `SettingsError` if that is too low."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    needed = open_files_needed(world_size)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise SettingsError(
            f"this host limits a process to {hard:,} open files, but each of {pluralize(world_size, 'process')} "
            f"needs {needed:,}; {MORE_FILES}"
        )


def seed_everything(seed: int, rank: int) -> None:
    """Seed every global generator of process `rank`; only dropout uses them, all other draws have own generators."""
    local_seed = process_seed(seed, rank)
    random.seed(local_seed)
    np.random.seed(local_seed % 2**32)
    torch.manual_seed(local_seed)


def process_seed(seed: int, rank: int) -> int:
    """Return a 64-bit seed from both: process 1 of a run draws other numbers than process 0 with the next `seed`."""
    return int(np.random.SeedSequence([seed, rank, DROPOUT_STREAM]).generate_state(1, np.uint64)[0])


def rendezvous() -> tuple[dist.Store, int, int]:
    """Return the store shared by the processes of a run, the rank of this process, and the world size.

    All processes call this as often; each call returns a store without the keys of earlier ones. Other processes may
    not have started yet. Raises `RunInterruptedError` if rank zero cannot be reached, and
    `SettingsError` if variables are missing or the launcher's options do not work together.
    """
    if "RANK" not in os.environ:
        return dist.TCPStore("localhost", 0, 1, is_master=True), 0, 1
    if os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0" and os.environ.get(SHARES_STORE) == "True":
        raise SettingsError(  # restarted processes would read the addresses of dead ones from torchrun's store
            "torchrun --max_restarts: its processes cannot meet again after a restart, unless it runs with "
            "--rdzv-backend=c10d (or --standalone) and the variable TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"
        )
    missing = [name for name in ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        raise SettingsError(f"RANK is set, but not {', '.join(missing)}: start it with torchrun, or set them all")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = _store(rank, world_size, os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    return dist.PrefixStore(f"call-{next(_calls)}", store), rank, world_size


def _store(rank: int, world_size: int, address: str, port: int) -> dist.Store:
    """Return the launcher's store if it shares one, else that of rank zero. Raises `RunInterruptedError`."""
    is_of_launcher = os.environ.get(SHARES_STORE) == "True"
    patience = timedelta(seconds=SECONDS_TO_COME)
    endpoint = f"{address}:{port}"
    waiting = Timer(SECONDS_OF_SILENCE, logger.info, [f"waiting for the first process of this run, at {endpoint}"])
    waiting.daemon = True
    waiting.start()
    try:
        is_server = rank == 0 and not is_of_launcher
        return dist.TCPStore(
            address, port, world_size, is_server, patience, wait_for_workers=False, multi_tenant=is_server
        )
    except dist.DistError as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise RunInterruptedError(
            f"the processes of this run cannot connect at {endpoint} ({reason}); start all hosts within "
            f"{SECONDS_TO_COME / 60:g} minutes, with a --master-addr and --master-port that each of them can reach"
        ) from None
    finally:
        waiting.cancel()


@contextmanager
def process_group(
    world: Processes, store: dist.Store | None = None, *, deterministic: bool = False, precision: str = "fp32"
) -> Iterator[None]:
    """Form the group of all processes, with NCCL between GPUs and gloo between CPUs; the processes meet in `store`.

    With `deterministic`, torch uses only algorithms with bitwise reproducible results; `precision` is that of matrix
    products. At the end, garbage is collected before the group is destroyed: shards that outlive it can abort the
    process.
    """
    on_gpu = world.device.type == "cuda"
    if n_threads := threads_of_process(world.local_world_size):
        torch.set_num_threads(n_threads)
    if not on_gpu:
        compile_few_kernels(precision=precision)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic only with it
    torch.use_deterministic_algorithms(deterministic)
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    if on_gpu:
        torch.cuda.set_device(world.device)
    store = store or rendezvous()[0]
    patience = timedelta(minutes=world.minutes)
    store.set_timeout(patience)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
        store=store,
        rank=world.rank,
        world_size=world.world_size,
        timeout=patience,
        device_id=world.device if on_gpu else None,
    )
    yield
    # Not after a failure: the other processes do not reach the barrier, and the launcher ends them.
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


@contextmanager
def group_of_one() -> Iterator[None]:
    """Form a process group of this process alone, to read and write checkpoints."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def preserve_global_state() -> Iterator[None]:
    """Restore random states, torch's threads and algorithms after the block, and leave no new process group.

    The random states of GPUs are restored if CUDA was initialized before.
    """
    with ExitStack() as stack:
        if not dist.is_initialized():
            stack.callback(_leave_group)
        stack.callback(random.setstate, random.getstate())
        stack.callback(np.random.set_state, np.random.get_state())
        stack.callback(torch.set_rng_state, torch.get_rng_state())
        if torch.cuda.is_initialized():
            stack.callback(torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all())
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        stack.callback(setattr, torch.backends.mkldnn, "enabled", torch.backends.mkldnn.enabled)
        stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        warns_only = torch.is_deterministic_algorithms_warn_only_enabled()
        is_deterministic = torch.are_deterministic_algorithms_enabled()
        stack.callback(torch.use_deterministic_algorithms, is_deterministic, warn_only=warns_only)
        yield


def _leave_group() -> None:
    """Leave the group of a failed run of one process; with several, other processes may be waiting in it."""
    if dist.is_initialized() and dist.get_world_size() == 1:
        gc.collect()
        dist.destroy_process_group()
