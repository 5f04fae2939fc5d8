"""Rank held-out items by the scores of a model, and compute metrics from the ranks."""

BEST_POSSIBLE = "best_possible"  # the ranking of the model that generated synthetic data
COVERAGE, GINI, AVERAGE_POPULARITY, NOVELTY = LIST_METRICS = ("Coverage", "Gini", "AveragePopularity", "Novelty")


def is_of_lists(metric: str) -> bool:
    """Return whether `metric` is computed from lists of recommendations, not from the ranks of targets.

    >>> is_of_lists("Gini@10"), is_of_lists("HR@10"), is_of_lists("MRR")
    (True, False, False)
    """
    return metric.partition("@")[0] in LIST_METRICS
