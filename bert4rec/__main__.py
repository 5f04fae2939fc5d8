"""`python -m bert4rec COMMAND …`: what there is to do before a run, and with one that has ended."""

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert4rec.installation import exit_for_missing, require_python

try:
    require_python()
    from bert4rec.broken_pipe import ending_on_broken_pipe
    from bert4rec.errors import UserError
    from bert4rec.next_command import on_processes
    from bert4rec.plan_command import show_plan
    from bert4rec.run_folder import CONFIG
    from bert4rec.run_settings import options_to_train_longer
    from bert4rec.settings import load_config
except ModuleNotFoundError as error:
    exit_for_missing(error)

USAGE = """usage: python -m bert4rec COMMAND

report [RUN]   the test metrics of a run folder, and what to type next (default: the newest finished run under runs/)
plan …         who would hold what on a cluster that need not be there, and whether it fits (plan --help)
check FOLDER   whether a dataset folder is whole and leaks nothing, proven row by row (check --help)"""

GENERATED = ("synthetic", "random")
WITH_REAL_DATA = """With real data, for instance MovieLens 1M:
  python preprocessing.py --config=configs/ml-1m.toml --download
  torchx run -s local_cwd dist.ddp -j 1x2 --script train.py -- --config=configs/ml-1m.toml
With a CSV or Parquet file of your own:
  python preprocessing.py --data.path=FILE --data.user_column=… --data.item_column=… --data.time_column=…
  torchx run -s local_cwd dist.ddp -j 1x2 --script train.py -- --data.source=table --data.path=FILE"""


def main(argv: Sequence[str]) -> int:
    """The exit status: 0 finished, 1 a plan that does not fit, 2 bad arguments or input."""
    with ending_on_broken_pipe():
        return _run(argv)


def _run(argv: Sequence[str]) -> int:
    if not argv or argv[0] in ("--help", "-h"):
        print(USAGE)
        return 0
    try:
        command, *arguments = argv
        if command == "plan":
            return show_plan(arguments)
        if command == "check":
            from bert4rec.check.command import show_check  # here: it imports Arrow, which the others need not wait for

            return show_check(arguments)
        if command != "report" or len(arguments) > 1:
            raise UserError(f'"{" ".join(argv)}": no such command; python -m bert4rec --help lists them')
        show_report(Path(arguments[0]) if arguments else _newest_run(Path("runs")))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def show_report(folder: Path) -> None:
    """Print the metrics of the finished run in `folder`, where its report stands, and what to type next."""
    try:
        report = json.loads((folder / "report.json").read_text())
    except FileNotFoundError:
        raise UserError(f"{folder}: no finished run (it has no report.json)") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / 'report.json'}: cannot be read: {error}") from None
    from bert4rec.report import metrics_table  # here: it imports torch, which an error need not wait for

    print(f"Test of {folder}\n\n{metrics_table(report)}\n")
    print(f"Report with the learning curve: {folder / 'report.md'}\n\n{_next_steps(folder, report)}")


def _next_steps(folder: Path, report: Mapping[str, Any]) -> str:
    """What to type next, for somebody who has trained on such data."""
    if report["dataset"]["source"] in GENERATED:
        return WITH_REAL_DATA
    dataset = load_config(folder / CONFIG).data.folder
    longer = on_processes(report["world_size"], f"--resume={folder}", *options_to_train_longer(folder))
    again = shlex.join(["python", "preprocessing.py", f"--config={folder / CONFIG}", f"--data.extends={dataset}"])
    return f"""To train it longer:
  {longer}
To show that its dataset leaks nothing:
  {shlex.join(["python", "-m", "bert4rec", "check", str(dataset)])}
With newer interactions, in a FILE that has the old ones too; ids stay, FOLDER is new:
  {again} \\
    --data.dataset_dir=FOLDER --data.path=FILE"""


def _newest_run(parent: Path) -> Path:
    reports = sorted(parent.glob("*/report.json"), key=lambda path: path.stat().st_mtime)
    if not reports:
        raise UserError(f"{parent}/: no finished run here; name its folder: python -m bert4rec report RUN")
    return reports[-1].parent


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
