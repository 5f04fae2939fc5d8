"""The figures of a run as Markdown."""

import statistics
from collections.abc import Iterator, Sequence

from benchmarks.bench.record import Record
from benchmarks.bench.timing import OURS, WHOLE, Figure

PARTS = ("encoder forward", "softmax", "backward", "optimizer")


def page(record: Record) -> str:
    """What stood where, the table of all contestants, and that of the parts of a step."""
    lines = [*_head(record), "", *_contestants(record), ""]
    if any(figure.step in PARTS for figure in record.figures):
        lines += [*_parts(record), ""]
    return "\n".join(lines)


def ratios(figure: Figure, figures: Sequence[Figure]) -> list[float]:
    """How many times as fast as `figure` ours is, round by round; empty for ours, and where it has no other."""
    own = [one for one in figures if one.key == (figure.part, figure.what, OURS, figure.step)]
    if not own or figure.contestant == OURS:
        return []
    return [other / ours for other, ours in zip(figure.seconds, own[0].seconds, strict=True)]


def _head(record: Record) -> Iterator[str]:
    found = record.machine
    where = found["gpu"] or found["cpu"]
    packages = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    yield f"{record.date}: {where}, {found['cores']} cores, {found['threads']} threads, {record.precision}; {packages}."
    if record.peak:
        peaks = sorted(record.peaks)
        yield f"Matrix products, the best of each try: {peaks[0] / 1e9:.0f} to {peaks[-1] / 1e9:.0f} GFLOP/s."


def _contestants(record: Record) -> Iterator[str]:
    yield "| what | who | a second: median [range] | bert4rec is × as fast [range] | of the machine's peak |"
    yield "|---|---|---:|---:|---:|"
    for figure in record.figures:
        if figure.step == WHOLE:
            times = _ratio(ratios(figure, record.figures))
            what = f"{figure.part}: {figure.what}" if figure.contestant == OURS else ""
            rates = sorted(figure.amount / seconds for seconds in figure.seconds)
            rate = f"{_number(figure.rate)} {figure.unit} [{_number(rates[0])} – {_number(rates[-1])}]"
            yield f"| {what} | {figure.contestant} | {rate} | {times} | {_share(figure, record.peak)} |"


def _parts(record: Record) -> Iterator[str]:
    names = (*PARTS, WHOLE)
    yield f"| ms a step, medians | who | {' | '.join(names)} | needed GFLOP |"
    yield f"|---|---|{'---:|' * (len(names) + 1)}"
    steps = {figure.key: figure for figure in record.figures}
    for figure in record.figures:
        if figure.step == WHOLE and (*figure.key[:3], PARTS[0]) in steps:
            times = [f"{1000 * steps[(*figure.key[:3], name)].median:.1f}" for name in names]
            what = figure.part if figure.contestant == OURS else ""
            yield f"| {what} | {figure.contestant} | {' | '.join(times)} | {figure.flops / 1e9:.1f} |"


def _ratio(found: Sequence[float]) -> str:
    return f"{statistics.median(found):.2f} [{min(found):.2f} – {max(found):.2f}]" if found else ""


def _share(figure: Figure, peak: float) -> str:
    return f"{figure.flops / figure.median / peak:.1%}" if figure.flops and peak else ""


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
