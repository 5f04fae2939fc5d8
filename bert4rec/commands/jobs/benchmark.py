"""`bert4rec benchmark CONTESTANT …`: kinds of models on both splits, over several seeds, in one table."""

import argparse
import json
import logging
import shlex
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bert4rec.commands.jobs.contest import ALL_UNTRAINED, KINDS, SPLITS, Contest, Job, chosen_splits, make_contest
from bert4rec.commands.jobs.earlier_runs import earlier_run, is_finished
from bert4rec.config.load import NO_FILE, USUAL_FILE, parse_command_line
from bert4rec.launch.child import StoppedError, run_child
from bert4rec.report.figures import read_report
from bert4rec.runtime.console import log_to_terminal, quiet_libraries
from bert4rec.runtime.errors import DataError, SettingsError
from bert4rec.runtime.files import write_whole
from bert4rec.runtime.wording import clock, counted

if TYPE_CHECKING:
    from bert4rec.report.compare.standings import Result

SUMMARY = "kinds of models on both splits, over several seeds, in one table"

HIDDEN = ("next: ", NO_FILE)  # what `prepare` and `train` say to whoever has typed them
PAGE, DATA, COMPARISON = "benchmark.md", "benchmark.json", "compare-{split}.html"

logger = logging.getLogger("bert4rec")


class Asked(NamedTuple):
    """What was typed."""

    contest: Contest
    splits: Sequence[str]
    has_named_splits: bool
    n_processes: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Who takes part, on which splits, with which seeds; any setting besides."""
    parser.usage = (
        "%(prog)s CONTESTANT … [--splits=NAME,NAME] [--seeds=N,N,…] [--processes=N] [--config=FILE] [--output=FOLDER] "
        "[--table.key=value …]"
    )
    parser.description = (
        "Trains and tests every contestant on every split with every seed, each by a `bert4rec train` of its own, and "
        "prints one table of all. Datasets that are missing are prepared; that of the split by time has -time behind "
        "the name of the other. The same command again goes on where it was stopped: finished runs with the same "
        "settings and dataset are kept."
    )
    parser.epilog = "--table.key=value: any setting, as `bert4rec train` takes it, for all contestants"
    parser.set_defaults(settings=[])
    add = parser.add_argument
    who = (
        f"a kind of model ({', '.join(KINDS)}), perhaps with settings of its own and a name "
        f"(deep=sasrec:n_layers=3,training.n_epochs=60); a settings file; or {ALL_UNTRAINED}: all that need no training"
    )
    add("contestants", metavar="CONTESTANT", nargs="+", help=who)
    add("--splits", metavar="NAME,NAME", help=f"{','.join(SPLITS)} (default: both, where the data have times)")
    add("--seeds", metavar="N,N,…", help="training.seed of the runs of each contestant (default: that of the settings)")
    add("--processes", metavar="N", type=int, default=1, help="processes of each run, on this host (default: 1)")
    add("--config", metavar="FILE", help=f"settings file for the kinds (default: {USUAL_FILE}, where there is one)")
    add("--output", metavar="FOLDER", type=Path, help="runs and tables (default: benchmark-<dataset> in run.dir)")


def run(arguments: argparse.Namespace) -> int:
    """Run what is missing, and print the table; the exit status: 0, 1 some have failed, 130, 143 or 129 after a signal.

    Raises `UserError` for what is wrong before the first run.
    """
    log_to_terminal(outlives_reader=True)
    more = [word for word in arguments.settings if not word.startswith("--")]  # contestants behind the options
    arguments.contestants += more
    settings = [word for word in arguments.settings if word not in more]
    again = f"continue with: {_command(arguments, settings)}"
    results: list[Result] = []  # what they are imports Arrow, for which no help should wait
    try:
        asked = _asked(arguments, settings)
        jobs = _prepared(asked)
        failed = _run_all(asked, jobs, results, again)
    except (KeyboardInterrupt, StoppedError) as stop:
        number = stop.number if isinstance(stop, StoppedError) else signal.SIGINT
        done = f"{counted(len(results), 'run')} finished"
        print(f"stopped by {signal.Signals(number).name}: {done}; {again}", file=sys.stderr, flush=True)
        return 128 + number
    if results:
        _report(asked.contest.output, results)
    if failed:
        names = "; ".join(map(str, failed))
        problem = f"{len(failed)} of {counted(len(jobs), 'run')} failed, see above: {names}; {again}"
        print(f"error: {problem}", file=sys.stderr, flush=True)
    return 1 if failed else 0


def _asked(arguments: argparse.Namespace, settings: Sequence[str]) -> Asked:
    if arguments.processes < 1:
        raise SettingsError(f"--processes={arguments.processes}: must be at least 1")
    overrides = parse_command_line(settings)[1]
    contest = make_contest(
        arguments.contestants, arguments.config, overrides, seeds=arguments.seeds, output=arguments.output
    )
    splits, is_named = chosen_splits(arguments.splits), arguments.splits is not None
    return Asked(contest, splits, is_named, arguments.processes)


def _command(arguments: argparse.Namespace, settings: Sequence[str]) -> str:
    """What was typed, in one order."""
    names = ("splits", "seeds", "processes", "config", "output")
    given = {name: getattr(arguments, name) for name in names}
    options = [f"--{name}={value}" for name, value in given.items() if value not in (None, 1)]
    return shlex.join([*arguments.prog.split(), *arguments.contestants, *options, *settings])


def _prepared(asked: Asked) -> list[Job]:
    """The trainings, whose datasets are there now. Raises `UserError` for a dataset of other settings."""
    from bert4rec.dataset.reader import open_dataset  # imports Arrow

    jobs: list[Job] = []
    for split in asked.splits:
        of_split = list(asked.contest.jobs(split))
        first = of_split[0]
        folder = first.config.data.folder
        if not (folder / "metadata.json").is_file():
            logger.info(f"preparing {folder}")
            if run_child(["prepare", *first.settings], hidden=HIDDEN):
                raise DataError(f"{folder}: could not be prepared, see above")
        config = first.config
        dataset = open_dataset(
            folder, max_len=config.model.max_len, preprocessing=config.preprocessing.recipe, verify=False
        )
        jobs += of_split
        if not asked.has_named_splits and not dataset.splits["train"].has_times:
            logger.info(f"{folder}: has no times, and no split by time: {split} alone")
            break
    return jobs


def _run_all(asked: Asked, jobs: Sequence[Job], results: "list[Result]", again: str) -> list[Job]:
    """Run the trainings that are missing, one after another; those that failed. `results` gets what is finished."""
    from bert4rec.dataset.reader import read_metadata  # imports Arrow
    from bert4rec.report.compare.standings import Result

    failed: list[Job] = []
    seconds: dict[str, list[float]] = defaultdict(list)  # of finished runs, by contestant
    for number, job in enumerate(jobs, 1):
        fingerprint = read_metadata(job.config.data.folder)["fingerprint"]
        earlier = earlier_run(job.config, fingerprint=fingerprint, n_processes=asked.n_processes)
        if earlier and is_finished(earlier):
            logger.info(f"run {number} of {len(jobs)}: {job}: kept, {earlier}")
        else:
            logger.info(f"run {number} of {len(jobs)}: {job}{_left(jobs[number - 1 :], seconds)}")
            words = [f"--resume={earlier}"] if earlier else job.settings
            began = time.monotonic()
            status = run_child(["train", *words], n_processes=asked.n_processes, hidden=HIDDEN)
            earlier = earlier_run(job.config, fingerprint=fingerprint, n_processes=asked.n_processes)
            if status or earlier is None or not is_finished(earlier):
                failed.append(job)
                continue
            seconds[job.contestant].append(time.monotonic() - began)
        try:
            report = read_report(earlier)
        except DataError as error:
            raise DataError(f"{error}; move the folder away to make the run again") from None
        if not seconds[job.contestant]:
            seconds[job.contestant].append(report["training"]["seconds"])
        results.append(Result(job.contestant, job.split, job.seed, earlier, report))
    return failed


def _left(jobs: Sequence[Job], seconds: dict[str, list[float]]) -> str:
    """How long `jobs` may take, by their contestants' finished runs or their limits; "" where that is not known."""
    total = 0.0
    for job in jobs:
        limit = 60 * job.config.training.max_minutes
        known = seconds[job.contestant]
        if not known and not limit:
            return ""
        total += sum(known) / len(known) if known else limit
    return f"  about {clock(total)} left"


def _report(output: Path, results: "Sequence[Result]") -> None:
    """Show the tables, and write them beside the runs."""
    from bert4rec.report.compare.standings import standings_data, standings_page

    page = standings_page(results)
    logger.info(f"\n{page}")
    write_whole(output / PAGE, page)
    write_whole(output / DATA, json.dumps(standings_data(results), indent=2) + "\n")
    logger.info(f"these tables: {output / PAGE}; every figure: {output / DATA}")
    for split in dict.fromkeys(result.split for result in results):
        folders = [result.folder for result in results if result.split == split]
        if len(folders) > 1:
            logger.info(f"differences with intervals and tests, {split}: {_compared(output, split, folders)}")


def _compared(output: Path, split: str, folders: Sequence[Path]) -> Path:
    """The page of `bert4rec compare` for the runs on a split."""
    with quiet_libraries():
        from bert4rec.report.compare.comparison import compare, html_page
        from bert4rec.report.compare.runs import read_run

        page = output / COMPARISON.format(split=split)
        write_whole(page, html_page(compare([read_run(folder) for folder in folders])))
    return page
