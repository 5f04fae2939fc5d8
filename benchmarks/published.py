"""Kinds of models over several seeds on one dataset, in one table, with the published results on the same file below.

    python -m benchmarks.published MODEL … [--seeds=1,2,3] [--processes=2] [--config=FILE] [--table.key=value …]

MODEL is [NAME=]KIND[:key=value,…], for example bert4rec, or deep=sasrec:n_layers=3,training.n_epochs=60; a key without
a table is one of [model]. `untrained` stands for all kinds that only count. The options are settings of all models. The
dataset is prepared if it is missing. The same command again keeps the finished runs and resumes the others.
"""

import argparse
import itertools
import json
import logging
import re
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

import bert4rec
from bert4rec.checkpoint.run_folder import CHECKPOINTS, CONFIG, ENVIRONMENT, FACTS_FILE, REPORT, found, runs
from bert4rec.config.kinds import KINDS, UNTRAINED
from bert4rec.config.load import load_config, parse_command_line
from bert4rec.config.tables import Config
from bert4rec.dataset.format import LEFT_OUT, METADATA, TEST
from bert4rec.dataset.reader import read_metadata
from bert4rec.evaluation.intervals import mean_interval
from bert4rec.evaluation.metrics import gains
from bert4rec.report.compared_runs import Run, ranked_users, read_run
from bert4rec.report.pages import markdown_table
from bert4rec.report.summary import SHORT_TITLES, heading
from bert4rec.report.tables import known_file, published
from bert4rec.runtime.errors import SettingsError, UserError

METRICS = ["HR@10", "NDCG@10", "MRR"]
NOTE = "In brackets: 95 % intervals over users. ±: the standard deviation over seeds. Minutes: training and validation."
MODEL = re.compile(r"(?:([\w .-]+)=)?(\w+)(?::(.+))?")  # name, kind, settings

Settings: TypeAlias = dict[str, Any]

logger = logging.getLogger("bert4rec.published")

PLAIN = [kind for kind in UNTRAINED if not KINDS[kind].needs_features]  # the log alone is enough for them


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit status: 0, 1 if a run has failed, 2 for bad settings, 130 if stopped."""
    parser = argparse.ArgumentParser("python -m benchmarks.published", description=__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("models", metavar="MODEL", nargs="+")
    parser.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")], help="training.seed")
    parser.add_argument("--processes", metavar="N", type=int, default=1, help="of each run, on this host")
    parser.add_argument("--config", metavar="FILE", help="settings file (default: none)")
    options, words = parser.parse_known_args(argv)
    bert4rec.log_to_terminal()
    try:
        return run(options, words)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print(f"{str(stop) or 'stopped'}\nthe same command continues with all runs", file=sys.stderr)
        return 130


def run(options: argparse.Namespace, words: Sequence[str]) -> int:
    """Train every model with every seed and print the table; the exit status."""
    shared: Settings = dict(parse_command_line(words)[1])
    models = parse_models(options.models)
    config = load_config(options.config, shared)
    # Bad settings of any model are found before the first training.
    default_seeds = {name: load_config(options.config, shared | own).training.seed for name, own in models.items()}
    prepare_if_missing(shared, options.config)
    place = {"run.dir": str(Path(config.run.dir) / f"published-{config.data.folder.name}"), "run.resume": ""}
    finished: dict[str, list[Run]] = {}
    n_failed = 0
    for name, own in models.items():
        for seed in (options.seeds or [default_seeds[name]]) if KINDS[own["model.kind"]].is_trained else [1]:
            run_name = re.sub(r"[^\w.-]+", "-", f"{name}-seed{seed}")
            settings = shared | own | place | {"training.seed": seed, "run.name": run_name}
            try:
                folder = finished_run(settings, options.config, options.processes)
            except (UserError, RuntimeError) as error:
                logger.error(f"{run_name}: {error}")
                n_failed += 1
                continue
            finished.setdefault(name, []).append(read_run(folder))
    if finished:
        print(f"\n{tables(finished)}")
    if n_failed:
        print(f"error: {n_failed} of the runs failed, see above; the same command tries them again", file=sys.stderr)
    return 1 if n_failed else 0


def prepare_if_missing(settings: Settings, file: str | None) -> None:
    """Prepare the dataset of these settings if its folder has none."""
    if not (load_config(file, settings).data.folder / METADATA).is_file():
        bert4rec.prepare(settings, config=file)


def parse_models(words: Sequence[str]) -> dict[str, Settings]:
    """Return the name of each model → its own settings. Raises `SettingsError`."""
    models: dict[str, Settings] = {}
    for word in itertools.chain.from_iterable(PLAIN if word == "untrained" else [word] for word in words):
        match = MODEL.fullmatch(word)
        if match is None:
            raise SettingsError(f"{word}: must be [NAME=]KIND[:key=value,…]")
        name, kind, text = match.groups()
        pairs = re.split(r",(?=[\w.]+=)", text) if text else []
        own = parse_command_line([f"--{'' if '.' in pair.split('=')[0] else 'model.'}{pair}" for pair in pairs])[1]
        settings = {"model.kind": kind, **own}
        if models.setdefault(name or word, settings) != settings:
            raise SettingsError(f"{word}: another model has the name {name or word}; choose another one")
    return models


def finished_run(settings: Settings, file: str | None, n_processes: int) -> Path:
    """Return the folder of the finished run with these settings: an earlier one, or one that is trained now."""
    config = load_config(file, settings)
    earlier = earlier_run(config, n_processes)
    if earlier and (earlier / REPORT).is_file():
        logger.info(f"{earlier}: kept")
        return earlier
    logger.info(f"{config.run.name}: training")
    if earlier:
        return bert4rec.train({"run.resume": earlier}, processes=n_processes).folder
    return bert4rec.train(settings, config=file, processes=n_processes).folder


def earlier_run(config: Config, n_processes: int) -> Path | None:
    """Return the newest run of this name that has the same settings, dataset and number of processes, if any."""
    fingerprint = read_metadata(config.data.folder)["fingerprint"]
    for folder in reversed(runs(Path(config.run.dir), config.run.name)):
        checkpoints = found(folder / CHECKPOINTS)
        try:
            if (folder / REPORT).is_file():
                used_fingerprint = json.loads((folder / REPORT).read_text())["dataset"]["fingerprint"]
            else:
                used_fingerprint = json.loads((checkpoints[-1] / FACTS_FILE).read_text())["fingerprint"]
            world_size = json.loads((folder / ENVIRONMENT).read_text())["world_size"]
            saved = load_config(folder / CONFIG).model_dump(mode="json")
        except (UserError, OSError, ValueError, LookupError):
            continue  # killed before its first checkpoint, or damaged
        wanted = config.model_dump(mode="json", exclude={"data", "run"})
        has_settings = all(
            value in ("auto", saved[table][key]) for table, values in wanted.items() for key, value in values.items()
        )
        if has_settings and (used_fingerprint, world_size) == (fingerprint, n_processes):
            return folder
    return None


def tables(finished: Mapping[str, Sequence[Run]]) -> str:
    """Return a Markdown table for each protocol: a row for each model, then the published results."""
    first = next(iter(finished.values()))[0].report
    known = known_file(first["dataset"]) if first.get("seen_items") != "keep" else None  # papers leave seen items out
    parts = []
    for protocol in SHORT_TITLES:
        if protocol not in first.get(TEST, {}):
            continue
        names = [name for name in METRICS if name in first[TEST][protocol]]
        rows = []
        for model, seed_runs in finished.items():
            minutes = statistics.mean(run.report["training"]["seconds"] / 60 for run in seed_runs)
            rows.append([model, *cells(seed_runs, protocol, names), f"{minutes:.1f}"])
        for row in published(known[0], protocol, n_negatives=first["dataset"]["n_eval_negatives"]) if known else ():
            figures = {"HR@10": f"{row.hit_rate:.4f}", "NDCG@10": f"{row.ndcg:.4f}"}
            label = f"published: {row.model}" + (f" ({row.note})" if row.note else "")
            rows.append([label, *(figures.get(name, "") for name in names), ""])
        parts.append(f"{heading(first, TEST, protocol)}\n\n{markdown_table(['', *names, 'minutes'], rows)}")
    folders = " ".join(str(run.folder) for seed_runs in finished.values() for run in seed_runs)
    return "\n\n".join([*parts, f"{NOTE}\nPaired differences with tests: bert4rec compare {folders}"])


def cells(seed_runs: Sequence[Run], protocol: str, names: Sequence[str]) -> Iterator[str]:
    """Yield each metric as mean ± spread over the seeds, with the interval of the users' mean over the seeds."""
    ranks = [ranked_users(run.folder, run.report, TEST).ranks[protocol] for run in seed_runs]
    ks = sorted({int(name.partition("@")[2]) for name in names if "@" in name})
    by_user = [dict(gains(run_values[run_values != LEFT_OUT], ks)) for run_values in ranks]
    for name in names:
        values = [run.report[TEST][protocol][name] for run in seed_runs]
        spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
        low, high = mean_interval(np.mean([run_values[name] for run_values in by_user], axis=0))
        yield f"{statistics.mean(values):.4f}{spread} ({low:.4f} – {high:.4f})"


if __name__ == "__main__":
    sys.exit(main())
