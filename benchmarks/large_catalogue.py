"""Training with large catalogues: speed, memory and messages of ddp and dmp, in alternating rounds.

    python -m benchmarks.large_catalogue [--items=500000] [--modes=ddp,dmp] [--processes=1,2] [--losses=…] [--write]
    python -m benchmarks.large_catalogue --curve [--items=10000,100000,…] [--write]

The first is the shape of TorchRec's example: random data of 3,000 users, 500,000 items, 8 sequences of 16 items a
process and step, width 128, two blocks, two heads, a fifth of the items masked; the sampled losses with 256 uniform
negatives. The second follows dmp on two processes from ten thousand to 20 million items, 64 wide.

Every contestant is a torchrun of its own on the CPU. It trains with the functions of train.py (contestant.py), on a
dataset folder that preprocessing.py has made. Each round starts all contestants of a catalogue in turn, ddp and dmp
next to each other; the table gives medians over the rounds, of the figures and of the ratios. Measured are training
steps, reading and masking included, after 10 to warm up. Evaluation, checkpoints and the preparation are not.

    sequences/s          of all processes together, as a run's report has it
    peak MB a process    proportional set size since the start, looked at every two seconds; of the largest process
    MB sent a step       by all processes together, as the loopback interface counts it: with TCP's headers, and with
                         whatever other programs send over it at that time; 0 for one process
    of ddp               how many times as fast as ddp in the same round

What the plan of a run refuses is not trained: the table says what a process would need. By default each mode takes its
own optimizer for the item table: ddp Adam; dmp, since fbgemm has no fused Adam on CPU, row-wise Adagrad, which computes
and keeps less. --sparse-optimizer gives both the same one. With --write the table or the curve goes to its place in
docs/results-archive.md.
"""

import argparse
import itertools
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from bert4rec.config.load import load_config
from bert4rec.runtime.errors import UserError

ROOT = Path(__file__).parent.parent
ARCHIVE = ROOT / "docs" / "results-archive.md"
PAGE_WIDTH = 120

MODES = ("ddp", "dmp")
LOSSES = ("softmax", "sampled_softmax", "gbce")
SPARSE_OPTIMIZERS = ("auto", "sgd", "adagrad", "rowwise_adagrad")  # those that both modes have on CPU
EXAMPLE: dict[str, Any] = {"items": [500_000], "width": 128, "modes": MODES, "processes": [1, 2]}
CURVE: dict[str, Any] = {
    "items": [10_000, 100_000, 1_000_000, 10_000_000, 20_000_000],
    "width": 64,
    "modes": ["dmp"],
    "processes": [2],
}
SOFTMAX_UP_TO = 1_000_000  # items, on the curve: beyond, every step takes many seconds

LENGTH, BATCH, MASKED, NEGATIVES = 16, 8, 0.2, 256
USERS, ROWS = 3000, 600_000  # 200 interactions a user, so that nearly all windows are full
ENDLESS = 1_000_000  # epochs: the contestant ends the training

COLUMNS = ["items", "mode", "processes", "loss", "sequences/s", "ms a step", "peak MB a process", "MB sent a step",
           "of ddp"]  # fmt: skip
TEXT_COLUMNS = ("mode", "loss")
SCALES = {"sequences_per_second": 1, "step_seconds": 1e3, "peak_memory": 1e-6, "sent_per_step": 1e-6}  # to the columns

Figures: TypeAlias = dict[str, Any]
"""What a contestant has written: see contestant.py."""


class Contestant(NamedTuple):
    """What is trained, on how many processes."""

    n_items: int
    n_processes: int
    loss: str
    mode: str


def main() -> None:
    """Measure, print the table, write it to the page of results if asked to."""
    options = _options()
    name = "catalogue curve" if options.curve else "large catalogue"
    if options.write:
        replaced(ARCHIVE.read_text(), name, "")  # rather now than after half an hour
    try:
        measured = measure(options)
    except UserError as error:
        raise SystemExit(f"error: {error}") from None
    text = f"{_heading(options, measured)}\n\n{table(measured)}"
    print(f"\n{text}")
    if options.write:
        ARCHIVE.write_text(replaced(ARCHIVE.read_text(), name, text))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--curve", action="store_true", help="from ten thousand to 20 million items")
    parser.add_argument("--items", type=_counts, help="sizes of the catalogue, with commas between them")
    parser.add_argument("--width", type=int, help="of the item vectors")
    parser.add_argument("--modes", type=_some_of(MODES))
    parser.add_argument("--processes", type=_counts)
    parser.add_argument("--losses", type=_some_of(LOSSES), default=LOSSES)
    parser.add_argument("--sparse-optimizer", choices=SPARSE_OPTIMIZERS, default="auto")
    parser.add_argument("--rounds", type=_count, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="of timed steps, for each contestant and round")
    parser.add_argument("--write", action="store_true", help="put the table into the page of results")
    options = parser.parse_args()
    for key, value in (CURVE if options.curve else EXAMPLE).items():
        if getattr(options, key) is None:
            setattr(options, key, value)
    return options


def _count(text: str) -> int:
    if not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text}: must be a whole number of at least 1")
    return int(text)


def _counts(text: str) -> list[int]:
    return [_count(part) for part in text.split(",")]


def _some_of(valid: Sequence[str]) -> Callable[[str], list[str]]:
    def chosen(text: str) -> list[str]:
        parts = text.split(",")
        if wrong := [part for part in parts if part not in valid]:
            raise argparse.ArgumentTypeError(f"{', '.join(wrong)}: valid are {', '.join(valid)}")
        return parts

    return chosen


def measure(options: argparse.Namespace) -> dict[Contestant, list[Figures]]:
    """The figures of every contestant, one for each round."""
    measured: dict[Contestant, list[Figures]] = defaultdict(list)
    for n_items in options.items:
        with tempfile.TemporaryDirectory(prefix="bert4rec-") as folder:
            settings = _prepare(options, n_items, Path(folder))
            for number in range(1, options.rounds + 1):
                for contestant in _contestants(options, n_items):
                    figures = _run(contestant, settings, options.seconds)
                    measured[contestant].append(figures)
                    print(f"round {number}  {_sentence(contestant, figures)}", flush=True)
    return measured


def _contestants(options: argparse.Namespace, n_items: int) -> Iterator[Contestant]:
    """Those of one catalogue; the modes stand last, so that they follow each other."""
    for n_processes, loss, mode in itertools.product(options.processes, options.losses, options.modes):
        if not (options.curve and loss == "softmax" and n_items > SOFTMAX_UP_TO):
            yield Contestant(n_items, n_processes, loss, mode)


def _prepare(options: argparse.Namespace, n_items: int, folder: Path) -> Path:
    """Make the dataset of a catalogue in `folder`; the settings file that all its contestants share."""
    config = load_config(
        None,
        {
            "data.source": "random",
            "data.dataset_dir": str(folder / "dataset"),
            "data.n_users": USERS,
            "data.n_items": n_items,
            "data.n_rows": ROWS,
            "model.embed_dim": options.width,
            "model.ffn_dim": 4 * options.width,
            "model.max_len": LENGTH,
            "training.n_epochs": ENDLESS,
            "training.per_device_train_batch_size": BATCH,
            "training.mask_prob": MASKED,
            "training.last_item_mask_prob": 0.0,  # the example has no such windows
            "training.n_train_negatives": NEGATIVES,
            "parallelism.device": "cpu",
            "parallelism.sparse_optimizer": options.sparse_optimizer,
            "run.dir": str(folder),
        },
    )
    settings = folder / "config.toml"
    settings.write_text(config.to_toml())
    quietly([sys.executable, "preprocessing.py", f"--config={settings}"])
    return settings


def _run(contestant: Contestant, settings: Path, seconds: float) -> Figures:
    how = [f"--config={settings}", f"--mode={contestant.mode}", f"--training.loss={contestant.loss}"]
    return train(settings.with_name("figures.json"), contestant.n_processes, seconds, how)


def train(figures: Path, n_processes: int, seconds: float, settings: Sequence[str]) -> Figures:
    """The figures of one training, in processes of its own: what an earlier one left behind tells on no other."""
    torchrun = ["torch.distributed.run", "--standalone", f"--nproc_per_node={n_processes}"]
    quietly([sys.executable, "-m", *torchrun, "-m", "benchmarks.contestant", str(figures), str(seconds), *settings])
    found: Figures = json.loads(figures.read_text())
    return found


def quietly(command: list[str]) -> None:
    """Run `command` and show what it says only where it fails."""
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{done.stdout}\nfailed with status {done.returncode}: {shlex.join(command)}")


def _sentence(contestant: Contestant, figures: Figures) -> str:
    n_items, n_processes, loss, mode = contestant
    processes = "1 process" if n_processes == 1 else f"{n_processes} processes"
    speed = "refused" if "needs" in figures else f"{_figure(figures['sequences_per_second'])} sequences/s"
    return f"{n_items:,} items  {processes}  {loss}  {mode}  {speed}"


def _heading(options: argparse.Namespace, measured: dict[Contestant, list[Figures]]) -> str:
    """What the figures of the table have in common."""
    every = {contestant: rounds[0] for contestant, rounds in measured.items()}
    optimizers = {contestant.mode: figures["sparse_optimizer"] for contestant, figures in every.items()}
    named = ", ".join(f"`{name}` in `{mode}`" for mode, name in optimizers.items())
    mean_length = statistics.mean(figures["mean_length"] for figures in every.values())
    return textwrap.fill(
        f"{len(os.sched_getaffinity(0))} cores; {options.width} wide, {BATCH} sequences a process and step, mean "
        f"length {mean_length:.1f} of {LENGTH}, {NEGATIVES} negatives; optimizer of the item table: {named}; "
        f"medians of {options.rounds} × {options.seconds:g} seconds.",
        PAGE_WIDTH,
    )


def table(measured: dict[Contestant, list[Figures]]) -> str:
    """The figures as a Markdown table; a column in which nothing stands is left out."""
    rows = [_row(contestant, rounds, _ratios(contestant, measured)) for contestant, rounds in measured.items()]
    kept = [number for number in range(len(COLUMNS)) if any(row[number] for row in rows)]
    lines = [[row[number] for number in kept] for row in [COLUMNS, *rows]]
    rule = "|".join("---" if COLUMNS[number] in TEXT_COLUMNS else "---:" for number in kept)
    heading, *body = (f"| {' | '.join(cells)} |" for cells in lines)
    return "\n".join([heading, f"|{rule}|", *body])


def _ratios(contestant: Contestant, measured: dict[Contestant, list[Figures]]) -> list[float]:
    """How many times as fast as ddp it was in each round; empty for ddp itself, and where either was not measured."""
    rounds, ddp_rounds = measured[contestant], measured.get(contestant._replace(mode="ddp"), [])
    if contestant.mode == "ddp" or any("needs" in figures for figures in [*rounds, *ddp_rounds]):
        return []
    speed = "sequences_per_second"
    return [mine[speed] / theirs[speed] for mine, theirs in zip(rounds, ddp_rounds, strict=False)]


def _row(contestant: Contestant, rounds: list[Figures], ratios: list[float]) -> list[str]:
    n_items, n_processes, loss, mode = contestant
    what = [f"{n_items:,}", f"`{mode}`", str(n_processes), f"`{loss}`"]
    needs = [figures["needs"] for figures in rounds if "needs" in figures]
    if needs:
        return [*what, "refused", "", f"needs {_figure(max(needs) / 1e6)}", "", ""]
    medians = [statistics.median(figures[key] for figures in rounds) * scale for key, scale in SCALES.items()]
    return [*what, *map(_figure, medians), _figure(statistics.median(ratios)) if ratios else ""]


def _figure(value: float) -> str:
    """Three figures, or the whole number."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def replaced(page: str, name: str, text: str) -> str:
    """`page` with `text` between the two comments that name a table."""
    begin, end = (f"<!-- {name}: {place} -->" for place in ("begin", "end"))
    before, found_begin, rest = page.partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found_begin and found_end):
        raise SystemExit(f"the page of results: there must be {begin} and, behind it, {end}")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"


if __name__ == "__main__":
    main()
