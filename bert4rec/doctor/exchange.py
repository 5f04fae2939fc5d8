"""Whether two processes of this host reach each other, and how fast: a real all-reduce, by torch's launcher."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator

from bert4rec.doctor.finding import Finding

BACKEND = "BERT4REC_BACKEND"  # a variable, for the two processes
MIB = 2**20
N_NUMBERS = 4 * MIB  # of 4 bytes: as many as the gradients of a large transformer
ROUNDS = 5
SECONDS = 120  # until they are given up
ADVICE = {
    "gloo": "GLOO_SOCKET_IFNAME names the network interface to use, `lo` within a host; a firewall must let its own "
    "processes through",
    "nccl": "NCCL_DEBUG=INFO tells where it hangs; NCCL_P2P_DISABLE=1 goes through host memory, NCCL_SOCKET_IFNAME "
    "names the interface",
}


def exchange() -> Iterator[Finding]:
    """By gloo, and by NCCL where there are two GPUs."""
    import torch

    yield all_reduce("gloo")
    if torch.cuda.device_count() > 1:
        yield all_reduce("nccl")


def all_reduce(backend: str) -> Finding:
    """Of two processes."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    try:
        done = subprocess.run(
            [sys.executable, *launcher, "-m", "bert4rec.doctor.exchange"],
            env=os.environ | {BACKEND: backend, "OMP_NUM_THREADS": "1"},
            capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Finding(backend, f"two processes have not met within {SECONDS} s", ADVICE[backend])
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            found = json.loads(line)
            size = f"{4 * N_NUMBERS // MIB} MiB"
            return Finding(backend, f"two processes sum up {size} in {found['seconds'] * 1000:.1f} ms, "
                           f"{found['bandwidth'] / 1e9:.2f} GB/s")  # fmt: skip
    said = [line for line in done.stderr.splitlines() if "Error" in line]
    return Finding(backend, f"two processes do not reach each other: {said[0].strip() if said else done.returncode}",
                   ADVICE[backend])  # fmt: skip


def main() -> None:
    """One of the two processes; the first one prints the seconds of a sum and the bytes/s that each sends meanwhile."""
    import torch
    import torch.distributed as dist

    backend, rank = os.environ[BACKEND], int(os.environ["RANK"])
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(backend)
    numbers = torch.ones(N_NUMBERS, device=device)
    seconds = []
    for _ in range(ROUNDS):
        dist.barrier()
        began = time.perf_counter()
        dist.all_reduce(numbers)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - began)
    assert float(numbers[0]) == 2**ROUNDS
    if rank == 0:
        print(json.dumps({"seconds": min(seconds), "bandwidth": numbers.nbytes / min(seconds)}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
