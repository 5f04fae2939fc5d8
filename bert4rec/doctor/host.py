"""The host: devices, shared memory, open files, its name, disk, clock."""

import os
import resource
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

from bert4rec.doctor.finding import Finding
from bert4rec.runtime.cores import usable_cores
from bert4rec.runtime.wording import counted

MIB, GB = 2**20, 1e9
SHARED = 64 * MIB  # what batches of loader workers, gloo and NCCL want at least
FREE_DISK = 1 * GB
CLOCK_TOLERANCE = 2.0  # seconds between this host's clock and that of the disk
FIRST_YEAR = 2025


def host(folder: Path, n_processes: int = 1) -> Iterator[Finding]:
    """All of them, for so many processes; the disk is that of `folder`, or of where it will be made."""
    yield devices()
    yield load()
    yield shared_memory()
    yield open_files(n_processes)
    yield host_name()
    yield disk(folder)
    yield clock(folder)


def devices() -> Finding:
    """GPUs, or the cores that this process may use."""
    import torch

    if not torch.cuda.is_available():
        n_cores = usable_cores()
        if torch.version.cuda:
            advice = "`nvidia-smi` says what the driver sees; with --parallelism.device=cpu no GPU is wanted"
            return Finding("devices", f"{n_cores} CPU cores; no GPU, though torch is built for CUDA", advice)
        return Finding("devices", f"{n_cores} CPU cores, no GPU (torch is built for CPUs)")
    names = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    text = ", ".join(f"{gpu.name} ({gpu.total_memory / GB:.0f} GB)" for gpu in names)
    apart = _apart(len(names))
    if apart:
        return Finding("devices", f"{text}; GPUs {apart} cannot reach each other's memory",
                       "where NCCL hangs, NCCL_P2P_DISABLE=1 lets it go through host memory")  # fmt: skip
    return Finding("devices", text)


def _apart(n_gpus: int) -> str:
    """The first pair of GPUs without a way between their memories; "" where there is none."""
    import torch

    pairs = ((a, b) for a in range(n_gpus) for b in range(a + 1, n_gpus))
    return next((f"{a} and {b}" for a, b in pairs if not torch.cuda.can_device_access_peer(a, b)), "")


def load() -> Finding:
    """Return whether other programs compute on the cores of this process."""
    n_running, n_cores = os.getloadavg()[0], usable_cores()
    slower = ": a training beside them takes several times as long" if n_running > n_cores / 2 else ""
    computed = f"{n_running:.1f} threads of all programs computed on average in the last minute"
    return Finding("load", f"{computed}, on {counted(n_cores, 'core')}{slower}")


def shared_memory() -> Finding:
    """What loader workers hand their batches over in."""
    name, advice = "shared memory", "start the container with --ipc=host or --shm-size=1g, or mount a larger /dev/shm"
    try:
        block = SharedMemory(create=True, size=SHARED)
        block.close()
        block.unlink()
    except OSError as error:
        return Finding(name, f"no {SHARED // MIB} MiB: {error.strerror}", advice)
    place = Path("/dev/shm")
    free = shutil.disk_usage(place).free if place.is_dir() else SHARED
    if free < SHARED:
        return Finding(name, f"{free / MIB:,.0f} MiB free in {place}, less than {SHARED // MIB}", advice)
    return Finding(name, f"{free / GB:.1f} GB free")


def open_files(n_processes: int) -> Finding:
    """How many a process may have open: a training raises its own limit to the hard one."""
    from bert4rec.runtime.processes import MESHES, MORE_FILES, OTHER_FILES, open_files_needed

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = open_files_needed(n_processes)
    if hard == resource.RLIM_INFINITY:
        return Finding("open files", "no limit")
    if hard < needed:
        wanted = f"less than the {needed:,} of a training on {counted(n_processes, 'process')}"
        return Finding("open files", f"at most {hard:,} a process, {wanted}", MORE_FILES)
    most = (hard - OTHER_FILES) // MESHES + 1
    return Finding("open files", f"{hard:,} a process, enough for {counted(most, 'process')}")


def host_name() -> Finding:
    """Whether this host finds itself by its name, as gloo does."""
    name = socket.gethostname()
    try:
        addresses = {str(info[4][0]) for info in socket.getaddrinfo(name, None)}
    except OSError as error:
        advice = f'add "127.0.0.1 {name}" to /etc/hosts (on several hosts its address), or set GLOO_SOCKET_IFNAME'
        return Finding("host name", f"{name} does not resolve: {error.strerror}", advice)
    return Finding("host name", f"{name} is {', '.join(sorted(addresses))}")


def disk(folder: Path) -> Finding:
    """Whether there is room, and leave to write, where runs go."""
    place = _existing(folder)
    free = shutil.disk_usage(place).free
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(bytes(MIB))
            file.flush()
    except OSError as error:
        return Finding("disk", f"{place}: cannot be written: {error.strerror}", "name another folder with --run.dir")
    if free < FREE_DISK:
        return Finding(
            "disk", f"{free / GB:.2f} GB free at {place}", "free some, or name another folder with --run.dir"
        )
    return Finding("disk", f"{free / GB:,.0f} GB free at {place.absolute()}")


def clock(folder: Path) -> Finding:
    """Whether it is set, and tells the time of the disk, which may be another host's."""
    now = time.time()
    if time.gmtime(now).tm_year < FIRST_YEAR:
        return Finding("clock", time.strftime("%Y-%m-%d %H:%M", time.gmtime(now)), "set it: `timedatectl set-ntp true`")
    try:
        with tempfile.NamedTemporaryFile(dir=_existing(folder)) as file:
            behind = os.fstat(file.fileno()).st_mtime - now
    except OSError:
        behind = 0.0  # what is wrong with the disk has been said
    if abs(behind) > CLOCK_TOLERANCE:
        return Finding("clock", f"differs by {behind:+.0f} s from that of the disk", "synchronize both by NTP")
    return Finding("clock", time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(now)))


def _existing(folder: Path) -> Path:
    """It, or the first folder above it that is there."""
    folder = folder.absolute()
    return next(place for place in (folder, *folder.parents) if place.is_dir())
