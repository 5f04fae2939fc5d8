"""Write the sentences of a report: the summary, the line of results, the evaluation rules, and the checks of the run.

Their texts are in templates/sentences.j2.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bert4rec.config.kinds import KINDS, POPULARITY
from bert4rec.config.resolve import FEW_STEPS
from bert4rec.dataset.format import PREVIOUS
from bert4rec.dataset.hidden import what_to_hide
from bert4rec.evaluation import BEST_POSSIBLE
from bert4rec.report.figures import MODEL, TRAINED_TARGETS, Report, contestants, curve_of, kind_of, main_protocol
from bert4rec.report.templates import sentence

SHORT_TITLES = {"full": "full catalogue", "popular": "popular negatives", "uniform": "uniform negatives"}
METRIC = "HR@10"

GAIN = 0.01  # smallest gain in the last quarter of the validations that counts as improving
DROP, N_WORSE = 0.05, 5  # smallest drop below the best, and number of validations since, that count as falling
LAST_PART = 0.25  # of the training, without an improvement, after which it counts as finished
MANY_STEPS = 2_000  # until then, a model may not have begun to learn
ALL_FOUND = 0.9995  # HR@10 that is shown as 1.000
FEW_USERS = 100  # test users
JUDGED = ("use", "equal", "worse")  # verdicts by the comparison with the strongest baseline
COPIES = 0.5  # share of the test targets whose item is in the input, from which the figures are of copying


def summary(report: Report) -> str:
    """Return a few sentences for a reader who does not know the names of metrics.

    >>> metrics = {"full": {"users": 200, "HR@10": 0.31}}
    >>> baseline = {"full": {"HR@10": 0.1}}
    >>> print(summary({"model": "SASRec", "dataset": {"items": 40}, "test": metrics, "popularity_baseline": baseline}))
    For 310 of 1,000 people, the item that came next was among the ten that SASRec recommends, out of 40 items \
(HR@10 0.310, measured on 200 test users). The ten most popular items would do it for 100 of 1,000.
    """
    protocol, strongest = main_protocol(report), report.get("strongest_baseline", {}).get("kind")
    found = {one.kind: one for one in contestants(report) if METRIC in one.metrics.get(protocol or "", {})}
    return sentence(
        "summary", report=report, protocol=protocol, found=found if MODEL in found else {},
        strongest=None if strongest == POPULARITY else found.get(strongest),
    )  # fmt: skip


class Verdict(NamedTuple):
    """The advice to a person, with its reason, in sentences: `kind` is "use", "equal", "worse", "repair", ….

    `baseline` is the kind of the baseline that is better or as good; "" if there is none.
    """

    kind: str
    text: str
    baseline: str = ""


def verdict(report: Report) -> Verdict:
    """Return the model's paired difference from the strongest baseline, and then what else to know and to do.

    Where many test targets are tied with the item before them, the difference is that of the other users alone. The
    kind is "repair" if the verdict is another without the users that a damage of the log concerns.
    """
    untied = report.get("untied")
    comparison = untied if untied and "kind" in untied else report.get("strongest_baseline")
    found = {one.kind: one for one in contestants(report)}
    protocol = main_protocol(report)
    n_users = found[MODEL].metrics[protocol]["users"] if protocol and MODEL in found else 0
    kind = "none"
    if protocol and n_users < FEW_USERS:
        kind = "few"
    elif protocol and _are_copies(report):
        kind = "copies"
    elif protocol and untied and untied["users"] < FEW_USERS:
        kind = "tied"
    elif protocol:
        kind = "alone" if comparison is None or comparison["kind"] not in found else _judge(comparison["interval"])
    damage = [*_damage(report, kind, {one.kind: one.title for one in found.values()})] if kind in JUDGED else []
    values = {
        "judged": kind, "title": report["model"], "comparison": comparison, "untied": untied, "n_users": n_users,
        "strongest": found[comparison["kind"]].title if kind in JUDGED and comparison else "",
        "copied": report.get("answers_in_input", {}),
        "option": what_to_hide(report.get("answers_in_input", {}), report["dataset"]),
    }  # fmt: skip
    if any(changes_verdict for _, changes_verdict in damage):
        kind = "repair"
    helps = advice(report) if kind in ("equal", "worse") and not untied else ""
    sentences = [
        sentence("verdict", kind=kind, **values),
        *(text for text, _ in damage),
        sentence("what_helps", advice=helps),
    ]
    baseline = comparison["kind"] if comparison and kind in ("equal", "worse") else ""
    return Verdict(kind, " ".join(filter(None, sentences)), baseline)


def _are_copies(report: Report) -> bool:
    """Return whether the items of most test targets are in the input since the last target or in the same visit."""
    counted = report.get("answers_in_input", {"targets": 0, "of": 1})
    return bool(counted["targets"] >= COPIES * counted["of"])


def _judge(interval: Sequence[float]) -> str:
    low, high = interval
    return "use" if low > 0 else "worse" if high < 0 else "equal"


def _damage(report: Report, kind: str, titles: Mapping[str, str]) -> Iterator[tuple[str, bool]]:
    """Yield for each damage of the log how to mend it and how much it matters, and whether it changes the verdict.

    `kind`: the verdict by all users, `titles` of the baselines by their kinds.
    """
    for finding in report["dataset"].get("findings", []):
        if not finding["is_damage"]:
            continue
        without = report.get("without", {}).get(finding["name"], {"left_out": 0})
        is_few = without["left_out"] > 0 and ("interval" not in without or without["users"] < FEW_USERS)
        changes = is_few or ("interval" in without and _judge(without["interval"]) != kind)
        text = sentence(
            "damage", text=finding["text"], without=without, is_few=is_few, changes=changes,
            strongest=titles.get(without.get("kind", ""), ""),
        )  # fmt: skip
        yield text, changes


def advice(report: Report) -> str:
    """Return what may make a model better: "longer" training, an "other" model, or "" if it finds or copies all.

    A training has ended by itself if patience has stopped it, or if its best weights are old.
    """
    protocol, training = main_protocol(report), report.get("training", {})
    if _are_copies(report) or (protocol and report["test"][protocol].get(METRIC, 0.0) >= ALL_FOUND):
        return ""
    is_old = training.get("best_epoch", 0) < (1 - LAST_PART) * training.get("epochs", 0)
    is_falling = any(warning.get("name") == "validation_falling" for warning in report.get("warnings", []))
    has_ended = training.get("stopped_by") == "patience" or is_falling or (is_old and training["steps"] >= MANY_STEPS)
    return "other" if has_ended else "longer"


def result_line(report: Report) -> str:
    """Return a line on ratings, if there are any, and a line on the test: the model, popularity, the best baseline."""
    lines = [ratings_line(report["ratings"])] if "ratings" in report else []
    protocol = next((name for name in SHORT_TITLES if name in report.get("test", {})), None)
    if protocol:
        ranked = [one for one in contestants(report) if one.kind != BEST_POSSIBLE and protocol in one.metrics]
        (_, model), *baselines = ((one.title, one.metrics[protocol]) for one in ranked)
        best, _ = max(baselines, key=lambda one: one[1]["NDCG@10"], default=("", {}))
        shown = [one for one in baselines if one[0] in (KINDS[POPULARITY].title, best)]
        title, times = SHORT_TITLES[protocol], report.get("times", "")
        lines.append(sentence("ranking", model=model, baselines=shown, title=title, times=times))
    elif "test" in report or not lines:
        lines.append(missing_figures(report))
    return "\n".join(lines)


def ratings_line(ratings: Mapping[str, float]) -> str:
    """Return a line with the errors on the held-out ratings, and those of mean ratings."""
    return sentence("ratings", of=ratings)


def order(report: Report) -> str:
    """Return what the order of the histories is worth to the model and to baselines; "" if it was not measured."""
    found, protocol = {one.kind: one for one in contestants(report)}, main_protocol(report)
    kinds = [
        (found[name].title, found[name].metrics[protocol]["NDCG@10"], loss)
        for kind, loss in report.get("order", {}).items()
        if protocol and (name := MODEL if kind == report["kind"] else kind) in found
    ]
    return sentence("order", kinds=kinds) if kinds else ""


def prior(report: Report) -> str:
    """Return what the prior gives to the model, with its weights, or that it is left out; "" without a prior."""
    return sentence("prior", prior=report["prior"]) if "prior" in report else ""


def missing_figures(report: Report, split: str = "test") -> str:
    """Return a sentence on the missing figures of a split; "" if none is missing."""
    return sentence("missing_figures", report=report, split=split)


def heading(report: Report, split: str, protocol: str) -> str:
    """Return what is ranked, and for how many users."""
    return sentence("heading", report=report, split=split, protocol=protocol)


def rules(report: Report) -> str:
    """Return what was held out, what counts as seen, and which item wins a tie; "" if nothing is held out."""
    return sentence("rules", report=report)


def protocols(report: Report) -> dict[str, dict[str, str]]:
    """Return split → protocol → which items are ranked for which users, and the rules."""
    return {
        split: {name: f"{heading(report, split, name)}. {rules(report)}" for name in report[split]}
        for split in ("validation", "test")
        if split in report
    }


def unknown_items(report: Report) -> str:
    """Return a sentence on the items of the dataset that the model does not know; "" if it knows all."""
    unknown = report.get("evaluation", {}).get("unknown")
    return sentence("unknown_items", unknown=unknown) if unknown else ""


def trained_targets(report: Report) -> str:
    """Return a sentence on the targets of another dataset that the model has trained on; "" for its own dataset."""
    about = report.get("evaluation", {})
    return sentence("trained_targets", counts=about[TRAINED_TARGETS]) if TRAINED_TARGETS in about else ""


class Check(NamedTuple):
    """The result of a check of a finished run: its `name` for programs and its `text` for people."""

    name: str
    text: str
    is_warning: bool


def checks(report: Report, validations: Sequence[Report], *, n_evaluated: int = 0) -> list[Check]:
    """Return all checks that the `report` and the records of its `validations` allow.

    `n_evaluated`: how many other checkpoints of the run have been evaluated on the test.
    """
    training = report["training"]
    if not kind_of(report).is_trained:
        return []
    results = [*_curve_checks(validations, training)]
    results += _baseline_checks({**report, "warnings": warnings(results)})
    if training.get("epochs"):
        results += _training_checks(report, validations, n_evaluated)
    return results


def warnings(found: Sequence[Check]) -> list[dict[str, str]]:
    """Return the warnings among the checks, in the form of report.json."""
    return [{"name": check.name, "text": check.text} for check in found if check.is_warning]


def _check(name: str, is_warning: bool, **values: Any) -> Check:
    return Check(name, sentence(name, warns=is_warning, **values), is_warning)


def _curve_checks(validations: Sequence[Report], training: Report) -> Iterator[Check]:
    """Check whether the training ended too early, or long after its best validation."""
    curve = curve_of(validations)
    if curve and len(curve.values) > 1 and validations[0]["epoch"] == training["best_epoch"] == 0:
        yield _check("learnt_nothing", True, curve=curve)
    if curve is None or len(curve.values) < 3 or not max(curve.scores):
        return
    scores, best, stopped_by = curve.scores, curve.best, training["stopped_by"]
    n_last, n_after = max(1, len(scores) // 4), len(scores) - 1 - best
    before, drop = max(scores[:-n_last]), 1 - scores[-1] / scores[best]
    gain = scores[best] / before - 1 if before else 1.0
    is_cut_short = stopped_by in ("n_epochs", "max_minutes") and n_after < n_last and gain >= GAIN
    yield _check("still_improving", is_cut_short, curve=curve, gain=gain, stopped_by=stopped_by)
    yield _check("validation_falling", n_after >= N_WORSE and drop >= DROP, curve=curve, drop=drop, n_after=n_after)


def _baseline_checks(report: Report) -> Iterator[Check]:
    """Check the paired difference from the strongest baseline."""
    comparison, untied = report.get("strongest_baseline"), report.get("untied")
    found = {one.kind: one for one in contestants(report)}
    if untied:
        yield _check("ties", True, untied=untied)
    elif comparison and comparison["kind"] in found:
        model, strongest = found[MODEL], found[comparison["kind"]]
        is_warning = comparison["interval"][0] <= 0
        yield _check(
            "below_baseline", is_warning, model=model, strongest=strongest, comparison=comparison,
            advice=advice(report),
        )  # fmt: skip


def _training_checks(report: Report, validations: Sequence[Report], n_evaluated: int) -> Iterator[Check]:
    """Check the batch size, whether the test influenced the choice of the weights, and the origin of the weights."""
    training, fingerprint = report["training"], report["dataset"]["fingerprint"]
    extended = report["dataset"].get(PREVIOUS, {}).get("fingerprints", ())
    per_epoch = training["steps"] / training["epochs"]
    yield _check("few_steps", per_epoch < FEW_STEPS, per_epoch=per_epoch, steps=training["steps"])
    if "test" in report and validations:
        epoch = training["best_epoch"]
        yield _check(
            "test_selection", n_evaluated > 0, validation=validations[-1], epoch=epoch, n_evaluated=n_evaluated
        )
    elif "test" in report:
        yield _check("no_validation", True)
    if origin := training.get("init_from"):
        is_foreign = origin["fingerprint"] not in (fingerprint, *extended)
        yield _check("foreign_start", is_foreign, origin=origin, fingerprint=fingerprint)
