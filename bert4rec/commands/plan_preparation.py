"""`bert4rec plan --rows=N …`: print what a preparation of some size takes, without an input."""

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from bert4rec.config.load import NO_FILE, load_config, parse_command_line, settings_file, take_positional
from bert4rec.config.tables import Preprocessing
from bert4rec.runtime.errors import SettingsError, format_bytes, format_duration, pluralize
from bert4rec.runtime.startup import usable_cores

if TYPE_CHECKING:
    from bert4rec.prepare.reckon import Log, Stage

OF_TRAINING = ("features", "local_world_size", "memory_gb", "host_memory_gb")  # arguments of a plan of a training


def refuse_without_rows(arguments: argparse.Namespace) -> None:
    """Raise `SettingsError` for an argument of a preparation if no `--rows` are given."""
    for name in ("workers", "id_bytes"):
        if getattr(arguments, name) is not None:
            raise SettingsError(
                f"{_option(name)}: is of the plan of a preparation; add --rows=N, --users=N and --items=N"
            )


def run(arguments: argparse.Namespace) -> int:
    """Print the plan of a preparation; return 0. Raises `SettingsError`."""
    settings, note = _settings(arguments)
    _refuse_sizes(arguments)
    from bert4rec.prepare.reckon import Log, stages_of, testable  # imports Polars

    rows, users, items, text = arguments.rows, arguments.users, arguments.items, arguments.id_bytes or 0
    n_testable = 0 if settings.split == "none" else testable(rows, users)
    is_sampled = settings.test_users != "all" and settings.split != "none"
    n_tested = n_testable if settings.test_users == "all" else min(n_testable, settings.test_users)
    log = Log(rows, users, items, text, n_tested, settings.n_eval_negatives)
    n_workers = usable_cores() if settings.workers == "auto" else settings.workers
    has_limits = settings.min_item_interactions > 1
    stages = stages_of(log, has_limits=has_limits, n_candidates=n_testable if is_sampled else 0)
    print("\n".join([*note, *_lines(log, stages, arguments.workers or n_workers)]))
    return 0


def _settings(arguments: argparse.Namespace) -> tuple[Preprocessing, list[str]]:
    """Return the settings of the preparation, and a note about their file. Raises `SettingsError` for any others."""
    dataset, options = take_positional(arguments.settings)
    _, overrides = parse_command_line(options)
    others = [_option(name) for name in OF_TRAINING if getattr(arguments, name) is not None]
    others += ["--world-size"] * (arguments.world_size != 1) + ["--device"] * (arguments.device != "cpu")
    others += [typed for name, typed in overrides.typed.items() if not name.startswith("preprocessing.")]
    if dataset or others:
        raise SettingsError(
            f"{dataset or others[0]}: the plan of a training has it, and --rows is for the plan of a preparation; "
            "remove one of them"
        )
    file = settings_file(arguments.config)
    return load_config(file, overrides).preprocessing, [NO_FILE] if file is None else []


def _refuse_sizes(arguments: argparse.Namespace) -> None:
    """Raise `SettingsError` if users or items are missing, or are more than rows or than there are ids."""
    from bert4rec.dataset.format import MOST_IDS

    for name in ("users", "items"):
        n = getattr(arguments, name)
        if n is None:
            raise SettingsError(f"--rows={arguments.rows}: the plan of a preparation also needs --{name}=N")
        if n > arguments.rows:
            raise SettingsError(f"--{name}={n}: each has a row, but --rows={arguments.rows}; type fewer {name}")
        if n > MOST_IDS:
            raise SettingsError(f"--{name}={n}: a dataset has at most {MOST_IDS:,} {name}; type fewer {name}")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _lines(log: "Log", stages: "Sequence[Stage]", n_workers: int) -> Iterator[str]:
    """Yield the table of the stages, and what they need."""
    from bert4rec.prepare.reckon import dataset_of, memory_of, seconds_of, seconds_of_program, work_bytes

    ids = f"texts of {log.text} bytes" if log.text else "whole numbers"
    yield (
        f"preparation of {log.rows:,} rows, {log.users:,} users, {log.items:,} items (ids: {ids}) with "
        f"{pluralize(n_workers, 'worker')}, reckoned:"
    )
    yield f"  {'stage':16}{'tasks':>10}{'files':>12}{'read':>12}{'written':>12}{'time':>12}"
    total = 0.0
    for stage in stages:
        total += (seconds := seconds_of(stage, n_workers))
        sizes = f"{format_bytes(stage.read):>12}{format_bytes(stage.written):>12}"
        yield f"  {stage.name:16}{stage.tasks:>10,}{stage.files:>12,}{sizes}{format_duration(seconds):>12}"
    alone = seconds_of_program(log)
    yield f"  {'the program':16}{'':46}{format_duration(alone):>12}"
    n_tasks, n_files = sum(stage.tasks for stage in stages), sum(stage.files for stage in stages)
    sizes = "".join(f"{format_bytes(sum(n)):>12}" for n in zip(*(stage[3:5] for stage in stages), strict=True))
    yield f"  {'all':16}{n_tasks:>10,}{n_files:>12,}{sizes}{format_duration(total + alone):>12}"
    memory = memory_of(log)
    size, mapped, n_dataset = dataset_of(log, stages)
    yield f"memory: {format_bytes(memory.task)} of a task, {format_bytes(memory.program)} of the program, at most"
    work = f"at most {format_bytes(work_bytes(stages))} of files of tasks, with its histories"
    yield f"disk: {format_bytes(size)} of the dataset in {n_dataset:,} files; {work}"
    yield (
        f"training: {format_bytes(memory.training)} in each process to find histories, "
        f"{format_bytes(memory.evaluated)} more to evaluate; {format_bytes(mapped)} of files mapped once for a host"
    )
    yield "  assumed: Parquet, equally frequent users and items, one core (AMD EPYC) for each worker, fast disks"
