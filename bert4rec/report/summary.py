"""Sentences of a report: the summary, the line of results, and the rules of each figure."""

from collections.abc import Iterator, Mapping

from bert4rec.config.kinds import KINDS, POPULARITY
from bert4rec.report.figures import BEST_POSSIBLE, MODEL, Report, contestants, main_protocol
from bert4rec.runtime.errors import pluralize, rounded

PROTOCOL_TITLES = {
    "full": "Full catalogue{seen}",
    "popular": "Among {n} unseen items drawn by popularity (the BERT4Rec paper's protocol)",
    "uniform": "Among {n} unseen items drawn uniformly",
}
SHORT_TITLES = {"full": "full catalogue", "popular": "popular negatives", "uniform": "uniform negatives"}
AMONG = {
    "full": "out of {items}",
    "popular": "out of it and {n} others drawn by popularity",
    "uniform": "out of it and {n} others drawn uniformly",
}
SEEN = {  # in the full catalogue
    "keep": ", seen items among them",
    "leave_out": ", without the items that the user has seen",
}
HELD_OUT = {
    "leave_one_out": "Test: the last item of each user; validation: the last but one of a sample of the users.",
    "time": "Test: the first item of each user from `split_at` on; validation: the last one before, of a sample of the "
    "users.",
}
SEEN_AND_TIES = "Seen is all of a user's history before the target. Ties go to the lower id; ids are shuffled."
WITH_TIMES = {"history": ", with times", "target": ", with the target's time"}
TIMES = {
    "history": " The model is told when the items of a history were taken.",
    "target": " The model is told when the items of a history were taken, and the instant of the target: another task "
    "than that of models without it.",
}
NO_TEST = "This dataset holds nothing out: there is no test."
METRIC = "HR@10"


def summary(report: Report) -> str:
    """Return a few sentences for a reader who does not know the names of metrics.

    >>> metrics = {"full": {"users": 200, "HR@10": 0.31}}
    >>> baseline = {"full": {"HR@10": 0.1}}
    >>> summary({"model": "SASRec", "dataset": {"items": 40}, "test": metrics, "popularity_baseline": baseline})
    'For 31.0 % of 200 test users, SASRec has the item that came next among its first ten, out of 40 items. \
Popularity has it for 10.0 %: SASRec finds 3.1 times as many.'
    """
    sentences = [*_ranking_sentences(report)]
    if ratings := report.get("ratings"):
        sentences.append(
            f"It predicts {pluralize(ratings['pairs'], 'held-out rating')} with an RMSE of {ratings['RMSE']:.4f} "
            f"(always the mean rating: {ratings['baseline_RMSE']:.4f})."
        )
    if not sentences:
        epochs = pluralize(report["training"]["epochs"], "epoch")
        rows = pluralize(report["dataset"]["rows"], "interaction")
        sentences.append(f"Trained {epochs} on all {rows}: nothing was held out, so that there is no test.")
    return " ".join(sentences)


def _ranking_sentences(report: Report) -> Iterator[str]:
    protocol = main_protocol(report)
    found = {one.kind: one for one in contestants(report) if METRIC in one.metrics.get(protocol or "", {})}
    if protocol is None or MODEL not in found:
        return
    model, values = found[MODEL], {kind: one.metrics[protocol][METRIC] for kind, one in found.items()}
    dataset, interval = report["dataset"], model.interval(protocol, METRIC)
    users = pluralize(model.metrics[protocol]["users"], "test user")
    among = AMONG[protocol].format(items=pluralize(dataset["items"], "item"), n=dataset.get("n_eval_negatives"))
    between = (
        f" (between {_percent(interval[0])} and {_percent(interval[1])}, with 95 % confidence)" if interval else ""
    )
    yield (
        f"For {_percent(values[MODEL])} of {users}, {model.title} has the item that came next among its first ten, "
        f"{among}{between}."
    )
    if POPULARITY in values:
        text = f"Popularity has it for {_percent(values[POPULARITY])}"
        if values[POPULARITY]:
            ratio = values[MODEL] / values[POPULARITY]
            more = f"{model.title} finds {rounded(ratio)} times as many"
            text += f": {more}" if ratio >= 1 else f": more than {model.title}"
        yield f"{text}."
    strongest = report.get("strongest_baseline", {}).get("kind")
    if strongest in values and strongest != POPULARITY:
        name, share = found[strongest].title, _percent(values[strongest])
        yield f"The strongest baseline without training, {name}, has it for {share}."
    if BEST_POSSIBLE in values:
        yield f"Nobody could do better than {_percent(values[BEST_POSSIBLE])} on these made-up data."


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def result_line(report: Report) -> str:
    """Return a line on ratings, if there are any, and a line on the test: the model, popularity, the best baseline."""
    lines = [ratings_line(report["ratings"])] if "ratings" in report else []
    protocol = next((name for name in SHORT_TITLES if name in report.get("test", {})), None)
    if protocol:
        lines.append(_ranking_line(report, protocol))
    elif "test" in report or not lines:
        lines.append(missing_figures(report))
    return "\n".join(lines)


def _ranking_line(report: Report, protocol: str) -> str:
    metrics = {
        one.title: one.metrics[protocol]
        for one in contestants(report)
        if one.kind != BEST_POSSIBLE and protocol in one.metrics
    }
    (_, model), *baselines = metrics.items()
    best = max(baselines, key=lambda one: one[1]["NDCG@10"], default=("", {}))[0]
    texts = [
        f"{title}: {values['HR@10']:.4f}, {values['NDCG@10']:.4f}"
        for title, values in baselines
        if title in (KINDS[POPULARITY].title, best)
    ]
    beside = f" ({'; '.join(texts)})" if texts else ""
    times = WITH_TIMES.get(report.get("times", ""), "")
    return (
        f"test of {pluralize(model['users'], 'user')}, {SHORT_TITLES[protocol]}{times}: HR@10 {model['HR@10']:.4f}, "
        f"NDCG@10 {model['NDCG@10']:.4f}{beside}"
    )


def ratings_line(ratings: Mapping[str, float]) -> str:
    """Return the errors on the held-out ratings, and those of mean ratings."""
    return (
        f"{ratings['pairs']:,} held-out ratings: RMSE {ratings['RMSE']:.4f}, MAE {ratings['MAE']:.4f} (RMSE of the "
        f"mean rating: {ratings['baseline_RMSE']:.4f}, of item and user means: {ratings['means_RMSE']:.4f})"
    )


def missing_figures(report: Report, split: str = "test") -> str:
    """Return a sentence on what a split has no figures of; "" if it has all."""
    if split not in report:
        return NO_TEST
    left_out = report["dataset"]["left_out"][split]
    if left_out["users"] < left_out["of"]:
        return ""
    n = report["dataset"]["n_eval_negatives"]
    return f"No user has {n} unseen items: there is no ranking among sampled items."


def heading(report: Report, split: str, protocol: str) -> str:
    """Return what is ranked, and for how many users."""
    dataset, users, seen = report["dataset"], report[split][protocol]["users"], report["seen_items"]
    n, repeated = dataset["n_eval_negatives"], dataset["repeated_targets"][split]
    title = PROTOCOL_TITLES[protocol].format(n=n, seen=SEEN[seen])
    if protocol == "full" and seen == "leave_out" and repeated["users"]:
        title += f"; a target that the user has seen counts as missed: {_share(repeated, 'targets')}"
    n_left_out = repeated["of"] - users
    if not n_left_out:
        return f"{title}; {users} users"
    return f"{title}; {users} of {repeated['of']} users (left out: {n_left_out}, with fewer than {n} unseen items)"


def rules(report: Report) -> str:
    """Return what was held out, what counts as seen, and which item wins a tie; "" if nothing is held out."""
    held_out = HELD_OUT.get(report["dataset"]["split"])
    counts = report["dataset"]["repeated_targets"]
    shares = [_share(counts[split], f"{split} targets") for split in ("test", "validation") if split in counts]
    repeats = f" Seen by their users before: {', '.join(shares)}." if shares else ""
    return f"{held_out}{TIMES.get(report.get('times', ''), '')}{repeats} {SEEN_AND_TIES}" if held_out else ""


def protocols(report: Report) -> dict[str, dict[str, str]]:
    """Return split → protocol → which items are ranked for which users, and the rules."""
    return {
        split: {name: f"{heading(report, split, name)}. {rules(report)}" for name in report[split]}
        for split in ("validation", "test")
        if split in report
    }


def unknown_items(report: Report) -> str:
    """Return a sentence on the items of the dataset that the model does not know; "" if it knows all."""
    if not (unknown := report.get("evaluation", {}).get("unknown")):
        return ""
    items, targets, histories = unknown["items"], unknown["targets"], unknown["histories"]
    missed = [_share(targets[split], f"{split} targets") for split in ("test", "validation") if split in targets]
    n_histories = sum(count["users"] for count in histories.values())
    without = f", and the targets of {pluralize(n_histories, 'history')} without a known item" if n_histories else ""
    return (
        f"The model does not know {items['items']:,} of {pluralize(items['of'], 'item')}: {', '.join(missed)} are such "
        f"items{without}; they count as missed."
    )


def _share(count: Mapping[str, int], noun: str) -> str:
    """Return `305 of 1500 targets (20.3 %)`."""
    return f"{count['users']} of {count['of']} {noun} ({100 * count['users'] / count['of']:.1f} %)"
