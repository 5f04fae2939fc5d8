"""`bert4rec report [RUN]`: print the figures of a finished run, the verdict, and the next commands."""

import argparse
import shlex
import webbrowser
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert4rec.checkpoint.models_folder import models_folder_of, run_at
from bert4rec.checkpoint.run_folder import CONFIG, HTML_PAGE, REPORT, find_trained
from bert4rec.checkpoint.run_settings import on_processes, options_to_train_longer
from bert4rec.config.load import load_config
from bert4rec.config.sources import GENERATED
from bert4rec.config.tables import Config
from bert4rec.report.figures import kind_of, read_report
from bert4rec.report.pages import metrics_table
from bert4rec.report.summary import advice, rules, verdict
from bert4rec.runtime.errors import UserError

RECOMMEND = """Recommendations for all its users, or for a history of items (--items=ID,ID):
  bert4rec recommend {run} --all --output=recommendations.parquet
"""
OTHER_VERSIONS = """Its versions, and the way back to the one before:
  bert4rec models list {models}
  bert4rec models rollback {models}"""
WITHOUT_DATASET = """The dataset of this run is not at {dataset} now. If you have it in a FOLDER:
  bert4rec recommend {run} --all --dataset=FOLDER --output=recommendations.parquet
  bert4rec evaluate {run} FOLDER
For a history of items, no dataset is needed:
  bert4rec recommend {run} --items=ID,ID"""
WITH_REAL_DATA = """With real data, for instance MovieLens 1M:
  bert4rec prepare {settings} --download
  bert4rec train {settings}
With a CSV or Parquet file of your own:
  bert4rec prepare log.csv
  bert4rec train data/log"""
ML_1M = Path("configs/ml-1m.toml")  # exists in a checkout of the project


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the run folder, `--all` and `--open`."""
    parser.description = (
        f"Prints the test metrics of a finished run, the verdict, and what to type next. {HTML_PAGE} in its folder "
        "shows all figures; it is written again if it is missing or older than them."
    )
    folder = "run folder (default: the newest finished run under runs/)"
    parser.add_argument("folder", metavar="RUN", nargs="?", type=Path, help=folder)
    all_help = "print all tables: the other protocols, and the metrics of lists; and what was held out"
    parser.add_argument("--all", action="store_true", help=all_help)
    parser.add_argument("--open", action="store_true", help=f"show {HTML_PAGE} in the web browser")


def run(arguments: argparse.Namespace) -> int:
    """Print the metrics of a finished run and the next commands; return 0."""
    folder = run_at(arguments.folder or _newest_run(Path("runs")))
    report = read_report(folder)
    print(f"Test of {folder}\n\n{metrics_table(report, n_tables=None if arguments.all else 1)}\n")
    if "test" in report:
        if arguments.all:
            print(f"{rules(report)}\n")
        print(f"{verdict(report).text}\n")
        for warning in report.get("warnings", []):
            print(f"warning: {warning['text']}\n")
    page = _page(folder)
    more = "" if arguments.all else f"All tables: {shlex.join(['bert4rec', 'report', str(folder), '--all'])}\n"
    print(f"{more}Report with pictures and examples: {page}\n\n{_next_steps(folder, report)}")
    if arguments.open and not webbrowser.open(page.absolute().as_uri()):
        raise UserError(f"{page}: no web browser found here; open this file with one")
    return 0


def _page(folder: Path) -> Path:
    """Return the page of the run; write it if it is missing or older than its figures. Raises `UserError`."""
    page, shown = folder / HTML_PAGE, [folder / REPORT, *folder.glob(f"*/{REPORT}")]
    if page.exists() and page.stat().st_mtime >= max(path.stat().st_mtime for path in shown):
        return page
    from bert4rec.report.pages import write_html

    try:
        return write_html(folder, Config().model_dump(mode="json"))
    except OSError as error:
        raise UserError(
            f"{error.filename or page}: cannot be written: {error.strerror}; copy the run folder to a writable folder"
        ) from None
    except (ValueError, KeyError) as error:
        raise UserError(f"{folder}: its files cannot be read: {error}") from None


def _next_steps(folder: Path, report: Mapping[str, Any]) -> str:
    """Return the next commands, for a version, for a kind that is not trained, and for real or generated data."""
    if models := models_folder_of(folder):
        return RECOMMEND.format(run=shlex.quote(str(models))) + OTHER_VERSIONS.format(models=shlex.quote(str(models)))
    recommend = RECOMMEND.format(run=shlex.quote(str(folder)))
    if not kind_of(report).is_trained:
        options = [f"--config={folder / CONFIG}", "--model.kind=bert4rec"]
        return f"{recommend}A trained model on the same dataset:\n  {on_processes(report['world_size'], *options)}"
    if report["dataset"]["source"] in GENERATED:
        return recommend + WITH_REAL_DATA.format(
            settings=f"--config={ML_1M}" if ML_1M.exists() else "--data.source=ml-1m"
        )
    dataset = load_config(folder / CONFIG).data.place
    from bert4rec.dataset.runs import CATALOGUE  # imports Arrow, which would slow down --help

    if (folder / CATALOGUE).exists() and not find_trained(folder).has_dataset:
        return WITHOUT_DATASET.format(dataset=dataset, run=shlex.quote(str(folder)))
    command = on_processes(report["world_size"], f"--resume={folder}", *options_to_train_longer(folder))
    longer = f"To train it longer:\n  {command}\n" if advice(report) == "longer" else ""
    again = shlex.join(["bert4rec", "prepare", f"--config={folder / CONFIG}", f"--data.extends={dataset}"])
    return f"""{recommend}{longer}To check its dataset:
  {shlex.join(["bert4rec", "check", dataset])}
With newer interactions, in a FILE that has the old ones too; ids stay, FOLDER is new:
  {again} \\
    --data.dataset_dir=FOLDER --data.path=FILE"""


def _newest_run(parent: Path) -> Path:
    reports = sorted(parent.glob(f"*/{REPORT}"), key=lambda path: path.stat().st_mtime)
    if not reports:
        raise UserError(f"{parent}/: no finished run here; name its folder: bert4rec report RUN")
    return reports[-1].parent
