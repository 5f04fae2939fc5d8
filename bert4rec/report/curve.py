"""The validations of a training as a curve: what is judged, and which one was best."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bert4rec.runtime.wording import rounded


class Curve(NamedTuple):
    """The `metric` by which validations are judged, its `values`, the `epochs` as text, and `scores`, of which higher
    is better; all [validations].
    """

    metric: str
    values: list[float]
    epochs: list[str]
    scores: list[float]

    @property
    def best(self) -> int:
        """Which validation; the first of equal ones."""
        return self.scores.index(max(self.scores))


def curve_of(validations: Sequence[Mapping[str, Any]]) -> Curve | None:
    """By NDCG@10 on the full catalogue, or where ratings are learnt by their RMSE; None without validations.

    >>> curve_of([{"epoch": 1.0, "ratings": {"RMSE": 0.5}}, {"epoch": 2.0, "ratings": {"RMSE": 0.25}}])
    Curve(metric='RMSE', values=[0.5, 0.25], epochs=['1', '2'], scores=[2.0, 4.0])
    """
    if not validations:
        return None
    epochs = [rounded(record["epoch"]) for record in validations]
    if all("full" in record for record in validations):
        values = [record["full"]["NDCG@10"] for record in validations]
        return Curve("NDCG@10", values, epochs, values)
    errors = [record["ratings"]["RMSE"] for record in validations]
    return Curve("RMSE", errors, epochs, [1 / error if error else float("inf") for error in errors])
