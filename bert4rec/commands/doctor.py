"""`bert4rec doctor …`: check whether this machine can run the training of the settings, one line per check."""

import argparse
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import import_module, metadata
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from packaging.requirements import Requirement

from bert4rec.checkpoint.run_settings import only_dataset, with_dataset
from bert4rec.commands.plan import plan_of
from bert4rec.config.kinds import KINDS
from bert4rec.config.load import USUAL_FILE, load_config, parse_command_line, settings_file, take_positional
from bert4rec.config.tables import Config
from bert4rec.launch import TORCHRUN
from bert4rec.runtime.console import hide_warnings
from bert4rec.runtime.errors import SettingsError, UserError, pluralize
from bert4rec.runtime.files import GB, MIB
from bert4rec.runtime.startup import DISTRIBUTION, importing, usable_cores

MATCHING = ("torch", "torchrec", "fbgemm_gpu")  # compiled against one another: modules, in the order of their imports
SETUP = "`make setup` installs what fits together"

DRIVER = Path("/sys/module/nvidia/version")  # of the kernel module, which a container sees too
OLDEST_DRIVERS = {"12": 525, "13": 580}  # by version of CUDA
# fbgemm-gpu's wheels have machine code for 8.0, 9.0 and 10.0, and none that a driver compiles for other GPUs. That for
# 8.0 runs on all 8.x; that for the two others uses instructions of these versions alone.
CAPABILITIES = {*((8, minor) for minor in range(10)), (9, 0), (10, 0)}

SHARED_MEMORY = 64 * MIB  # the least that batches of loader workers, gloo and NCCL need
SHM = Path("/dev/shm")

FASTEST = "seconds of the fastest all-reduce: "
BACKEND = "BERT4REC_BACKEND"  # environment variable for the two processes of an all-reduce
N_NUMBERS = 4 * MIB  # numbers of 4 bytes, about as many as a large transformer has gradients
N_TIMINGS = 5
TIMEOUT_SECONDS = 120
NETWORK_ADVICE = {
    "gloo": "set GLOO_SOCKET_IFNAME to the network interface (`lo` within a host), add this host's name to /etc/hosts, "
    "let a firewall pass its own processes",
    "nccl": "NCCL_DEBUG=INFO says where it hangs; NCCL_P2P_DISABLE=1 goes through host memory, NCCL_SOCKET_IFNAME "
    "names the interface",
}


class Finding(NamedTuple):
    """The result of the check `name`; `advice` says what to do, and is empty if the check is good."""

    name: str
    text: str
    advice: str = ""

    def __str__(self) -> str:
        return f"BAD   {self.name}: {self.text}; {self.advice}" if self.advice else f"good  {self.name}: {self.text}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the number of processes and the settings file; any setting is an option, too."""
    parser.usage = "%(prog)s [DATASET] [--processes=N] [--config=FILE] [--table.key=value …]"
    parser.description = (
        "Checks what a training needs. Each check is a line, good or bad, and a bad one says what to do. Nothing is "
        "changed. Exit status 1: something is bad."
    )
    parser.epilog = "--table.key=value: any setting, as `bert4rec train` takes it"
    parser.set_defaults(settings=[])
    add = parser.add_argument
    add("--processes", metavar="N", type=int, default=1, help="processes of the training, on this host (default: 1)")
    add("--config", metavar="FILE", help=f"settings file (default: {USUAL_FILE}, if it exists)")


def run(arguments: argparse.Namespace) -> int:
    """Print each finding as soon as it is known; return the exit status: 0 all is good, 1 something is bad."""
    if arguments.processes < 1:
        raise SettingsError(f"--processes={arguments.processes}: must be at least 1")
    dataset, options = take_positional(arguments.settings)
    file, overrides, notes = settings_file(arguments.config), parse_command_line(options)[1], list[str]()
    if not dataset:
        dataset, notes = only_dataset(file, overrides, command="doctor")
    config = load_config(file, with_dataset(dataset, overrides))
    hide_warnings()
    n_bad = 0
    for note in notes:
        print(note)
    for finding in findings(config, arguments.processes):
        print(finding, flush=True)
        n_bad += bool(finding.advice)
    print(f"{pluralize(n_bad, 'bad check')}, see above" if n_bad else "all is good")
    return 1 if n_bad else 0


def findings(config: Config, n_processes: int) -> Iterator[Finding]:
    """Yield the result of each check."""
    yield packages()
    libraries = matching()
    yield libraries
    if libraries.advice:
        return  # the other checks need torch and fbgemm
    import torch

    yield devices()
    yield load()
    yield shared_memory()
    yield open_files(n_processes)
    if not open_files(2).advice:  # else the two processes do not start
        yield all_reduce("gloo")
        if torch.cuda.device_count() > 1:
            yield all_reduce("nccl")
    if KINDS[config.model.kind].is_trained:
        yield plan(config, n_processes)


def packages() -> Finding:
    """Check that each package that this one requires is installed, in a version that it allows."""
    texts = [text for text in metadata.requires(DISTRIBUTION) or [] if "extra ==" not in text]
    differing = []
    for requirement in map(Requirement, texts):
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            version = "missing"
        if version == "missing" or not requirement.specifier.contains(version, prereleases=True):
            differing.append(f"{requirement.name} {version}, expected {requirement.specifier}")
    about = f"Python {platform.python_version()}, {platform.machine()}"
    if differing:
        return Finding("packages", f"{about}; {', '.join(differing)}", SETUP)
    return Finding("packages", f"{about}; {len(texts)} packages in versions that fit")


def matching() -> Finding:
    """Check that torch, torchrec and fbgemm-gpu can be imported together."""
    versions = []
    for name in MATCHING:
        try:
            with importing():
                module = import_module(name)
        except (ImportError, OSError, AttributeError, RuntimeError) as error:  # compiled for another version
            first_line = (str(error) or type(error).__name__).splitlines()[0]
            return Finding("torch, torchrec, fbgemm", f"{name} does not load: {first_line}", SETUP)
        versions.append(f"{name} {getattr(module, '__version__', '')}".strip())
    return Finding("torch, torchrec, fbgemm", f"load together: {', '.join(versions)}")


def devices() -> Finding:
    """Check the driver and the GPUs; return them, or the cores that this process may use."""
    import torch

    if not torch.cuda.is_available():
        cores = pluralize(usable_cores(), "CPU core")
        if torch.version.cuda:
            problem, advice = _missing_gpu(torch.version.cuda)
            return Finding("devices", f"{cores}; {problem}", f"{advice}; --parallelism.device=cpu trains without a GPU")
        return Finding("devices", f"{cores}, no GPU (torch is built for CPUs)")
    numbers = range(torch.cuda.device_count())
    gpus = [torch.cuda.get_device_properties(number) for number in numbers]
    text = ", ".join(f"{gpu.name} ({gpu.total_memory / GB:.0f} GB)" for gpu in gpus)
    for gpu in gpus:
        if (gpu.major, gpu.minor) not in CAPABILITIES:
            text = f"{text}; {gpu.name} has compute capability {gpu.major}.{gpu.minor}, for which fbgemm has no kernels"
            return Finding("devices", text, "use a GPU of 8.0 to 8.9, 9.0 or 10.0, or --parallelism.device=cpu")
    for a, b in combinations(numbers, 2):
        if not torch.cuda.can_device_access_peer(a, b):
            text = f"{text}; GPUs {a} and {b} cannot reach each other's memory"
            return Finding("devices", text, "if NCCL hangs, set NCCL_P2P_DISABLE=1: it goes through host memory")
    return Finding("devices", text)


def _missing_gpu(cuda: str) -> tuple[str, str]:
    """Return why torch, built for the version `cuda`, finds no GPU, and what to do."""
    oldest = OLDEST_DRIVERS.get(cuda.partition(".")[0], 0)
    try:
        version = DRIVER.read_text().strip()
    except OSError:
        advice = f"install the NVIDIA driver {oldest} or newer, and start a container with --gpus=all"
        return f"no GPU: torch is built for CUDA {cuda}, but no NVIDIA driver is loaded", advice
    if int(version.partition(".")[0]) < oldest:
        return f"no GPU: CUDA {cuda} needs the NVIDIA driver {oldest}, this one is {version}", "install a newer driver"
    return f"no GPU, but torch is built for CUDA {cuda}", "`nvidia-smi` lists what the driver finds"


def load() -> Finding:
    """Return the load of other programs on the cores of this process."""
    n_running, n_cores = os.getloadavg()[0], usable_cores()
    slower = ": a training at the same time takes several times as long" if n_running > n_cores / 2 else ""
    text = f"{n_running:.1f} threads of all programs computed on average in the last minute"
    return Finding("load", f"{text}, on {pluralize(n_cores, 'core')}{slower}")


def shared_memory() -> Finding:
    """Check the shared memory, through which loader workers pass their batches."""
    try:
        free = shutil.disk_usage(SHM).free
    except OSError:
        free = 0
    if free < SHARED_MEMORY:
        text = f"{free / MIB:,.0f} MiB free in {SHM}, less than {SHARED_MEMORY // MIB}"
        advice = f"start the container with --ipc=host or --shm-size=1g, or mount a larger {SHM}"
        return Finding("shared memory", text, advice)
    return Finding("shared memory", f"{free / GB:.1f} GB free")


def open_files(n_processes: int) -> Finding:
    """Check the hard limit of open files, to which a training raises its own limit."""
    from bert4rec.runtime.processes import MESHES, MORE_FILES, OTHER_FILES, open_files_needed

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = open_files_needed(n_processes)
    if hard == resource.RLIM_INFINITY:
        return Finding("open files", "no limit")
    if hard < needed:
        wanted = f"less than the {needed:,} of a training on {pluralize(n_processes, 'process')}"
        return Finding("open files", f"at most {hard:,} a process, {wanted}", MORE_FILES)
    most = (hard - OTHER_FILES) // MESHES + 1
    return Finding("open files", f"{hard:,} a process, enough for {pluralize(most, 'process')}")


def all_reduce(backend: str) -> Finding:
    """Start two processes with torchrun and time an all-reduce between them."""
    words = [*TORCHRUN, "--nproc_per_node=2", "-m", "bert4rec.commands.doctor"]
    variables = os.environ | {BACKEND: backend, "OMP_NUM_THREADS": "1"}
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": TIMEOUT_SECONDS, "check": False}
    try:
        done = subprocess.run([sys.executable, *words], env=variables, **options)
    except subprocess.TimeoutExpired:
        return Finding(backend, f"two processes have not met within {TIMEOUT_SECONDS} s", NETWORK_ADVICE[backend])
    if seconds := re.search(rf"^{FASTEST}(\S+)$", done.stdout, re.MULTILINE):
        n_bytes, milliseconds = 4 * N_NUMBERS, 1000 * float(seconds[1])
        speed = f"{milliseconds:.1f} ms, {n_bytes / milliseconds / 1e6:.2f} GB/s"
        return Finding(backend, f"two processes sum up {n_bytes // MIB} MiB in {speed}")
    problem = next((line.strip() for line in done.stderr.splitlines() if "Error" in line), f"status {done.returncode}")
    return Finding(backend, f"two processes do not reach each other: {problem}", NETWORK_ADVICE[backend])


def time_all_reduce() -> None:
    """Run as one of the two processes; rank zero prints the seconds of the fastest all-reduce."""
    import torch
    import torch.distributed as dist

    from bert4rec.runtime.processes import process_group, this_process

    world = this_process("cuda" if os.environ[BACKEND] == "nccl" else "cpu")
    with process_group(world):
        numbers, seconds = torch.ones(N_NUMBERS, device=world.device), []
        for n_rounds in range(1, N_TIMINGS + 1):
            dist.barrier()
            began = time.perf_counter()
            dist.all_reduce(numbers)
            assert float(numbers[0]) == 2**n_rounds  # a GPU is waited for
            seconds.append(time.perf_counter() - began)
    if world.is_rank_zero:
        print(f"{FASTEST}{min(seconds)}", flush=True)


def plan(config: Config, n_processes: int) -> Finding:
    """Check that the dataset folder can be read and that the training fits into memory."""
    from bert4rec.dataset.reader import open_dataset
    from bert4rec.runtime.memory import available
    from bert4rec.runtime.processes import choose_device
    from bert4rec.sharding.memory_check import refuse_unless_it_fits
    from bert4rec.sharding.plan import summary
    from bert4rec.training.build import facts_of_dataset, knows_times, sizes_of

    try:
        dataset = open_dataset(
            config.data.folder, preprocessing=config.preprocessing.recipe, with_times=knows_times(config)
        )
        device = choose_device(config.parallelism.device, local_rank=0, local_world_size=n_processes)
        facts, sizes = facts_of_dataset(config, dataset), sizes_of(config, dataset)
        memory = available(device, n_processes)
        planned = plan_of(config, facts, sizes, device.type, n_processes, n_processes, memory)
        refuse_unless_it_fits(planned, min_len=config.shortest_window)
    except UserError as error:
        problem, _, advice = str(error).partition("; ")
        return Finding("plan", problem, advice or "`bert4rec prepare` with the same settings makes a dataset")
    return Finding("plan", "; ".join(map(str.strip, summary(planned).removeprefix("plan: ").splitlines())))


if __name__ == "__main__":
    time_all_reduce()
