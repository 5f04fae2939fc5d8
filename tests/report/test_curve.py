"""Which validation was best, by what is judged."""

from bert4rec.report.curve import curve_of


def test_ranks_are_judged_by_ndcg_and_ratings_by_their_error() -> None:
    ranks = [{"epoch": 2.0 * n, "full": {"NDCG@10": value}} for n, value in enumerate((0.1, 0.3, 0.3, 0.2), 1)]
    curve = curve_of(ranks)
    assert curve is not None
    assert (curve.metric, curve.best, curve.epochs[curve.best]) == ("NDCG@10", 1, "4")
    errors = [{"epoch": n, "ratings": {"RMSE": value}} for n, value in enumerate((1.0, 0.0, 0.8))]
    curve = curve_of(errors)
    assert curve is not None
    assert (curve.metric, curve.best, curve.values) == ("RMSE", 1, [1.0, 0.0, 0.8])
    assert curve_of([]) is None
