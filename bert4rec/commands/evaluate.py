"""`bert4rec evaluate RUN …`: evaluate a trained model again, and write the ranks of all users."""

import argparse
import shlex
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from bert4rec.checkpoint.models_folder import models_folder_of
from bert4rec.checkpoint.run_folder import CONFIG, Trained, find_trained
from bert4rec.checkpoint.run_settings import WITHOUT_STATE
from bert4rec.commands import launched
from bert4rec.config.load import Overrides, flat, load_config, parse_command_line, take_positional
from bert4rec.config.tables import Config
from bert4rec.dataset.format import fingerprint_of
from bert4rec.report.figures import TRAINED_TARGETS
from bert4rec.report.pages import metrics_table
from bert4rec.report.summary import ratings_line, rules, trained_targets, unknown_items
from bert4rec.runtime.console import log_to_terminal
from bert4rec.runtime.errors import DataError, SettingsError
from bert4rec.runtime.startup import importing

FREE = (
    "evaluation.*", "data.parts_by_host", "parallelism.mode", "parallelism.device", "parallelism.sharding_type",
    "parallelism.compute_kernel", "training.precision", "training.compile", "model.prior",
)  # fmt: skip
OUTPUT = "evaluation"
LIST_FORMS = ("csv", "jsonl", "parquet")
TARGETS = ("last", "random", "successive")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the model and the folder of the results; some settings are options, too."""
    parser.usage = "%(prog)s RUN [DATASET] [--output=FOLDER] [--lists[=FORM]] [--targets=WHICH] [--table.key=value …]"
    parser.description = (
        "Evaluates the best weights of a run, a checkpoint, or a model package, on any number of processes. Without "
        "DATASET, it uses the dataset of the run and gets exactly the figures of the run's report. With DATASET, items "
        "are matched by their own ids; an item that the model does not know is left out of histories and candidates, "
        "and counts as missed if it is the target. Writes report.json, and ranks-test.parquet and "
        "ranks-validation.parquet with one row per user (with --targets=successive, one per target). Several "
        "processes: torchrun --standalone --nproc_per_node=2 -m bert4rec evaluate RUN"
    )
    parser.epilog = (
        f"--table.key=value: as `bert4rec train` takes it, over the settings of the run: {', '.join(FREE)} (only "
        "none: the model without its prior)"
    )
    parser.set_defaults(settings=[])
    model = "run folder (its best weights), a checkpoint, a models folder (its champion), or a model package"
    parser.add_argument("model", metavar="RUN", type=Path, help=model)
    output = f"folder of the results (default: {OUTPUT} in the run or models folder); -2, -3, … if it exists"
    parser.add_argument(
        "--lists", metavar="FORM", nargs="?", const=LIST_FORMS[0], type=_list_form, help="also write the "
        f"ten best items and the actual item of each test user, as {', '.join(LIST_FORMS)} (without FORM: csv)",
    )  # fmt: skip
    chosen = (
        "of a dataset that is split by time, predict these interactions from split_at on instead of each user's first: "
        "the last or a random one of each user, or all, each with what comes before it"
    )
    parser.add_argument("--targets", choices=TARGETS, default="", help=chosen)
    parser.add_argument("-o", "--output", metavar="FOLDER", type=Path, help=output)


def _list_form(text: str) -> str:
    if text not in LIST_FORMS:
        raise SettingsError(
            f"--lists {text}: must be one of {', '.join(LIST_FORMS)}; write a dataset before it: RUN DATASET --lists"
        )
    return text


def run(arguments: argparse.Namespace) -> int:
    """Evaluate and print the metrics; return the exit status of `launched.run`."""

    def find() -> tuple[Trained, Config]:
        log_to_terminal(is_shown=launched.is_rank_zero(), stream="stderr")
        trained = find_trained(arguments.model)
        return trained, settings_of(trained, arguments.settings)

    return launched.run(find, lambda found: _evaluate(arguments, *found), resumes=False)


def _evaluate(arguments: argparse.Namespace, trained: Trained, config: Config) -> None:
    with importing():
        from bert4rec.training.evaluate import evaluate  # imports torch, after the libraries are quiet

    run = trained.run or Path()
    output = arguments.output or (models_folder_of(run) or run) / OUTPUT  # a version never changes
    evaluation = evaluate(config, trained, output, lists=arguments.lists or "", targets=arguments.targets)
    report = evaluation.report
    if launched.is_rank_zero():
        if "ratings" in report:
            print(f"{ratings_line(report['ratings'])}\n")
        for split in ("test", "validation"):
            if split in report:
                n_trained = (report["evaluation"].get(TRAINED_TARGETS) or {}).get(split, {}).get("users")
                note = f" ({n_trained:,} of its targets were trained on)" if n_trained else ""
                print(f"{split.capitalize()} of {arguments.model}{note}\n\n{metrics_table(report, split)}\n")
        for text in filter(None, (trained_targets(report), unknown_items(report))):
            print(f"{text}\n")
        lists = ", the lists of all test users" if arguments.lists else ""
        print(f"{rules(report)}\n\nReport, the ranks of all users{lists}: {evaluation.folder}")


def settings_of(trained: Trained, argv: Sequence[str]) -> Config:
    """Return the settings of the model's run, or of its checkpoint, overridden by the command line.

    Raises `SettingsError` for a setting that an evaluation cannot change.
    """
    dataset, options = take_positional(argv)
    file, overrides = parse_command_line(options)
    if file is not None:
        raise SettingsError("--config: an evaluation has the run's settings; override them by --table.key=value")
    for name in overrides:
        if not any(fnmatch(name, free) for free in FREE):
            raise SettingsError(f"{overrides.typed[name]}: cannot change in an evaluation; only: {', '.join(FREE)}")
    if overrides.get("model.prior", "none") != "none":
        typed = overrides.typed["model.prior"]
        raise SettingsError(f"{typed}: an evaluation can only leave the prior out; type --model.prior=none")
    if trained.is_package and not dataset:
        raise SettingsError(f"{trained.folder}: a model package does not name its dataset; name one after it")
    if not dataset:
        _refuse_another_dataset(trained)
    overrides["data.dataset_dir"] = dataset or str(trained.dataset)
    run_config = trained.run and trained.run / CONFIG  # has the settings of the last training; the weights may be older
    saved = trained.settings if run_config is None else flat({"model": trained.model})
    return load_config(run_config, Overrides(saved | overrides | WITHOUT_STATE, overrides.typed))


def _refuse_another_dataset(trained: Trained) -> None:
    """Raise `DataError` if the dataset at the place that the run names is not the one that it was trained on."""
    folder, run = trained.dataset, trained.run or trained.folder
    if fingerprint_of(folder) not in ("", trained.metadata["fingerprint"]):
        command = shlex.join(["bert4rec", "evaluate", str(run), str(folder)])
        raise DataError(
            f"{folder}: is not the dataset that {run} was trained on; name that dataset after the run, or measure "
            f"the run on this one: {command}"
        )
