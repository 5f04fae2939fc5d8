"""The speed of everything, each part beside the plain way of writing it, in one run.

    python -m benchmarks.bench [--only=step,loader] [--rounds=5] [--quick] [--against=FOLDER]
                               [--device=cpu|cuda] [--precision=fp32|bf16]

Contestants take turns within each round; figures are medians over the rounds, with their ranges. Into a new folder in
logs/bench go bench.json (all raw figures), bench.md (the tables) and bench.png. Compared is with the newest earlier run
of the same machine. A part is named by how its name begins: `--only=step` takes all shapes, `--only=step-short` one.
--quick makes the data smaller: its figures are only compared with those of its kind.
"""

import argparse
import datetime
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TypeAlias

import torch

from benchmarks.bench.arithmetic import matmul_peak
from benchmarks.bench.loader import loader_case
from benchmarks.bench.machine import machine, versions
from benchmarks.bench.picture import draw
from benchmarks.bench.preparing import preparing_case
from benchmarks.bench.ranking import ranking_case
from benchmarks.bench.recommending import recommending_case
from benchmarks.bench.record import Record, compared, newest
from benchmarks.bench.step import SHAPES, Device, step_case
from benchmarks.bench.table import page
from benchmarks.bench.timing import Case, Figure, measure
from benchmarks.large_catalogue import ROOT
from bert4rec.runtime.memory import compile_few_kernels, use_memory_again

FOLDER = ROOT / "logs" / "bench"
LEAST_SECONDS = 0.5  # of a contestant in a round
SMALL = {"n_users": 1000, "n_items": 1000, "n_rows": 100_000}

Cases: TypeAlias = Mapping[str, Callable[[], AbstractContextManager[Case]]]


def all_cases(device: Device, *, quick: bool) -> Cases:
    """Every part by its name."""
    sizes = SMALL if quick else {}
    return {
        **{f"step-{name}": partial(step_case, name, shape, device) for name, shape in SHAPES.items()},
        "loader-0": partial(loader_case, 0, n_batches=50 if quick else 200, **sizes),
        "loader-2": partial(loader_case, 2, n_batches=50 if quick else 200, **sizes),
        "evaluation": partial(ranking_case, **sizes),
        "recommend": partial(recommending_case, *((500, 10_000) if quick else (4000, 100_000))),
        "preprocessing": partial(preparing_case, 200_000 if quick else 2_000_000),
    }


def main(words: Sequence[str], parent: Path = FOLDER, make_cases: Callable[..., Cases] = all_cases) -> int:
    """Measure, write, compare; the exit status: 0."""
    options = _options(words)
    device = Device(torch.device(options.device), options.precision)
    cases = make_cases(device, quick=options.quick)
    record = _measure(_chosen(cases, options.only), device, options.rounds)
    folder = parent / record.date.replace(":", "-").replace(" ", "_")
    earlier = options.against or newest(parent, record)
    folder.mkdir(parents=True)
    record.write(folder)
    (folder / "bench.md").write_text(page(record), encoding="utf-8")
    draw(record, folder)
    print(f"\n{page(record)}\n{folder}: bench.json, bench.md, bench.png")
    if earlier is None:
        print("no earlier run of this machine has these figures: nothing to compare")
    else:
        print(
            "\n".join([f"compared with {earlier}:", *(f"  {line}" for line in compared(record, Record.read(earlier)))])
        )
    return 0


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench", description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", metavar="PART,PART", help="parts, by how their names begin")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="smaller data")
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="the run to compare with (default: the newest)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of the training steps")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32", help="of the training steps")
    options = parser.parse_args(words)
    if options.rounds < 1:
        parser.error(f"--rounds={options.rounds}: must be at least 1")
    if options.against and not (options.against / "bench.json").exists():
        parser.error(f"--against={options.against}: there is no bench.json in it")
    return options


def _chosen(cases: Cases, only: str) -> Cases:
    names = [name for name in only.split(",") if name]
    for name in names:
        if not any(case.startswith(name) for case in cases):
            raise SystemExit(f"error: --only={name}: no such part; there are {', '.join(cases)}")
    return {name: case for name, case in cases.items() if not names or name.startswith(tuple(names))}


def _measure(cases: Cases, device: Device, rounds: int) -> Record:
    began, peaks = time.monotonic(), []
    figures: list[Figure] = []

    def tell(text: str) -> None:
        print(f"[{time.monotonic() - began:4.0f} s] {text}", flush=True)

    date = datetime.datetime.now().isoformat(" ", "seconds")
    for name, make in cases.items():
        tell(f"{name}: getting ready")
        with make() as case:
            if case.flops:
                peaks.append(matmul_peak(device.device, device.dtype))
            figures += measure(case, rounds, LEAST_SECONDS, lambda text, name=name: tell(f"{name}: {text}"))
    return Record(date, machine(device.device), versions(), device.precision, peaks, figures)


if __name__ == "__main__":
    compile_few_kernels(precision=_options(sys.argv[1:]).precision)  # as a training does; the plain ways have the same
    use_memory_again()
    sys.exit(main(sys.argv[1:]))
