"""`bert4rec report [RUN]`: the metrics of a finished run, and what to type next."""

import argparse
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert4rec.checkpoint.next_command import on_processes
from bert4rec.checkpoint.run_folder import CONFIG, PAGE, REPORT
from bert4rec.checkpoint.run_settings import options_to_train_longer
from bert4rec.config.abilities import is_trained
from bert4rec.config.load import load_config
from bert4rec.config.tables import GENERATED
from bert4rec.report.page import metrics_table, rules
from bert4rec.runtime.errors import UserError

SUMMARY = "the test metrics of a run folder, and what to type next"
RECOMMEND = """Recommendations for all its users, or for a history of items (--items=ID,ID):
  bert4rec recommend {run} --all --output=recommendations.parquet
"""
WITH_REAL_DATA = """With real data, for instance MovieLens 1M:
  bert4rec prepare {settings} --download
  bert4rec train {settings}
With a CSV or Parquet file of your own:
  bert4rec prepare --data.path=FILE --data.user_column=… --data.item_column=… --data.time_column=…
  bert4rec train --data.source=table --data.path=FILE"""
ML_1M = Path("configs/ml-1m.toml")  # where it is run from a copy of the project


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The run folder, if it is not the newest."""
    parser.description = "Prints the test metrics of a finished run, and what to type next."
    parser.add_argument(
        "folder", metavar="RUN", nargs="?", type=Path, help="run folder (default: the newest finished run under runs/)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the metrics of a finished run, and what to type next; status 0."""
    folder = arguments.folder or _newest_run(Path("runs"))
    try:
        report = json.loads((folder / REPORT).read_text())
    except FileNotFoundError:
        raise UserError(f"{folder}: no finished run (it has no {REPORT})") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / REPORT}: cannot be read: {error}") from None
    print(f"Test of {folder}\n\n{metrics_table(report)}\n")
    if "test" in report:
        print(f"{rules(report)}\n")
    was_trained = is_trained(report.get("kind", "bert4rec"))
    title = "Report with the learning curve" if was_trained else "Report"
    print(f"{title}: {folder / PAGE}\n\n{_next_steps(folder, report) if was_trained else _trained_one(folder, report)}")
    return 0


def _trained_one(folder: Path, report: Mapping[str, Any]) -> str:
    """What to type after a run of a kind that is not trained."""
    options = [f"--config={folder / CONFIG}", "--model.kind=bert4rec"]
    return f"A trained model on the same dataset:\n  {on_processes(report['world_size'], *options)}"


def _next_steps(folder: Path, report: Mapping[str, Any]) -> str:
    """What to type next, for somebody who has trained on such data."""
    recommend = RECOMMEND.format(run=shlex.quote(str(folder)))
    if report["dataset"]["source"] in GENERATED:
        return recommend + WITH_REAL_DATA.format(
            settings=f"--config={ML_1M}" if ML_1M.exists() else "--data.source=ml-1m"
        )
    dataset = load_config(folder / CONFIG).data.folder
    longer = on_processes(report["world_size"], f"--resume={folder}", *options_to_train_longer(folder))
    again = shlex.join(["bert4rec", "prepare", f"--config={folder / CONFIG}", f"--data.extends={dataset}"])
    return f"""{recommend}To train it longer:
  {longer}
To show that its dataset leaks nothing:
  {shlex.join(["bert4rec", "check", str(dataset)])}
With newer interactions, in a FILE that has the old ones too; ids stay, FOLDER is new:
  {again} \\
    --data.dataset_dir=FOLDER --data.path=FILE"""


def _newest_run(parent: Path) -> Path:
    reports = sorted(parent.glob(f"*/{REPORT}"), key=lambda path: path.stat().st_mtime)
    if not reports:
        raise UserError(f"{parent}/: no finished run here; name its folder: bert4rec report RUN")
    return reports[-1].parent
