"""What came out of a run, in words."""

from collections.abc import Iterator, Mapping
from typing import Any

from bert4rec.report.contestants import BEST_POSSIBLE, MODEL, Contestant, contestants, main_protocol
from bert4rec.runtime.wording import counted, rounded

AMONG = {
    "full": "out of {items}",
    "popular": "out of it and {n} others drawn by popularity",
    "uniform": "out of it and {n} others drawn uniformly",
}
METRIC = "HR@10"


def summary(report: Mapping[str, Any]) -> str:
    """A few sentences for somebody who does not know the metrics' names.

    >>> metrics = {"full": {"users": 200, "HR@10": 0.31}}
    >>> summary({"dataset": {"items": 40}, "test": metrics, "popularity_baseline": {"full": {"HR@10": 0.1}}})
    'For 31.0 % of 200 test users, Bert4Rec has the item that came next among its first ten, out of 40 items. \
Popularity has it for 10.0 %: Bert4Rec finds 3.1 times as many.'
    """
    return " ".join([*_of_ranking(report), *_of_ratings(report)]) or _without_a_test(report)


def _of_ranking(report: Mapping[str, Any]) -> Iterator[str]:
    protocol = main_protocol(report)
    found = [one for one in contestants(report) if protocol and METRIC in one.metrics.get(protocol, {})]
    if protocol is None or not found or found[0].kind != MODEL:
        return
    model, others = found[0], {one.kind: one for one in found[1:]}
    value, dataset = model.metrics[protocol][METRIC], report["dataset"]
    among = AMONG.get(protocol, "").format(items=counted(dataset["items"], "item"), n=dataset.get("n_eval_negatives"))
    users = counted(model.metrics[protocol]["users"], "test user")
    yield (
        f"For {_percent(value)} of {users}, {model.title} has the item that came next among its first ten, {among}"
        f"{_between(model, protocol)}."
    )
    best, popularity = others.pop(BEST_POSSIBLE, None), others.pop("popularity", None)
    if popularity:
        yield _beside(model.title, value, "Popularity", popularity.metrics[protocol][METRIC])
    comparison = report.get("strongest_baseline") or {}
    if (strongest := others.get(comparison.get("kind", ""))) and strongest.metrics[protocol].get(METRIC) is not None:
        share = _percent(strongest.metrics[protocol][METRIC])
        yield f"The strongest baseline without training, {strongest.title}, has it for {share}."
    if best:
        yield f"Nobody could do better than {_percent(best.metrics[protocol][METRIC])} on these made-up data."


def _between(model: Contestant, protocol: str) -> str:
    interval = model.interval(protocol, METRIC)
    return f" (between {_percent(interval[0])} and {_percent(interval[1])}, with 95 % confidence)" if interval else ""


def _beside(model: str, value: float, name: str, its_value: float) -> str:
    """How much better, or worse, than another one."""
    start = f"{name} has it for {_percent(its_value)}"
    if not its_value:
        return f"{start}."
    times = value / its_value
    if times < 1:
        return f"{start}: more than {model}."
    return f"{start}: {model} finds {rounded(times)} times as many."


def _of_ratings(report: Mapping[str, Any]) -> Iterator[str]:
    ratings = report.get("ratings") or {}
    if "RMSE" not in ratings:
        return
    mean = ratings.get("baseline_RMSE")
    beside = f" (always the mean rating: {mean:.4f})" if mean else ""
    pairs = counted(ratings.get("pairs", 0), "held-out rating")
    yield f"It predicts {pairs} with an RMSE of {ratings['RMSE']:.4f}{beside}."


def _without_a_test(report: Mapping[str, Any]) -> str:
    epochs = counted((report.get("training") or {}).get("epochs", 0), "epoch")
    rows = counted(report["dataset"]["rows"], "interaction")
    return f"Trained {epochs} on all {rows}: nothing was held out, so that there is no test."


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
