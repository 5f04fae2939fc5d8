"""What a run of the benchmarks leaves, and how it is compared with an earlier one."""

import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.bench.timing import WHOLE, Figure

FILE = "bench.json"
FEWEST_ROUNDS = 3  # that have a spread worth the name


class Record(NamedTuple):
    """All figures of a run; `peaks`, operations a second of the matrix products before each part of a step."""

    date: str
    machine: dict[str, Any]
    versions: dict[str, str]
    precision: str
    peaks: list[float]
    figures: list[Figure]

    @property
    def peak(self) -> float:
        """The best of the products; 0 where none was measured."""
        return max(self.peaks, default=0.0)

    def write(self, folder: Path) -> None:
        """As JSON, with the medians."""
        figures = [figure._asdict() | {"median": figure.median} for figure in self.figures]
        text = json.dumps(self._asdict() | {"figures": figures}, indent=1, ensure_ascii=False)
        (folder / FILE).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> "Record":
        """What `write` has written."""
        found = json.loads((folder / FILE).read_text(encoding="utf-8"))
        figures = [Figure(**{name: each[name] for name in Figure._fields}) for each in found.pop("figures")]
        return cls(**found, figures=figures)


def newest(parent: Path, now: Record) -> Path | None:
    """The newest folder of the same machine and precision in which there is a figure of this run."""
    keys = {figure.key for figure in now.figures}
    for path in sorted(parent.glob(f"*/{FILE}"), reverse=True):
        earlier = Record.read(path.parent)
        is_alike = (earlier.machine, earlier.precision) == (now.machine, now.precision)
        if is_alike and keys & {figure.key for figure in earlier.figures}:
            return path.parent
    return None


def compared(now: Record, earlier: Record) -> Iterator[str]:
    """What got slower or faster by more than its spread; last, of how many figures."""
    if earlier.machine != now.machine:
        yield "the earlier run is of another machine: ratios to the plain ways can be compared, times cannot"
    if now.peak and earlier.peak:
        yield f"this machine's matrix products: {earlier.peak / 1e9:.0f} → {now.peak / 1e9:.0f} GFLOP/s"
    before = {figure.key: figure for figure in earlier.figures}
    pairs = [(before[figure.key], figure) for figure in now.figures if figure.key in before]
    told = [pair for pair in pairs if min(len(figure.seconds) for figure in pair) >= FEWEST_ROUNDS]
    changed = [pair for pair in told if has_changed(*pair)]
    yield from (_line(*pair) for pair in changed)
    yield f"{len(changed)} of {len(told)} figures changed by more than their spread"
    if len(told) < len(pairs):
        yield f"{len(pairs) - len(told)} more have fewer than {FEWEST_ROUNDS} rounds: nothing is said of them"


def has_changed(before: Figure, now: Figure) -> bool:
    """Whether the medians are further apart than the rounds of either run are."""
    return abs(now.median - before.median) > max(before.spread, now.spread)


def _line(before: Figure, now: Figure) -> str:
    direction = "slower" if now.median > before.median else "faster"
    step = "" if now.step == WHOLE else f", {now.step}"
    share = now.median / before.median - 1
    return (
        f"{direction}: {now.part}, {now.contestant}{step}: {milliseconds(before.seconds)} → "
        f"{milliseconds(now.seconds)} ms ({share:+.0%})"
    )


def milliseconds(seconds: Sequence[float]) -> str:
    """The median and the range."""
    found = (statistics.median(seconds), min(seconds), max(seconds))
    median, least, most = (f"{1000 * value:.4g}" for value in found)
    return f"{median} [{least} – {most}]"
