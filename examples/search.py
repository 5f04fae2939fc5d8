"""Searches for the settings with which a model is best on the validation: Optuna proposes them, trial by trial.

    python examples/search.py --trials=20 --config=config.toml --folder=searches/demo

A trial is a `bert4rec train` of its own, in the folder trial-<number> of the search. Its value is NDCG@10 over the full
catalogue on the validation, at its best epoch. No test is looked at: that is for one training with the settings that
were found, whose command is the last line.

The same command again goes on: with what is missing of the trials, and in the middle of one that was killed. Typed
twice, at the same time, two searches share the trials. The dataset is prepared before, once: a setting that is part of
it, such as model.max_len, cannot be searched.
"""

import argparse
import json
import logging
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from bert4rec.__main__ import Parser
from bert4rec.checkpoint.run_folder import CHECKPOINTS, METRICS_FILE, REPORT, RUN_LOCK, found
from bert4rec.config.help import shown
from bert4rec.config.kinds import KINDS
from bert4rec.config.load import Overrides, flat, load_config, parse_command_line, settings_file
from bert4rec.config.tables import FULL_SOFTMAX_UP_TO, Config
from bert4rec.launch import train_on
from bert4rec.report.figures import read_report
from bert4rec.runtime.console import log_to_terminal, quiet_libraries
from bert4rec.runtime.errors import SettingsError, UserError, format_duration, pluralize
from bert4rec.runtime.files import try_lock
from bert4rec.runtime.startup import exit_for_missing

try:
    import optuna
    from optuna.trial import FrozenTrial, TrialState
    from search_picture import draw
except ModuleNotFoundError as error:
    exit_for_missing(error)

# --- What is searched: change it before the first trial ---------------------------------------------------------------

PRUNER = optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=2)  # in trials, in epochs
FOR_TRIALS = {"evaluation.baselines": []}  # unless the command line says otherwise: it saves time
SEED = 1  # of the proposals


def space(trial: Any, config: Config, n_items: int) -> dict[str, Any]:
    """Suggest the settings of a trial, each by its own name; what is returned are settings that follow from these.

    `config`: all that is not suggested; `n_items`: of the dataset. A setting that the command line names is not
    searched: the suggestion is what was typed.
    """
    trial.suggest_float("training.learning_rate", 3e-4, 1e-2, log=True)
    trial.suggest_float("parallelism.sparse_learning_rate", 1e-3, 1e-1, log=True)  # of the item table
    width = trial.suggest_categorical("model.embed_dim", [32, 64, 128])  # multiples of 4, and of every n_heads
    trial.suggest_categorical("model.n_heads", [1, 2, 4])
    trial.suggest_int("model.n_layers", 1, 3)
    trial.suggest_float("model.dropout", 0.0, 0.5, step=0.05)
    if KINDS[config.model.kind].has_mask_token:
        trial.suggest_float("training.mask_prob", 0.1, 0.6, step=0.05)
    exact = "softmax" if n_items <= FULL_SOFTMAX_UP_TO else "sampled_softmax"
    loss = trial.suggest_categorical("training.loss", [exact, "gbce"])
    if loss != "softmax":  # which has no negatives
        most = min(1024, n_items - 1)
        trial.suggest_int("training.n_train_negatives", min(64, most), most, log=True)
    if loss == "gbce":
        trial.suggest_float("training.gbce_calibration", 0.0, 1.0, step=0.05)
    return {"model.ffn_dim": 4 * width}


# ----------------------------------------------------------------------------------------------------------------------

METRIC = "NDCG@10"
JOURNAL, PICTURE, LOCKS = "study.journal", "search.png", ".locks"
OWN = ("run.dir", "run.name", "run.resume")  # settings that a search makes itself
COMPARED = ("preprocessing", "model", "training", "parallelism")  # tables that all trials of a search share
FACTS, SETTINGS, PROBLEM = "facts", "settings", "problem"  # what the study keeps beside the suggestions
MOST_SHOWN = 5  # trials, in the table of the best
SECONDS_BETWEEN_LOOKS = 1.0  # at the trials of other searches

logger = logging.getLogger("bert4rec.search")


@dataclass(frozen=True)
class Search:
    """The study, its folder, how many trials it is to have, and what all of them have in common."""

    study: optuna.Study
    folder: Path
    n_trials: int
    file: str | None
    typed: Overrides
    config: Config
    n_items: int

    def trials(self, *states: TrialState) -> list[FrozenTrial]:
        """Those that there are, of all searches that share the study."""
        return self.study.get_trials(deepcopy=False, states=states or None)

    def run_folder(self, number: int) -> Path:
        """Of a trial."""
        return self.folder / f"trial-{number:03d}"

    def words(self, settings: Mapping[str, Any]) -> list[str]:
        """A training with these settings, as words for `bert4rec train`; what was typed counts more."""
        own = Overrides({name: value for name, value in settings.items() if name not in self.typed})
        return [*([f"--config={self.file}"] if self.file else []), *self.typed.options, *own.options]


def main() -> int:
    """Search; the exit status: 0, 1 where no trial has a value, 2 bad settings, 130 stopped."""
    log_to_terminal(outlives_reader=True)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        search = open_search(*make_parser().parse_known_args())
        run_trials(search)
        return show_results(search)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped, all is saved; the same command goes on", file=sys.stderr)
        return 130


def make_parser() -> argparse.ArgumentParser:
    """The options of a search; all others are settings."""
    parser = Parser(
        prog="python examples/search.py",
        usage="%(prog)s [--trials=N] [--folder=FOLDER] [--config=FILE] [--table.key=value …]",
        description=__doc__,
        epilog="--table.key=value: a setting of all trials, as `bert4rec train` takes it; it is not searched then.\n"
        "--training.n_epochs and --training.max_minutes limit each trial.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--trials", metavar="N", type=int, default=20, help="of the whole search, failed ones too (default: 20)")
    add("--folder", metavar="FOLDER", type=Path, help="of the search (default: searches/<name of the dataset>)")
    add("--config", metavar="FILE", help="settings file (default: config.toml, where there is one)")
    return parser


# --- One study for all searches of a folder ---------------------------------------------------------------------------


def open_search(arguments: argparse.Namespace, settings: Sequence[str]) -> Search:
    """A new search, or the one that was begun in that folder. Raises `UserError` for what no trial could do."""
    _, typed = parse_command_line(settings)
    for name in OWN:
        if name in typed:
            raise SettingsError(f"{typed.typed[name]}: a search sets {name} itself; its runs stand in --folder")
    file = settings_file(arguments.config)
    config = load_config(file, typed)
    if config.training.loss == "mse":
        raise SettingsError(f'training.loss = "mse" is judged by RMSE, and a search by {METRIC}; choose another loss')
    dataset = dataset_of(config)
    folder = arguments.folder or Path("searches") / config.data.folder.name
    (folder / LOCKS).mkdir(parents=True, exist_ok=True)
    check_locks(folder)
    with waiting_for(folder / LOCKS / "study"):
        study = open_study(folder, config, dataset.metadata["fingerprint"])
    return Search(study, folder, arguments.trials, file, typed, config, dataset.n_items)


def dataset_of(config: Config) -> Any:
    """The dataset. Raises `UserError` where it does not fit the settings, or has nothing to compare trials by."""
    with quiet_libraries():
        from bert4rec.dataset.reader import open_dataset

        recipe = config.preprocessing.recipe
        dataset = open_dataset(config.data.folder, preprocessing=recipe)
    if not len(dataset.splits["validation"]):
        raise SettingsError(f"{dataset.folder}: holds nothing out for validation, by which trials are compared")
    return dataset


def open_study(folder: Path, config: Config, fingerprint: str) -> optuna.Study:
    """The study of the folder. Raises `SettingsError` where its trials were made with other settings, or other data."""
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(folder / JOURNAL)))
    study = optuna.create_study(
        study_name="search", storage=storage, direction="maximize", pruner=PRUNER, load_if_exists=True
    )
    tables = config.model_dump(mode="json")
    facts = flat({name: tables[name] for name in COMPARED}) | {"the dataset's fingerprint": fingerprint}
    saved = study.user_attrs.get(FACTS, facts)
    for name, value in facts.items():
        if saved.get(name) != value:
            raise SettingsError(
                f"{folder}: its trials have {name} = {shown(saved.get(name))}, now it is {shown(value)}, and both "
                "cannot be compared; choose another --folder"
            )
    if FACTS not in study.user_attrs:
        study.set_user_attr(FACTS, facts)
    return study


# --- Who runs which trial: whoever has its lock, which goes with the process, however that ends -----------------------


def take_trial(search: Search) -> tuple[optuna.Trial, IO[str]] | None:
    """A trial whose search was killed, or else a new one, and its lock; None where there is nothing left to take."""
    with waiting_for(search.folder / LOCKS / "study"):
        trials = search.trials()
        for trial in trials:
            if trial.state == TrialState.RUNNING and (lock := lock_of(search, trial.number)):
                return optuna.Trial(search.study, trial._trial_id), lock
        if len(trials) < search.n_trials and (lock := lock_of(search, len(trials))):
            return search.study.ask(), lock
    return None


def lock_of(search: Search, number: int) -> IO[str] | None:
    """The lock of a trial; None where another search has it."""
    file = (search.folder / LOCKS / search.run_folder(number).name).open("a")
    if try_lock(file):
        return file
    file.close()
    return None


@contextmanager
def waiting_for(path: Path) -> Iterator[None]:
    """Within: nobody else has this lock."""
    with path.open("a") as file:
        try_lock(file, wait=True)
        yield


def check_locks(folder: Path) -> None:
    """Raise `SettingsError` where the file system grants a lock to everybody."""
    path = folder / LOCKS / f"test-{time.time_ns()}"
    with path.open("a") as one, path.open("a") as other:
        path.unlink()
        if try_lock(one) and try_lock(other):
            raise SettingsError(f"{folder}: searches share trials by locks, which this file system does not have")


# --- Trials -----------------------------------------------------------------------------------------------------------


def run_trials(search: Search) -> None:
    """Run what is to be taken, until no search has a trial left."""
    logger.info(f"{search.folder}: {pluralize(search.n_trials, 'trial')}, {len(search.trials())} of them begun before")
    is_waiting = False
    while True:
        if taken := take_trial(search):
            trial, lock = taken
            with lock:
                run_trial(search, trial)
        elif others := search.trials(TrialState.RUNNING):
            if not is_waiting:
                logger.info(f"waiting for another search, with trial {', '.join(str(one.number) for one in others)}")
            is_waiting = True
            time.sleep(SECONDS_BETWEEN_LOOKS)
        else:
            return


def run_trial(search: Search, trial: optuna.Trial) -> None:
    """Train with what is suggested, and tell the study what came of it; a failure is no reason to end."""
    settings = suggested(search, trial)
    begun = ", begun before" if search.run_folder(trial.number).exists() else ""
    logger.info(f"trial {trial.number}{begun}: {described(settings)}")
    try:
        report = train(search, trial, settings)
    except optuna.TrialPruned:
        search.study.tell(trial, state=TrialState.PRUNED)
        result = "stopped early: worse than others at this epoch"
    except (UserError, RuntimeError) as error:  # bad settings, or a crash: for want of memory, perhaps
        problem = str(error).splitlines()[-1]
        trial.set_user_attr(PROBLEM, problem)
        search.study.tell(trial, state=TrialState.FAIL)
        result = f"failed: {problem}"
    else:
        value = report["validation"]["full"][METRIC]
        search.study.tell(trial, value)
        result = f"{METRIC} {value:.4f} at epoch {report['training']['best_epoch']:g}"
    logger.info(f"trial {trial.number}: {result}; {progress(search)}")


def suggested(search: Search, trial: optuna.Trial) -> dict[str, Any]:
    """The settings of the trial; the same again for one that was begun before."""
    # Seeded for each trial: two searches with the same seed would propose the same.
    search.study.sampler = optuna.samplers.TPESampler(seed=SEED + trial.number)
    try:
        derived = space(Suggestions(trial, search.typed), search.config, search.n_items)
    except ValueError as error:  # of Optuna, which knows the space of earlier trials
        problem = f"Optuna cannot suggest from this space: {str(error).rstrip('.')}"
        trial.set_user_attr(PROBLEM, problem)
        search.study.tell(trial, state=TrialState.FAIL)
        raise SettingsError(f"{search.folder}: {problem}; a space that was changed needs another --folder") from None
    values = trial.params | {name: value for name, value in derived.items() if name not in search.typed}
    # Four digits of a number are enough, and a command with them is read more easily.
    settings = {name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in values.items()}
    trial.set_user_attr(SETTINGS, settings)
    return settings


class Suggestions:
    """A trial that is not asked for what was typed: that is what it is."""

    def __init__(self, trial: optuna.Trial, typed: Mapping[str, Any]) -> None:
        self._trial, self._typed = trial, typed

    def __getattr__(self, method: str) -> Any:
        def suggest(name: str, *limits: Any, **options: Any) -> Any:
            return self._typed[name] if name in self._typed else getattr(self._trial, method)(name, *limits, **options)

        return suggest


def train(search: Search, trial: optuna.Trial, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The report of a training with these settings, which goes on where an earlier search has left it.

    Raises `TrialPruned` where it is worse than others; `UserError` or `RuntimeError` where it fails.
    """
    run = search.run_folder(trial.number)
    if run.exists():
        with waiting_for(run / RUN_LOCK):  # a training whose search was killed saves before it ends
            pass
        if not found(run / CHECKPOINTS):
            shutil.rmtree(run)
    if not (run / REPORT).exists():  # else it was done, and not told
        place = {"run.dir": str(search.folder), "run.name": run.name, "run.resume": "auto"}
        train_on(search.words(FOR_TRIALS | settings | place), n_processes=1, view=Watcher(search, trial, run))
    return read_report(run)


class Watcher:
    """Follows the validations of a training, and ends it where the pruner says so."""

    def __init__(self, search: Search, trial: optuna.Trial, run: Path) -> None:
        self._trial, self._file, self._n_epochs = trial, run / METRICS_FILE, search.config.training.n_epochs
        self._known = {*search.trials()[trial.number].intermediate_values}

    def line(self, text: str) -> None:
        """The training has said something: perhaps of a validation, whose record stands in its file by then."""
        if not self._file.exists():
            return
        whole_lines = self._file.read_text().rpartition("\n")[0]
        for record in map(json.loads, whole_lines.splitlines()):
            if record["kind"] == "validation" and int(record["epoch"]) not in self._known:
                self._report(int(record["epoch"]), record["full"][METRIC])

    def _report(self, epoch: int, value: float) -> None:
        self._known.add(epoch)
        self._trial.report(value, epoch)
        logger.info(f"trial {self._trial.number}: epoch {epoch}, {METRIC} {value:.4f}")
        if epoch < self._n_epochs and self._trial.should_prune():
            raise optuna.TrialPruned

    def progress(self, done: int, total: int, figures: str) -> None:
        """Steps are not shown."""


# --- What came out ----------------------------------------------------------------------------------------------------


def show_results(search: Search) -> int:
    """Print the table of the best, and the command that trains with their settings; the exit status."""
    done, failed = search.trials(TrialState.COMPLETE), search.trials(TrialState.FAIL)
    n_early = len(search.trials(TrialState.PRUNED))
    logger.info(f"\n{pluralize(len(done), 'trial')} finished, {n_early} stopped early, {len(failed)} failed")
    for trial in failed:
        logger.info(f"trial {trial.number} failed: {trial.user_attrs[PROBLEM]}")
    if not done:
        print("error: no trial has finished", file=sys.stderr)
        return 1
    logger.info(f"\ntrial  {METRIC}  best epoch   time  settings")
    for trial in sorted(done, key=lambda trial: -trial.values[0])[:MOST_SHOWN]:
        about = read_report(search.run_folder(trial.number))["training"]
        figures = f"{trial.values[0]:>7.4f}  {about['best_epoch']:>10g}  {format_duration(about['seconds']):>5}"
        logger.info(f"{trial.number:>5}  {figures}  {described(trial.user_attrs[SETTINGS])}")
    best = search.study.best_trial
    draw(search.study, METRIC, search.folder / PICTURE)
    logger.info(f"\npicture: {search.folder / PICTURE}; run of the best trial: {search.run_folder(best.number)}")
    words = search.words(best.user_attrs[SETTINGS] | {"run.name": f"{search.folder.name}-best"})
    logger.info(f"to train with its settings, and read the test once:\n{shlex.join(['bert4rec', 'train', *words])}")
    return 0


def described(settings: Mapping[str, Any]) -> str:
    """Settings in a line, without their tables."""
    return ", ".join(
        f"{name.partition('.')[2]} {f'{value:.3g}' if isinstance(value, float) else value}"
        for name, value in settings.items()
    )


def progress(search: Search) -> str:
    """How far the search is, and its best trial so far."""
    n_done = sum(trial.state.is_finished() for trial in search.trials())
    best = max(search.trials(TrialState.COMPLETE), key=lambda trial: trial.values[0], default=None)
    so_far = f", best {best.values[0]:.4f} of trial {best.number}" if best else ""
    return f"{n_done} of {search.n_trials} done{so_far}"


if __name__ == "__main__":
    sys.exit(main())
