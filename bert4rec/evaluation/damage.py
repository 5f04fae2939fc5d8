"""Measure how much the damage of a log matters for the test: the comparison without the users that it concerns."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bert4rec.dataset.findings import DUPLICATES, HEAVY_USERS, LARGE_USER, findings
from bert4rec.dataset.format import TEST
from bert4rec.dataset.reader import Dataset
from bert4rec.evaluation.intervals import Ranking, strongest_baseline
from bert4rec.runtime.arrays import Bools


def without_damage(
    dataset: Dataset, model: Ranking, baselines: Mapping[str, Ranking], is_compared: Bools
) -> dict[str, dict[str, Any]]:
    """Return for each finding that is damage the comparison by `strongest_baseline` without the users it concerns.

    `is_compared` [U]: the test users of the run's own comparison. The further keys are the numbers of `users` that
    remain, `left_out` and `of`, and the model's mean of the metric for them, `value`, and for all, `value_of_all`. Only
    the counts are known if no user remains, or none is left out.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, is_concerned in _concerned(dataset).items():
        remains = is_compared & ~is_concerned
        n, n_all = int(remains.sum()), int(is_compared.sum())
        found[name] = {"users": n, "left_out": n_all - n, "of": n_all}
        if not 0 < n < n_all:
            continue
        remaining_baselines = {kind: ranking.select(remains) for kind, ranking in baselines.items()}
        if comparison := strongest_baseline(model.select(remains), remaining_baselines):
            values = (model.select(users).ndcg_of_users(comparison["protocol"]) for users in (remains, is_compared))
            value, value_of_all = (float(user_values.mean()) for user_values in values)
            found[name] |= {"value": value, "value_of_all": value_of_all, **comparison}
    return found


def _concerned(dataset: Dataset) -> dict[str, Bools]:
    """Return for each finding that is damage whether it concerns each test user [U]: their rows, or their target."""
    log, split = dataset.metadata.get("log", {}), dataset.splits[TEST].everything
    names = [finding.name for finding in findings(dataset.metadata) if finding.is_damage]
    masks = {}
    for name in names:
        if name == LARGE_USER:
            masks[name] = split.n_rows > log["largest_user"]["others_at_most"]
        elif name == HEAVY_USERS:
            masks[name] = split.n_rows > log["heavy_users"]["limit"]
        elif name == DUPLICATES and split.are_tied is not None:
            targets = split.targets(np.arange(len(split)))
            masks[name] = split.are_tied & (targets == split.last_items)
    return masks
