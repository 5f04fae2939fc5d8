"""Which metrics are of lists."""

from bert4rec.evaluation.metric_names import is_of_lists


def test_metrics_of_lists_are_told_from_those_of_ranks() -> None:
    assert all(map(is_of_lists, ("Coverage@1", "Gini@10", "AveragePopularity@5", "Novelty@100")))
    assert not any(map(is_of_lists, ("users", "HR@10", "NDCG@10", "MRR")))
