"""`bert4rec doctor …`: whether this machine can train what the settings say, a line a check."""

import argparse
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from bert4rec.config.abilities import is_trained
from bert4rec.config.load import USUAL_FILE, load_config, parse_command_line, settings_file
from bert4rec.config.resolve import Facts, resolve, resolve_batch
from bert4rec.config.tables import Config
from bert4rec.doctor.finding import Finding
from bert4rec.runtime.errors import SettingsError, UserError
from bert4rec.runtime.wording import counted

if TYPE_CHECKING:
    from bert4rec.dataset.reader import Dataset

SUMMARY = "whether this machine can train what the settings say: versions, devices, network, disk, dataset, plan"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The processes; any setting besides."""
    parser.usage = "%(prog)s [--processes=N] [--config=FILE] [--table.key=value …]"
    parser.description = (
        "Looks at what a training needs, and at what has mostly gone wrong where one does not start: each check is a "
        "line, good or bad, and a bad one says what to do. Nothing is changed. Exit status 1: something is bad."
    )
    parser.epilog = "--table.key=value: any setting, as `bert4rec train` takes it"
    parser.set_defaults(settings=[])
    add = parser.add_argument
    add("--processes", metavar="N", type=int, default=1, help="processes of the training, on this host (default: 1)")
    add("--config", metavar="FILE", help=f"settings file (default: {USUAL_FILE}, where there is one)")


def run(arguments: argparse.Namespace) -> int:
    """Print what was found, as it is found; the exit status: 0 all is good, 1 something is not."""
    if arguments.processes < 1:
        raise SettingsError(f"--processes={arguments.processes}: must be at least 1")
    config = load_config(settings_file(arguments.config), parse_command_line(arguments.settings)[1])
    warnings.simplefilter("ignore")
    logging.getLogger("torchrec").setLevel(logging.ERROR)
    n_bad = 0
    for finding in _findings(config, arguments.processes):
        print(finding, flush=True)
        n_bad += not finding.is_good
    print("all is good" if not n_bad else f"{counted(n_bad, 'thing')} to mend, above")
    return 1 if n_bad else 0


def _findings(config: Config, n_processes: int) -> Iterator[Finding]:
    from bert4rec.doctor.installation import installation

    finding = None
    for finding in installation():
        yield finding
    if finding and not finding.is_good:
        return  # the last one: what follows needs torch and fbgemm
    from bert4rec.doctor.exchange import exchange
    from bert4rec.doctor.host import host

    yield from host(Path(config.run.dir), n_processes)
    yield from exchange()
    try:
        dataset = _dataset(config)
    except UserError as error:
        problem, _, advice = str(error).partition("; ")
        yield Finding("dataset", problem, advice or "`bert4rec prepare` with the same settings makes one")
        return
    n_windows = len(dataset.splits["train"])
    counts = ((dataset.sizes.users, "user"), (dataset.n_items, "item"), (n_windows, "training window"))
    yield Finding("dataset", f"{dataset.folder}: {', '.join(counted(n, what) for n, what in counts)}")
    if is_trained(config.model.kind):
        from bert4rec.training.build import facts_of_dataset

        facts = facts_of_dataset(dataset)
        yield _batches(config, dataset, facts, n_processes)
        yield _plan(config, dataset, facts, n_processes)


def _dataset(config: Config) -> "Dataset":
    from bert4rec.dataset.reader import open_dataset

    return open_dataset(
        config.data.folder, max_len=config.model.max_len, preprocessing=config.preprocessing.recipe,
        with_times=config.model.knows_times,
    )  # fmt: skip


def _batches(config: Config, dataset: "Dataset", facts: Facts, n_processes: int) -> Finding:
    """What a step sees, and how many there are."""
    from bert4rec.models.kinds import KINDS
    from bert4rec.sharding.advice import few_steps
    from bert4rec.training.build import training_examples

    config = resolve_batch(config, facts, n_processes)
    per_device, unit = config.training.per_device, KINDS[config.model.kind].unit
    n_examples = len(training_examples(config, dataset.splits["train"], n_items=dataset.n_items))
    n_steps = -(-n_examples // (per_device * n_processes))
    text = (
        f"{per_device:,} a process x {counted(n_processes, 'process')} = {per_device * n_processes:,} a step; an epoch "
        f"has {counted(n_steps, 'step')}"
    )
    few = few_steps(n_examples, per_device, n_processes, unit=unit)
    return Finding("batches", text, few.partition("; ")[2])


def _plan(config: Config, dataset: "Dataset", facts: Facts, n_processes: int) -> Finding:
    """Who will hold what, and whether it fits."""
    from bert4rec.runtime.memory import available
    from bert4rec.runtime.processes import choose_device
    from bert4rec.sharding.advice import refuse_unless_it_fits
    from bert4rec.sharding.plan import headline, make_plan
    from bert4rec.training.build import job

    try:
        device = choose_device(config.parallelism.device, local_rank=0, local_world_size=n_processes)
        to_do = job(
            resolve(config, device.type, facts, n_processes), dataset.sizes, device_type=device.type,
            world_size=n_processes, local_world_size=n_processes,
        )  # fmt: skip
        plan = make_plan(to_do, available(device, n_processes))
        refuse_unless_it_fits(plan, min_len=config.shortest_window)
    except SettingsError as refusal:
        problem, _, advice = str(refusal).rpartition("; ")
        return Finding("plan", problem, advice)
    return Finding("plan", headline(plan).removeprefix("plan: "))
