"""Where the time of a training step goes: page faults, time in the kernel, and the operations that take the most.

    python -m benchmarks.step_speed [--shape=ml-1m] [--rounds=8] [--profile]

The shapes are those of `python -m benchmarks.bench --only=step`, which has the parts of a step and the plain ways.
`--profile` adds the operations that take the most.
"""

import argparse
import resource
import statistics
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.bench.arithmetic import matmul_peak
from benchmarks.bench.step import SHAPES, Device, ours, random_batch
from benchmarks.bench.timing import WHOLE, Seconds
from bert4rec.runtime.memory import compile_few_kernels, use_memory_again

CPU = Device(torch.device("cpu"), "fp32")
BATCHES = 4


def main() -> None:
    """Print a line a shape."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    compile_few_kernels(precision=CPU.precision)  # as a training does
    use_memory_again()
    peak = matmul_peak(CPU.device, CPU.dtype)
    print(f"{torch.get_num_threads()} threads, {peak / 1e9:.0f} GFLOP/s in large products")
    for name in [options.shape] if options.shape else SHAPES:
        batches = [random_batch(SHAPES[name], seed) for seed in range(BATCHES)]
        steps = ours(SHAPES[name], batches, CPU)
        _report(name, steps, options.rounds)
        if options.profile:
            _profile(steps)


def _report(name: str, steps: Callable[[], Seconds], rounds: int) -> None:
    steps()
    before = resource.getrusage(resource.RUSAGE_SELF)
    times = [steps()[WHOLE] for _ in range(rounds)]  # of a step, the means over the batches
    after = resource.getrusage(resource.RUSAGE_SELF)
    rate = SHAPES[name].n_windows / statistics.median(times)
    print(
        f"{name:6} {1000 * statistics.median(times):7.1f} ms a step in the median, {1000 * min(times):.1f} at least, "
        f"{rate:.0f} sequences/s, {(after.ru_minflt - before.ru_minflt) // (BATCHES * rounds):,} page faults a step, "
        f"{1000 * (after.ru_stime - before.ru_stime) / (BATCHES * rounds):.0f} ms in the kernel"
    )


def _profile(steps: Callable[[], Seconds]) -> None:
    with profile(activities=[ProfilerActivity.CPU]) as found:
        steps()
    events = sorted(found.key_averages(), key=lambda event: -event.self_cpu_time_total)
    for event in events[:20]:
        spent = event.self_cpu_time_total / 1000 / BATCHES
        print(f"    {event.key[:60]:60} {spent:7.2f} ms a step, {event.count / BATCHES:.0f} calls")


if __name__ == "__main__":
    main()
