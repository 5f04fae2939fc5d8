"""Load the settings of a training: a new run has those of the file and command line, a resumed run those of its folder.

This happens before torch is imported and before the ranks connect; each rank reads the same disk.
"""

import json
import math
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli

from bert4rec.checkpoint.run_folder import CHECKPOINTS, CONFIG, REPORT, found, named_run, newest_run
from bert4rec.config.help import shown
from bert4rec.config.load import NO_FILE, Overrides, flat, is_of_dataset, load_config, settings_file
from bert4rec.config.recognition import datasets_in, what_is
from bert4rec.config.stored import dataset_folder
from bert4rec.config.tables import Config, Data, Preprocessing, expand_user
from bert4rec.runtime.errors import DataError, SettingsError, pluralize

PROGRAM = ["-m", "bert4rec"]
COMMAND = "train"
MOST_UNUSED = 3  # number of settings to list in a note
WITHOUT_STATE = {
    "parallelism.sparse_optimizer": "sgd",
    "training.optimizer": "sgd",
}  # nothing is updated


def train_command(*options: str) -> str:
    """Return the command of a training with `options`, with the launcher and number of processes of this process."""
    return " ".join([*_launcher(), *map(shlex.quote, options)])


def on_processes(world_size: int, *options: str) -> str:
    """Return the command of a training with `options` on `world_size` processes of this host."""
    if world_size == 1:
        return shlex.join(["bert4rec", COMMAND, *options])
    return shlex.join(["torchrun", "--standalone", f"--nproc_per_node={world_size}", *PROGRAM, COMMAND, *options])


def how_to_continue(run: Path | None = None) -> str:
    """Return the advice for a `run` that ended early; None if its folder is not known."""
    if run is None:
        return "continue with: the same command and --resume=auto"
    if found(run / CHECKPOINTS):
        return f"continue with: {train_command(f'--resume={run}')}"
    return f"start again with: {train_command(f'--config={run / CONFIG}')}"


def _launcher() -> list[str]:
    """Return the words before the options."""
    n_hosts, n_processes = (os.environ.get(name, "1") for name in ("GROUP_WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    if job := os.environ.get("TORCHX_JOB_ID"):
        scheduler = job.partition("://")[0]
        # torchx passes what follows its "--" to the module.
        return ["torchx", "run", "-s", scheduler, "dist.ddp", "-j", f"{n_hosts}x{n_processes}", *PROGRAM, "--", COMMAND]
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return ["bert4rec", COMMAND]
    if n_hosts == "1":
        return ["torchrun", "--standalone", f"--nproc_per_node={n_processes}", *PROGRAM, COMMAND]
    # The address of the rendezvous is unknown.
    nodes = [f"--nnodes={n_hosts}", f"--nproc_per_node={n_processes}", "…"]
    return ["(on every host)", "torchrun", *nodes, *PROGRAM, COMMAND]


@dataclass(frozen=True)
class RunSettings:
    """The settings of a training, and `notes` for people, a line each.

    `finished` is the run to resume if it has nothing left to do; the last note says so.
    """

    config: Config
    notes: list[str] = field(default_factory=list)
    finished: Path | None = None


def load_run_settings(file: str | None, overrides: Overrides, *, dataset: str = "", looks_around: bool) -> RunSettings:
    """Return the settings of a training from the settings `file`, if any, and `overrides`.

    A new run has the settings of the file, a resumed run those of its last training; the overrides replace either. A
    `dataset` folder replaces the settings of the data. If `file` is None, `looks_around` uses the default file; "" is
    no file. Raises `SettingsError`, and `DataError` for a folder that is no dataset.
    """
    notes = list[str]()
    if file == "":
        file, looks_around = None, False
    if not dataset and looks_around and overrides.get("run.resume", "auto") in ("", "auto"):
        dataset, notes = only_dataset(settings_file(file), overrides)
    overrides = with_dataset(dataset, overrides)
    if overrides.get("run.resume", "auto") not in ("", "auto") and file is None:
        usual = load_config(None, {"run.resume": overrides["run.resume"]})  # the settings file has no effect
    else:
        if looks_around and (file := settings_file(file)) is None:
            notes = [NO_FILE, *notes]
        usual = load_config(file, overrides)
    if usual.run.resume == "auto":
        run = newest_run(Path(usual.run.dir), usual.run_name, is_finished=False)
        place = {"run.dir": usual.run.dir, "run.name": usual.run_name}  # the same on every host
        return RunSettings(usual, notes) if run is None else _resumed(run, None, overrides, place, file)
    if not usual.run.resume:
        return RunSettings(usual, notes)
    return _resumed(*named_run(usual.run.resume), overrides, {"run.resume": usual.run.resume}, file)


def only_dataset(file: str | None, overrides: Overrides, *, command: str = COMMAND) -> tuple[str, list[str]]:
    """Return the only dataset beside the usual one, and a note, if no setting names a dataset and the usual is missing.

    Returns "" and no note in any other case. Raises `DataError`, with the `command` for one of them, if there are
    several datasets to choose from.
    """
    place = load_config(file, overrides).data.place
    folder = Path(place)
    is_named = place != Data().place or any(name.startswith("data.") for name in overrides)
    if is_named or folder.exists() or not (names := datasets_in(folder.parent)):
        return "", []
    paths = [str(folder.parent / name) for name in names]
    if len(paths) > 1:
        raise DataError(f"which dataset? there are {', '.join(paths)}; type: bert4rec {command} {paths[0]}")
    return paths[0], [f"dataset: {paths[0]}, the only one in {folder.parent}"]


def with_dataset(place: str, overrides: Overrides) -> Overrides:
    """Return `overrides` plus the settings of [data] and [preprocessing] that the dataset at `place` was made with.

    Without a `place`, returns `overrides`.
    """
    if not place:
        return overrides
    from bert4rec.dataset.format import METADATA  # imports Arrow
    from bert4rec.dataset.reader import read_metadata

    folder = dataset_folder(place)
    if not (folder / METADATA).is_file():
        raise DataError(f"{folder}: expected a dataset; {what_is(folder)}")
    for name in overrides:
        if is_of_dataset(name):
            raise SettingsError(
                f"{overrides.typed.get(name, name)}: cannot change for {place}, which is already prepared; remove "
                "it, or prepare another dataset with it"
            )
    metadata = read_metadata(folder)
    fields = ("user", "item", "time", "order", "rating", "event", "title") if "columns" in metadata else ()
    named = {f"{field}_column": metadata["columns"].get(field, "") for field in fields}
    time_format = metadata.get("time_format", "")
    data = Data(source=metadata["source"], dataset_dir=place, time_format=time_format, **named)
    recipe = Preprocessing.from_saved(metadata["preprocessing"])
    values = data.model_dump(mode="json", exclude={"parts_by_host"})
    tables = {"data": values, "preprocessing": recipe.model_dump(mode="json")}
    return Overrides(flat(tables) | overrides, overrides.typed)


def how_to_train_longer(run: Path, config: Config, saved: Config) -> str:
    """Return how a finished `run` ended, and the command to train it longer than `config` allows.

    `saved` are the settings with which it ended. Returns "" if `config` leaves something to do. Raises `SettingsError`
    if the report cannot be read.
    """
    training = _training_of(run)
    options = list(_longer(training, config, saved))
    if not options:
        return ""
    return (
        f"{run} is finished ({pluralize(training['epochs'], 'epoch')}, stopped by {training['stopped_by']}); to train "
        f"it longer: {train_command(f'--resume={run}', *options)}"
    )


def options_to_train_longer(run: Path) -> list[str]:
    """Return the options that train a finished run longer. Raises `SettingsError` if its files cannot be read."""
    saved = _saved_settings(run)
    return list(_longer(_training_of(run), saved, saved))


def _resumed(
    run: Path, checkpoint: Path | None, overrides: Overrides, place: Mapping[str, str], file: str | None
) -> RunSettings:
    """Return the settings of the `run` with the `overrides` and its `place` (the [run] keys that find it again).

    `file` is the settings file that is not used, if any.
    """
    saved = _saved_settings(run)
    changed = {"run.init_from": "", "run.resume": "auto", **overrides, **place}
    config = load_config(run / CONFIG, Overrides(changed, overrides.typed))
    notes = [_unused(file, overrides, saved, run)] if file else []
    is_last = checkpoint is None or checkpoint == found(run.resolve() / CHECKPOINTS)[-1]
    advice = how_to_train_longer(run, config, saved) if is_last and (run / REPORT).exists() else ""
    return RunSettings(config, [note for note in (*notes, advice) if note], finished=run if advice else None)


def _saved_settings(run: Path) -> Config:
    try:
        return load_config(run / CONFIG)
    except SettingsError as error:
        raise SettingsError(
            f"{error}; a resumed run needs the settings in that file: restore it (facts.json of a checkpoint has "
            f"them too), or start a new run from the weights of this one with --run.init_from={run}"
        ) from None


def _unused(file: str, overrides: Mapping[str, Any], saved: Config, run: Path) -> str:
    """Return a note on settings of the `file` that differ from the run's; "" if there are none.

    A value "auto" in the file does not count, since the run has resolved it.
    """
    stated = tomli.loads(Path(expand_user(file)).read_text(encoding="utf-8"))
    theirs, mine = (config.model_dump(mode="json") for config in (load_config(file), saved))
    names = [(table, key) for table in stated if table != "run" for key in stated[table]]
    unused = [
        f"{table}.{key} = {shown(mine[table][key])}, not {shown(theirs[table][key])}"
        for table, key in names
        if theirs[table][key] not in ("auto", mine[table][key]) and f"{table}.{key}" not in overrides
    ]
    if not unused:
        return ""
    more = f", and {len(unused) - MOST_UNUSED} more" if len(unused) > MOST_UNUSED else ""
    return (
        f"{file} is not used: {run} keeps its own settings ({'; '.join(unused[:MOST_UNUSED])}{more}); override "
        "settings on the command line"
    )


def _training_of(run: Path) -> dict[str, Any]:
    try:
        training: dict[str, Any] = json.loads((run / REPORT).read_text())["training"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SettingsError(f"{run / REPORT}: cannot be read: {error}; move it away to resume the run") from None
    return training


def _longer(report: Mapping[str, Any], config: Config, saved: Config) -> Iterator[str]:
    """Yield options that double each limit that ended the training."""
    training = config.training
    if report["epochs"] >= training.n_epochs:
        yield f"--training.n_epochs={2 * math.ceil(report['epochs'])}"
    patience, before = training.patience, saved.training.patience
    if report["stopped_by"] == "patience":
        if patience == before == "auto":
            yield "--training.patience=0"
        elif isinstance(patience, int) and isinstance(before, int) and 0 < patience <= before:
            yield f"--training.patience={2 * patience}"
    minutes = report["seconds"] / 60
    if 0 < training.max_minutes <= minutes:
        twice = max(2 * minutes, 0.01)
        yield f"--training.max_minutes={math.ceil(twice) if twice >= 10 else f'{twice:.2g}'}"
