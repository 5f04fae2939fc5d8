"""The checks of a finished run: what is suspicious and what is not, each a sentence with its figures."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bert4rec.report.figures import MODEL, Curve, contestants, curve_of, kind_of
from bert4rec.runtime.errors import pluralize, rounded

GAIN = 0.01  # in the last quarter of the validations; less is noise
DROP, N_WORSE = 0.05, 5  # below the best, for so many validations; less is no fall
FEW_STEPS = 5  # in an epoch

Record = Mapping[str, Any]


class Check(NamedTuple):
    """A check, with its `name` for programs and its `text` for people."""

    name: str
    text: str
    is_warning: bool


def checks(report: Record, validations: Sequence[Record], *, n_evaluated: int = 0) -> list[Check]:
    """Return all checks that the `report` and the records of its `validations` allow.

    `n_evaluated`: how many other checkpoints of the run have been evaluated on the test.
    """
    training = report["training"]
    if not kind_of(report).is_trained:
        return []
    found = [*_of_curve(validations, training), *_of_baselines(report)]
    if training.get("epochs"):
        found += [*_of_steps(training), *_of_selection(report, validations, n_evaluated), *_of_start(report)]
    return found


def warnings(found: Sequence[Check]) -> list[dict[str, str]]:
    """Return the checks that warn, as report.json has them."""
    return [{"name": check.name, "text": check.text} for check in found if check.is_warning]


def _of_curve(validations: Sequence[Record], training: Record) -> Iterator[Check]:
    """Check whether the training ended too early, or long after its best validation."""
    curve = curve_of(validations)
    if curve is None or len(curve.values) < 3 or not max(curve.scores):
        return
    yield _still_improving(curve, training)
    values, epochs, best = curve.values, curve.epochs, curve.best
    drop, n_after = 1 - curve.scores[-1] / curve.scores[best], len(values) - 1 - best
    if n_after >= N_WORSE and drop >= DROP:
        text = (
            f"Validation {curve.metric} has been getting worse since epoch {epochs[best]}: from {values[best]:.4f} to "
            f"{values[-1]:.4f} at epoch {epochs[-1]}, by {100 * drop:.0f} %, over {pluralize(n_after, 'validation')}. "
            f"The weights of epoch {epochs[best]} are the ones tested; what came after was in vain."
        )
        yield Check("validation_falling", text, True)
    else:
        text = f"Validation {curve.metric} ended {100 * drop:.1f} % from its best: it did not get worse for long."
        yield Check("validation_falling", text, False)


def _still_improving(curve: Curve, training: Record) -> Check:
    scores, epochs, best = curve.scores, curve.epochs, curve.best
    n_last = max(1, len(scores) // 4)
    before = max(scores[:-n_last])
    gain = scores[best] / before - 1 if before else 1.0
    stopped_by = training["stopped_by"]
    if stopped_by in ("n_epochs", "max_minutes") and best >= len(scores) - n_last and gain >= GAIN:
        text = (
            f"It was still improving when it ended: validation {curve.metric} got better by {100 * gain:.1f} % in the "
            f"last quarter of the training, to {curve.values[best]:.4f} at epoch {epochs[best]}. training.{stopped_by} "
            "has stopped it; more of that gives a better model."
        )
        return Check("still_improving", text, True)
    text = (
        f"It had stopped improving: the best validation {curve.metric}, {curve.values[best]:.4f} at epoch "
        f"{epochs[best]} of {epochs[-1]}, is {100 * max(gain, 0):.1f} % better than that of the first three quarters "
        "of the training."
    )
    return Check("still_improving", text, False)


def _of_baselines(report: Record) -> Iterator[Check]:
    """Check the paired difference from the strongest baseline."""
    comparison = report.get("strongest_baseline")
    found = {one.kind: one for one in contestants(report)}
    if not comparison or comparison["kind"] not in found:
        return
    model, strongest = found[MODEL], found[comparison["kind"]]
    protocol, metric, (low, high) = comparison["protocol"], comparison["metric"], comparison["interval"]
    value, its_value = (one.metrics[protocol][metric] for one in (model, strongest))
    verdict = "better than" if low > 0 else "worse than" if high < 0 else "not clearly better than"
    text = (
        f"{model.title} is {verdict} {strongest.title}, the strongest baseline without training: test {metric} "
        f"{value:.4f} against {its_value:.4f}, difference {comparison['difference']:+.4f} ({low:+.4f} to {high:+.4f}, "
        "95 % confidence, the same users)."
    )
    advice = (
        " Train longer (training.n_epochs, training.patience, training.max_minutes), or use the baseline: "
        f"--model.kind={strongest.kind}."
    )
    yield Check("below_baseline", text + advice * (low <= 0), low <= 0)


def _of_steps(training: Record) -> Iterator[Check]:
    """Check whether the batch is too large for the data."""
    steps = training["steps"] / training["epochs"]
    text = f"An epoch has {pluralize(steps, 'step')}, the training had {training['steps']:,} in all."
    if steps < FEW_STEPS:
        text = (
            f"An epoch has only {pluralize(steps, 'step')}, and the training had {training['steps']:,} in all: "
            "the batch is too large for these data. Fewer processes, or a smaller "
            "training.per_device_train_batch_size, learn more."
        )
    yield Check("few_steps", text, steps < FEW_STEPS)


def _of_selection(report: Record, validations: Sequence[Record], n_evaluated: int) -> Iterator[Check]:
    """Check whether the test influenced the choice of the weights."""
    if "test" not in report:
        return
    if not validations:
        text = (
            "Nothing was held out for validation: the last weights were tested. Settings that are chosen by these "
            "figures are fitted to the test."
        )
        yield Check("no_validation", text, True)
        return
    epoch = rounded(report["training"]["best_epoch"])
    text = f"The weights were chosen by {_judges(validations[-1])} alone: those of epoch {epoch}."
    if n_evaluated:
        more = pluralize(n_evaluated, "other checkpoint")
        text = (
            f"The test was run for {more} of this run besides: whoever takes the best of them by these figures "
            f"selects on the test. The ones reported here, of epoch {epoch}, were chosen on validation."
        )
    yield Check("test_selection", text, n_evaluated > 0)


def _judges(validation: Record) -> str:
    """Return what the weights were chosen by."""
    for protocol, key, noun in (("full", "users", "validation user"), ("ratings", "pairs", "held-out rating")):
        if key in validation.get(protocol, {}):
            return pluralize(validation[protocol][key], noun)
    return "the validation"


def _of_start(report: Record) -> Iterator[Check]:
    """Check whether the initial weights may know the test."""
    origin = report["training"].get("init_from")
    if not origin:
        return
    is_other = origin["fingerprint"] != report["dataset"]["fingerprint"]
    text = f"It began with the weights of {origin['folder']}, which were trained on the same dataset."
    if is_other:
        text = (
            f"It began with the weights of {origin['folder']}, which were trained on another dataset "
            f"({origin['fingerprint'][:12]}, here {report['dataset']['fingerprint'][:12]}): test targets of this one "
            "may have been among its training items."
        )
    yield Check("foreign_start", text, is_other)
