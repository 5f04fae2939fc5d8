"""The report of a finished run: report.json for programs, report.md for people."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert4rec.checkpoint.run_folder import CONFIG, ENVIRONMENT, HTML_PAGE, METRICS, PICTURE, PLAN
from bert4rec.config.abilities import POPULARITY, UNTRAINED, examples_of, is_trained
from bert4rec.evaluation.metric_names import is_of_lists
from bert4rec.report.contestants import BEST_POSSIBLE, MODEL, contestants
from bert4rec.report.markdown.table import markdown_table
from bert4rec.report.summary import summary
from bert4rec.runtime.files import write_whole
from bert4rec.runtime.wording import counted, rounded

FORMAT_VERSION = 1
PROTOCOL_TITLES = {
    "full": "Full catalogue{seen}",
    "popular": "Among {n} unseen items drawn by popularity (the BERT4Rec paper's protocol)",
    "uniform": "Among {n} unseen items drawn uniformly",
}
SHORT_TITLES = {"full": "full catalogue", "popular": "popular negatives", "uniform": "uniform negatives"}
SEEN = {  # of the full catalogue
    "keep": ", seen items among them",
    "leave_out": ", without the items that the user has seen",
}
MISSED = "; a target that the user has seen counts as missed: {repeated}"
HELD_OUT = {
    "leave_one_out": "Test: the last item of each user; validation: the last but one of a sample of the users.",
    "time": "Test: the first item of each user from `split_at` on; validation: the last one before, of a sample of the "
    "users.",
}
SEEN_AND_TIES = "Seen is all of a user's history before the target. Ties go to the lower id; ids are shuffled."
LISTS = "Their lists of the {k} best items:"
LISTED_AT = 10  # of the cut-offs of lists the one in the tables
WITH_TIMES = {"history": ", with times", "target": ", with the target's time"}
TIMES = {
    "history": " The model is told when the items of a history were taken.",
    "target": " The model is told when the items of a history were taken, and the instant of the target: another task "
    "than that of models without it.",
}
NO_TEST = "This dataset holds nothing out: there is no test."


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Indented JSON, all or nothing: a report.json that is there is whole."""
    write_whole(path, json.dumps(content, indent=2) + "\n")


def report_page(report: Mapping[str, Any]) -> str:
    """The report as Markdown; what was not measured is left out."""
    dataset = report["dataset"]
    validation, curve = "", "Training loss"
    was_trained, model = _was_trained(report), _model(report)
    if "validation" in report:
        validation = f"## Validation\n\n{metrics_table(report, 'validation')}"
        curve = "Training loss and validation metrics"
    held_out = f"{rules(report)} " if "test" in report else ""
    sections = [
        f"# {model[0].upper()}{model[1:]} on {dataset.get('file') or dataset['source']}",
        summary(report),
        "\n".join(f"- **Warning.** {warning['text']}" for warning in report.get("warnings", [])),
        _training(report) if was_trained else _counting(report),
        f"## Ratings\n\n{ratings_line(report['ratings'])}." if "ratings" in report else "",
        f"## Test\n\n{metrics_table(report)}",
        report.get("baselines_left_out", ""),
        validation,
        f"## Learning curve\n\n![{curve} by step]({PICTURE})" if was_trained else "",
        f"{held_out}More, with examples: `{HTML_PAGE}`; settings: `{CONFIG}`; every record: `{METRICS}`; versions: "
        f"`{ENVIRONMENT}`" + (f"; shards: `{PLAN}`." if was_trained else "."),
    ]
    return "\n\n".join(filter(None, sections)) + "\n"


def rules(report: Mapping[str, Any]) -> str:
    """What was held out, what counts as seen, and who wins a tie; "" for a report that does not say."""
    held_out = HELD_OUT.get(report["dataset"].get("split", ""))
    times = TIMES.get(report.get("times", ""), "")
    return f"{held_out}{times}{_repeats(report)} {SEEN_AND_TIES}" if held_out else ""


def unknown_items(report: Mapping[str, Any]) -> str:
    """Return a sentence on the items of the dataset that the model does not know; "" where it knows all."""
    if not (unknown := report.get("evaluation", {}).get("unknown")):
        return ""
    items, targets, histories = unknown["items"], unknown["targets"], unknown["histories"]
    missed = [_share(targets[split], f"{split} targets") for split in ("test", "validation") if split in targets]
    n_histories = sum(count["users"] for count in histories.values())
    without = f", and the targets of {counted(n_histories, 'history')} without a known item" if n_histories else ""
    return (
        f"The model does not know {items['items']:,} of {counted(items['of'], 'item')}: {', '.join(missed)} are such "
        f"items{without}; they count as missed."
    )


def _model(report: Mapping[str, Any]) -> str:
    """What was trained; reports of an older version had one kind."""
    return str(report.get("model", "Bert4Rec"))


def _was_trained(report: Mapping[str, Any]) -> bool:
    return is_trained(report.get("kind", "bert4rec"))


def _repeats(report: Mapping[str, Any]) -> str:
    """How many targets stand in the histories of their own users; nothing for a report of an older version."""
    counts = report["dataset"].get("repeated_targets", {})
    shares = [_share(counts[split], f"{split} targets") for split in ("test", "validation") if split in counts]
    return f" Seen by their users before: {', '.join(shares)}." if shares else ""


def _training(report: Mapping[str, Any]) -> str:
    """On what was trained, and how it went."""
    dataset, training = report["dataset"], report["training"]
    peak = max(training["peak_memory_bytes"]) / 2**20
    if "validation" in report:
        best = rounded(training["best_epoch"])
        kept = f"The weights of epoch {best} were best on validation and are the ones tested."
    else:
        kept = "Nothing was held out for validation: the last weights were kept."
    parts = "".join(f" Resumed after step {step:,} on {counted(n, 'process')}." for step, n in training["resumed"])
    rate = training["sequences_per_second"]
    examples = examples_of(report.get("kind", "bert4rec"))
    speed = f" {rounded(rate)} {examples}/s;" if rate else ""  # not measured where there were too few steps
    return (
        f"{_data(dataset)}. Mode {report['mode']}, "
        f"{counted(report['world_size'], 'process')}.\n\n"
        f"Trained {counted(training['epochs'], 'epoch')} ({counted(training['steps'], 'step')}) in "
        f"{counted(round(training['seconds']), 'second')}, stopped by {training['stopped_by']};{speed} "
        f"peak memory {peak:,.0f} MiB a process. {kept}{parts}"
    )


def _counting(report: Mapping[str, Any]) -> str:
    """What was counted, where nothing is trained."""
    training, n_processes = report["training"], counted(report["world_size"], "process")
    return (
        f"{_data(report['dataset'])}. {n_processes[0].upper()}{n_processes[1:]}.\n\n"
        f"Nothing was trained: {counted(training['positions'], 'training position')} were counted in "
        f"{counted(training['seconds'], 'second')}; peak memory "
        f"{max(training['peak_memory_bytes']) / 2**20:,.0f} MiB a process."
    )


def _data(dataset: Mapping[str, Any]) -> str:
    of_data = ((dataset["users"], "user"), (dataset["items"], "item"), (dataset["rows"], "interaction"))
    return ", ".join(counted(n, noun) for n, noun in of_data)


def result_line(report: Mapping[str, Any]) -> str:
    """The test in one line, on the full catalogue where that was measured: the model, popularity, the best baseline.

    Where ratings were learnt a line on them, before that. What is said in place of a table where nothing was measured.
    """
    lines = [ratings_line(report["ratings"])] if "ratings" in report else []
    return "\n".join([*lines, *([_ranking_line(report)] if "test" in report or not lines else [])])


def ratings_line(ratings: Mapping[str, float]) -> str:
    """Errors on the held-out ratings, beside those of means."""
    return (
        f"{ratings['pairs']:,} held-out ratings: RMSE {ratings['RMSE']:.4f}, MAE {ratings['MAE']:.4f} (RMSE of the "
        f"mean rating: {ratings['baseline_RMSE']:.4f}, of item and user means: {ratings['means_RMSE']:.4f})"
    )


def _ranking_line(report: Mapping[str, Any]) -> str:
    protocol = next((name for name in SHORT_TITLES if name in report.get("test", {})), None)
    if protocol is None:
        return metrics_table(report)
    model = report["test"][protocol]
    times = WITH_TIMES.get(report.get("times", ""), "")
    return (
        f"test of {counted(model['users'], 'user')}, {SHORT_TITLES[protocol]}{times}: HR@10 {model['HR@10']:.4f}, "
        f"NDCG@10 {model['NDCG@10']:.4f}{_best_baselines(report, protocol)}"
    )


def _best_baselines(report: Mapping[str, Any], protocol: str) -> str:
    """Popularity, and the best of the others where that is better; nothing of the model itself."""
    metrics = {
        one.title: one.metrics[protocol]
        for one in contestants(report)
        if one.kind not in (MODEL, BEST_POSSIBLE) and protocol in one.metrics
    }
    best = max(metrics, key=lambda title: metrics[title]["NDCG@10"], default="")
    named = [title for title in metrics if title in (UNTRAINED[POPULARITY], best)]
    texts = [f"{title}: {metrics[title]['HR@10']:.4f}, {metrics[title]['NDCG@10']:.4f}" for title in named]
    return f" ({'; '.join(texts)})" if texts else ""


def metrics_table(report: Mapping[str, Any], split: str = "test") -> str:
    """The metrics of a split as Markdown tables, one a protocol: the model and, for the test, its contestants.

    These are the baselines before it and, where known, the best possible after it. A line in place of what could not be
    measured.
    """
    if split not in report:
        return NO_TEST
    if split == "test":
        last = {MODEL: 1, BEST_POSSIBLE: 2}
        shown = [(one.title, one.metrics) for one in sorted(contestants(report), key=lambda one: last.get(one.kind, 0))]
    else:
        shown = [(_model(report), report[split])]
    sections = []
    for protocol in PROTOCOL_TITLES:
        rows = [(title, metrics[protocol]) for title, metrics in shown if protocol in metrics]
        if rows:
            sections.append(f"{heading(report, split, protocol)}\n\n{_tables(rows)}")
    left_out = report["dataset"].get("left_out", {}).get(split)
    if left_out and left_out["users"] == left_out["of"]:
        n = report["dataset"]["n_eval_negatives"]
        sections.append(f"No user has {n} unseen items: there is no ranking among sampled items.")
    return "\n\n".join(sections)


def heading(report: Mapping[str, Any], split: str, protocol: str) -> str:
    """What is ranked, and for how many users."""
    dataset, users = report["dataset"], report[split][protocol]["users"]
    n, repeated = dataset.get("n_eval_negatives"), dataset.get("repeated_targets", {}).get(split)
    seen = report.get("seen_items", "leave_out")
    title = PROTOCOL_TITLES[protocol].format(n=n, seen=SEEN[seen])
    if protocol == "full" and seen == "leave_out" and repeated and repeated["users"]:
        title += MISSED.format(repeated=_share(repeated, "targets"))
    left_out = repeated["of"] - users if repeated else 0
    if not left_out:
        return f"{title}; {users} users"
    return f"{title}; {users} of {users + left_out} users (left out: {left_out}, with fewer than {n} unseen items)"


def _share(count: Mapping[str, int] | None, what: str) -> str:
    """`305 of 1500 targets (20.3 %)`; nothing where it is not known, in a report of an older version."""
    if not count:
        return ""
    return f"{count['users']} of {count['of']} {what} ({100 * count['users'] / count['of']:.1f} %)"


def _tables(rows: Sequence[tuple[str, Mapping[str, float]]]) -> str:
    """The metrics of ranks, and those of lists of the contestants that have some."""
    of_ranks = [name for name in rows[0][1] if name != "users" and not is_of_lists(name)]
    of_lists = [name for name in rows[0][1] if is_of_lists(name) and name.endswith(f"@{LISTED_AT}")]
    with_lists = [(title, values) for title, values in rows if of_lists and of_lists[0] in values]
    lists = f"\n\n{LISTS.format(k=LISTED_AT)}\n\n{_table(with_lists, of_lists)}" if with_lists else ""
    return f"{_table(rows, of_ranks)}{lists}"


def _table(rows: Sequence[tuple[str, Mapping[str, float]]], names: Sequence[str]) -> str:
    header = [" " * len("best possible"), *(name.rjust(7) for name in names)]  # so that most tables are as wide
    return markdown_table(header, [[title, *(f"{values[name]:.4f}" for name in names)] for title, values in rows])
