"""From a model to ranks, and from ranks to metrics."""

COVERAGE, GINI, POPULARITY, NOVELTY = LIST_METRICS = ("Coverage", "Gini", "AveragePopularity", "Novelty")


def is_of_lists(metric: str) -> bool:
    """Return whether a metric is one of lists of recommendations, not of the ranks of targets.

    >>> is_of_lists("Gini@10"), is_of_lists("HR@10"), is_of_lists("MRR")
    (True, False, False)
    """
    return metric.partition("@")[0] in LIST_METRICS
