"""The figures of two reports side by side: are they the same, to the last bit."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

SPLITS = ("validation", "test", "popularity_baseline", "best_possible")
MOST_NAMED = 3  # differences in one line

Report = Mapping[str, Any]


class Figure(NamedTuple):
    """One number that both reports have: whose it is ("test", …, "markov"), by which protocol, and both values."""

    of: str
    protocol: str
    metric: str
    value: float
    other: float

    def __str__(self) -> str:
        return f"{self.of} {self.protocol} {self.metric} {self.value:.6g}, not {self.other:.6g}"


def common_figures(report: Report, other: Report) -> Iterator[Figure]:
    """Every figure that stands in both."""
    ours, theirs = (
        {
            **{of: each.get(of, {}) for of in SPLITS},
            **each.get("baselines", {}),
            "ratings": {"held-out": each.get("ratings", {})},
        }
        for each in (report, other)
    )
    for of, protocols in ours.items():
        for protocol, metrics in protocols.items():
            others = theirs.get(of, {}).get(protocol, {})
            for metric in metrics.keys() & others.keys():
                yield Figure(of, protocol, metric, metrics[metric], others[metric])


def differences(report: Report, other: Report) -> str:
    """The figures that differ, the first ones with both values; "" where all that both have are equal.

    >>> one = {"test": {"full": {"users": 4, "HR@1": 0.25}}}
    >>> differences(one, {"test": {"full": {"users": 4, "HR@1": 0.5, "HR@5": 1.0}}})
    '1 of 2 figures differ: test full HR@1 0.25, not 0.5'
    """
    figures = list(common_figures(report, other))
    different = sorted(figure for figure in figures if figure.value != figure.other)
    if not different:
        return ""
    more = f" and {len(different) - MOST_NAMED} more" if len(different) > MOST_NAMED else ""
    named = "; ".join(map(str, different[:MOST_NAMED]))
    return f"{len(different)} of {len(figures)} figures differ: {named}{more}"
