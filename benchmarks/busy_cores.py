"""What a training step takes on quiet cores and beside other programs, by how long threads spin.

    python -m benchmarks.busy_cores [--rounds=5] [--spin-counts=default,1000,10000,passive] [--shape=ml-1m]

Each measurement is a process of its own (`benchmarks.step_speed`); the ways take turns, so that a machine whose speed
drifts does not favour one. "busy" runs beside one loop a core. "default" is libgomp's own, "passive" does not spin.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from bert4rec.runtime.startup import usable_cores

NAMES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def main() -> None:
    """Print a row a way: the median and the least milliseconds of a step, and the ratio to the first way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--spin-counts", default="default,1000,10000,passive")
    parser.add_argument("--shape", default="ml-1m")
    options = parser.parse_args()
    ways = options.spin_counts.split(",")
    found: dict[tuple[str, bool], list[float]] = {(way, busy): [] for way in ways for busy in (False, True)}
    for _ in range(options.rounds):
        for busy in (False, True):
            with loops(usable_cores() if busy else 0):
                for way in ways:
                    found[way, busy].append(milliseconds(way, options.shape))
                    print(f"{way}, {'busy' if busy else 'quiet'}: {found[way, busy][-1]} ms", file=sys.stderr)
    print(f"{'spin count':>10} | quiet: median (least) ms, × | busy: median (least) ms, ×")
    for way in ways:
        cells = []
        for busy in (False, True):
            times, first_times = found[way, busy], found[ways[0], busy]
            ratio = statistics.median(mine / first for mine, first in zip(times, first_times, strict=True))
            cells.append(f"{statistics.median(times):7.1f} ({min(times):7.1f}) {ratio:6.3f}")
        print(f"{way:>10} | {' | '.join(cells)}")


def milliseconds(way: str, shape: str) -> float:
    """Return the median of a step in a process of its own."""
    variables = {name: value for name, value in os.environ.items() if name not in NAMES}
    if way == "passive":
        variables["OMP_WAIT_POLICY"] = "PASSIVE"
    else:  # libgomp's own is 300,000 where no policy is set
        variables["GOMP_SPINCOUNT"] = "300000" if way == "default" else way
    command = [sys.executable, "-m", "benchmarks.step_speed", f"--shape={shape}", "--rounds=4"]
    done = subprocess.run(command, env=variables, check=True, capture_output=True, text=True)
    step = re.search(r"([\d.]+) ms a step in the median", done.stdout)
    assert step is not None, done.stdout
    return float(step[1])


@contextmanager
def loops(n: int) -> Iterator[None]:
    """Run `n` programs beside that compute all the time."""
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


if __name__ == "__main__":
    main()
