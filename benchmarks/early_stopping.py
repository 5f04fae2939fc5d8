"""When early stopping would have ended trainings that went on: what it would have cost, and what it would have saved.

    python -m benchmarks.early_stopping RUN …

RUN is the folder of a run that was trained with `--training.patience=0`, long enough for its best validation to be well
before its end. Printed for each rule, a number of validations in a row without a better one, the share of all epochs
so far that they must span, and the steps before which nothing ends: the mean and the worst of the NDCG@10 that is lost
beside the best of the whole run, in per cent of it, and which share of the epochs up to the stop came after the best
that was found. Runs that a rule does not end count with all of their epochs, and their number is shown.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bert4rec.report.log import read_records
from bert4rec.training.state import State

RULES = [
    (3, 0.0, 0), (5, 0.0, 0), (10, 0.0, 0), (3, 0.25, 0), (5, 0.25, 0), (5, 0.5, 0), (10, 0.25, 0), (10, 0.5, 0),
    (5, 0.25, 1000), (5, 0.25, 2000), (5, 0.25, 3000), (5, 0.4, 2000), (5, 0.5, 2000), (10, 0.25, 2000),
]  # fmt: skip


class Validation(NamedTuple):
    """When, and NDCG@10 over the full catalogue."""

    step: int
    epoch: float
    ndcg: float


class Outcome(NamedTuple):
    """What a rule does to a run: shares of the best NDCG@10 and of the epochs until the stop, and whether it stops."""

    lost: float
    in_vain: float
    has_stopped: bool


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    curves = [_curve(run) for run in parser.parse_args().runs]
    print(f"{len(curves)} runs, {sum(map(len, curves))} validations")
    print(
        "| validations | share of epochs | steps | lost, mean | lost, worst | epochs after the best, mean | not ended |"
    )
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for least, share, steps in RULES:
        found = [outcome(curve, least, share, steps) for curve in curves]
        lost, in_vain = ([getattr(each, name) for each in found] for name in ("lost", "in_vain"))
        mean_lost, mean_in_vain = sum(lost) / len(lost), sum(in_vain) / len(in_vain)
        n_open = sum(not each.has_stopped for each in found)
        print(f"| {least} | {share} | {steps:,} | {mean_lost:.1%} | {max(lost):.1%} | {mean_in_vain:.0%} | {n_open} |")


def _curve(run: Path) -> list[Validation]:
    """Those of a run."""
    return [
        Validation(record["step"], record["epoch"], record["full"]["NDCG@10"])
        for record in read_records(run, "validation")
    ]


def outcome(curve: Sequence[Validation], least: int, share: float, steps: int) -> Outcome:
    """Return the lost NDCG@10, and the share of epochs after the best, if a run with that `curve` ends by the rule."""
    now, epoch = State(), 0.0
    for now.step, epoch, ndcg in curve:
        now.note_validation(ndcg, epoch, patience=0)
        if has_stopped := now.patience_exceeded(epoch, least, share, steps):
            break
    best = max(validation.ndcg for validation in curve)
    return Outcome(1 - now.best_ndcg / best, 1 - now.best_epoch / epoch, has_stopped)


if __name__ == "__main__":
    main()
