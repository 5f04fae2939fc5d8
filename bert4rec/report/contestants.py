"""Who stands beside whom in a report: the model, the baselines that need no training, the best possible."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from bert4rec.config.abilities import POPULARITY, UNTRAINED

MODEL, BEST_POSSIBLE = "model", "best_possible"

Metrics = Mapping[str, Mapping[str, float]]
"""Protocol → metric → value."""


class Contestant(NamedTuple):
    """What was measured of one on the test; `intervals`: protocol → metric → (low, high), as far as they are known."""

    kind: str
    title: str
    metrics: Metrics
    intervals: Mapping[str, Mapping[str, tuple[float, float]]]

    def interval(self, protocol: str, metric: str) -> tuple[float, float] | None:
        """Of one figure; None where it is not known."""
        found = self.intervals.get(protocol, {}).get(metric)
        return (found[0], found[1]) if found else None


def contestants(report: Mapping[str, Any]) -> list[Contestant]:
    """Of a test, the model first and then the others; nobody where there was none."""
    if not report.get("test"):
        return []
    intervals, baselines = report.get("intervals", {}), report.get("baselines", {})
    title = str(report.get("model", "Bert4Rec"))
    found = [Contestant(MODEL, title, report["test"], intervals.get("test", {}))]
    metrics = {POPULARITY: report.get("popularity_baseline"), **baselines}
    of_baselines = {POPULARITY: intervals.get("popularity_baseline", {}), **intervals.get("baselines", {})}
    for kind in [*UNTRAINED, *(kind for kind in metrics if kind not in UNTRAINED)]:
        if metrics.get(kind):
            found.append(Contestant(kind, UNTRAINED.get(kind, kind), metrics[kind], of_baselines.get(kind, {})))
    if best := report.get(BEST_POSSIBLE):
        found.append(Contestant(BEST_POSSIBLE, "best possible", best, intervals.get(BEST_POSSIBLE, {})))
    return [found[0], *(one for one in found[1:] if one.title.lower() != title.lower())]


def main_protocol(report: Mapping[str, Any]) -> str | None:
    """The one whose figures are told first: the full catalogue, where that was measured."""
    test = report.get("test", {})
    return next((name for name in ("full", *test) if name in test), None)
