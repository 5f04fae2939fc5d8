"""What each figure of a report is of, in full sentences."""

from collections.abc import Mapping
from typing import Any

from bert4rec.report.markdown.page import heading, rules

SPLITS = ("validation", "test")


def protocols(report: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Split → protocol → among which items and for which users it ranks, what counts as seen, and who wins a tie."""
    return {
        split: {name: f"{heading(report, split, name)}. {rules(report)}" for name in report[split]}
        for split in SPLITS
        if split in report
    }
