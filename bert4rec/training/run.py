"""One run, from settings and a dataset folder to a run folder with its report."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bert4rec.checkpoint.next_command import free_the_disk, how_to_continue, start_from
from bert4rec.checkpoint.resume import (
    FACTS_VERSION,
    SET_ASIDE,
    Resumption,
    best_of,
    changes,
    check_settings,
    find,
    set_aside_newer,
    wants_fresh_optimizers,
)
from bert4rec.checkpoint.run_folder import (
    BEST,
    CHECKPOINTS,
    CONFIG,
    ENVIRONMENT,
    PAGE,
    PLAN,
    Lock,
    new_folder,
    step_folder,
)
from bert4rec.checkpoint.store import SaveError, verify
from bert4rec.config.load import with_changes
from bert4rec.config.resolve import resolve
from bert4rec.config.tables import Config
from bert4rec.dataset.reader import Bools, Dataset, open_dataset
from bert4rec.evaluation.ranker import HeldOut, Metrics, ModelRanker, Ranks, rank_by_popularity, to_metrics, with_unseen
from bert4rec.models.kinds import KINDS
from bert4rec.report.environment import environment
from bert4rec.report.figures import draw_learning_curve
from bert4rec.report.log import MetricsLog, read_records
from bert4rec.report.page import FORMAT_VERSION, metrics_table, result_line, write_json, write_report
from bert4rec.runtime.collectives import gather_objects, on_rank_zero
from bert4rec.runtime.console import show
from bert4rec.runtime.errors import DataError, DivergenceError, Interrupted, SettingsError
from bert4rec.runtime.memory import PeakMemory
from bert4rec.runtime.processes import Processes, process_group, rendezvous, seed_everything, this_process
from bert4rec.runtime.signals import PATIENCE, Interruption
from bert4rec.runtime.wording import counted, rounded
from bert4rec.sharding.advice import few_steps
from bert4rec.sharding.parallelize import held_bytes, unwrap
from bert4rec.sharding.plan import headline, page
from bert4rec.training.agreement import Facts, agreed, facts_of
from bert4rec.training.build import build, keeper, plan_of_all, sampler, training_batches
from bert4rec.training.progress import Progress
from bert4rec.training.trainer import State, Trainer


def run(config: Config) -> Path:
    """Train, validate, test and report as `config` says; the run folder. Every process of the launch calls this."""
    store, rank, world_size = rendezvous()
    world, dataset = agreed(store, rank, world_size, lambda: _prepare(config))
    with process_group(world, store, deterministic=config.training.deterministic), ExitStack() as held:
        # The Run lives in this expression only, so that its shards are gone when the process group ends.
        return Run(config, world, dataset, held).complete()


def _prepare(config: Config) -> tuple[tuple[Processes, Dataset], Facts]:
    """This process and its dataset, and what must be the same on all processes."""
    world = this_process(config.parallelism.device)
    dataset = _open(config, verify=world.local_rank == 0)
    facts = facts_of(config.model_dump(mode="json"), dataset.metadata["fingerprint"], world.device.type)
    return (world, dataset), facts


class Run:
    """One run: settings resolved, its folder there and locked as long as `held` is open, the model built as planned.

    Raises `SettingsError`, on every process and before anything is made or allocated, where the job cannot fit, or is
    not the one that is to be resumed.
    """

    def __init__(self, config: Config, world: Processes, dataset: Dataset, held: ExitStack) -> None:
        self._world, self._dataset, self._held = world, dataset, held
        self._peak_memory = PeakMemory(world.device)
        self._progress = Progress(shown=world.is_first)
        self._resumption = self._find(config)
        config = self._config = self._resolve(config)
        self._settings = config.model_dump(mode="json")
        seed_everything(config.training.seed, world.rank)
        self._plan = plan_of_all(config, world, dataset.n_items)
        self._check_resumption()
        self._origin = self._find_origin()
        self._folder = self._resumption.run if self._resumption else on_rank_zero(self._new_folder)
        self._state = self._restored_state()
        if world.is_first:
            self._describe()
        self._model, self._optimizers = build(config, world, dataset.n_items, self._plan)
        steps, say = self._state.step, self._progress.say
        self._log = MetricsLog(self._folder, purge_from=steps, say=say) if world.is_first else None

    def complete(self) -> Path:
        """Train, test the best weights, write the report; the run folder."""
        patience = max(PATIENCE, self._config.checkpoint.seconds_on_signal)
        with Interruption(patience) as interruption:
            trainer = self._trainer(interruption)
            try:
                self._begin(trainer)
                trainer.fit()
                held_out = on_rank_zero(self._held_out)
                results = self._results(trainer, held_out)
            except Interrupted as interrupted:
                interrupted.advice = how_to_continue(self._folder)
                if self._log:
                    self._log.add_note("stopped", trainer.state.step, message=str(interrupted))
                raise
            except DivergenceError as error:
                raise DivergenceError(f"{error}; {self._with_lower_rates()}") from None
            finally:
                self._progress.close()
        self._report(trainer, results, held_out)
        return self._folder

    def _report(self, trainer: Trainer, results: dict[str, Metrics], held_out: dict[str, HeldOut]) -> None:
        peaks = gather_objects(self._peak_memory.read())
        held = gather_objects(held_bytes(self._model, self._optimizers.states()))
        if self._log:
            self._log.close()
            training = _training(trainer, peaks, read_records(self._folder, "resume"))
            report = self._about(held_out) | results | {"training": training, "sharding": _by_rank(held)}
            if trainer.is_lost:
                show(f"\n{metrics_table(report)}\n")  # which stand nowhere else
            else:
                draw_learning_curve(self._folder)
                write_report(self._folder, report)
                show(result_line(report))
                show(f"report: {self._folder / PAGE}")
                show(f"all figures: {shlex.join(['python', '-m', 'bert4rec', 'report', str(self._folder)])}")
        if trainer.is_lost:
            advice = free_the_disk(self._folder)
            raise SaveError(f"{self._folder}: the weights of these metrics could not be saved; {advice}")

    def _with_lower_rates(self) -> str:
        """What to do after a divergence: another run, from the best weights where they were saved."""
        table, dense = self._config.parallelism.sparse_learning_rate, self._config.training.learning_rate
        assert table != "auto", "the settings are resolved"
        lower = [f"--training.learning_rate={dense / 10:.2g}", f"--parallelism.sparse_learning_rate={table / 10:.2g}"]
        has_best = (self._folder / CHECKPOINTS / BEST).is_dir()
        origin, words = ([f"--run.init_from={self._folder}"], ", from the best weights") if has_best else ([], "")
        return f"start again with lower learning rates{words}: {start_from(self._folder, *lower, *origin)}"

    def _find(self, config: Config) -> Resumption | None:
        """What is to be resumed, if anything."""
        if not config.run.resume:
            return None
        parent = Path(config.run.dir)
        return find(config.run.resume, parent, config.run_name, claim=self._claim, say=self._progress.say)

    def _new_folder(self) -> Path:
        folder = new_folder(Path(self._config.run.dir), self._config.run_name)
        self._claim(folder)
        return folder

    def _claim(self, folder: Path) -> None:
        self._held.enter_context(Lock(folder))

    def _resolve(self, config: Config) -> Config:
        """What is left to the program stays as it was, where a run is resumed, whatever this device would prefer."""
        if self._resumption and not config.run.reset_optimizer and config.parallelism.sparse_optimizer == "auto":
            then = self._resumption.facts["config"]["parallelism"]["sparse_optimizer"]
            config = with_changes(config, "parallelism", {"sparse_optimizer": then})
        return resolve(config, self._world.device.type, self._dataset.n_items)

    def _check_resumption(self) -> None:
        if self._resumption:
            fingerprint, is_free = self._dataset.metadata["fingerprint"], self._config.run.reset_optimizer
            check_settings(self._resumption.facts, self._settings, fingerprint, reset_optimizer=is_free)

    def _find_origin(self) -> Path | None:
        """The checkpoint with whose weights this run begins, if with any."""
        run = self._config.run
        if not run.init_from:
            return None
        folder, facts = best_of(Path(run.init_from))
        then = facts["config"]["model"] | {"n_items": facts["n_items"], "items (their ids)": facts["items"]}
        now = self._settings["model"] | {"n_items": self._dataset.n_items, "items (their ids)": self._dataset.first_ids}
        if other := [f"{name} = {then[name]} there, {now[name]} here" for name in now if then.get(name) != now[name]]:
            raise SettingsError(f"run.init_from: its weights do not fit this run: {'; '.join(other)}")
        return folder

    def _restored_state(self) -> State:
        """How far the run is."""
        if not self._resumption:
            return State()
        training, state = self._config.training, State(**self._resumption.facts["state"])
        is_worse = 0 < training.patience <= state.n_worse
        is_late = 0 < training.max_minutes <= state.seconds / 60
        state.stopped_by = "max_minutes" if is_late else "patience" if is_worse else ""
        return state

    def _describe(self) -> None:
        """What is known before the first step."""
        to_repeat = with_changes(self._config, "run", {"resume": "", "reset_optimizer": False})
        (self._folder / CONFIG).write_text(to_repeat.to_toml())
        (self._folder / PLAN).write_text(page(self._plan))
        show(headline(self._plan))
        batch_size, n_windows = self._config.training.per_device_train_batch_size, len(self._dataset.splits["train"])
        if warning := few_steps(n_windows, batch_size, self._world.world_size):
            show(warning)
        if not self._holds_out("validation"):
            what = "validation" if self._holds_out("test") else "validation or test"
            show(f"this dataset holds nothing out for {what}: the last weights are kept")
        write_json(self._folder / ENVIRONMENT, environment(self._world.device, self._world.world_size))
        show(f"run folder: {self._folder}")

    def _trainer(self, interruption: Interruption) -> Trainer:
        return Trainer(
            self._model,
            self._optimizers,
            training_batches(
                self._config,
                self._dataset.splits["train"],
                self._world,
                n_items=self._dataset.n_items,
                sampler=sampler(self._config, self._dataset),
                start=self._state.position,
            ),
            settings=self._config.training,
            world=self._world,
            measure=lambda between: to_metrics(self._rank("validation", ["full"], between), self._ks),
            keeper=keeper(
                self._config,
                self._world,
                self._folder,
                about=self._facts(),
                last_step=self._state.step,
                say=self._progress.say,
            ),
            progress=self._progress,
            interruption=interruption,
            log=self._log,
            state=self._state,
        )

    def _facts(self) -> dict[str, Any]:
        """What every checkpoint says of the run."""
        return {
            "facts_version": FACTS_VERSION,
            "config": self._settings,
            "fingerprint": self._dataset.metadata["fingerprint"],
            "n_items": self._dataset.n_items,
            "items": self._dataset.first_ids,
            "world_size": self._world.world_size,
            "global_batch": self._global_batch,
            "plan": page(self._plan),
        }

    @property
    def _global_batch(self) -> int:
        return self._config.training.per_device_train_batch_size * self._world.world_size

    def _begin(self, trainer: Trainer) -> None:
        """Resume from a checkpoint, or start from the weights of another run, or from fresh ones."""
        if self._resumption:
            self._resume(trainer, self._resumption)
        elif self._origin:
            trainer.restore(self._origin, optimizers=False, random=False)
            self._progress.say(f"starts from the weights of {self._origin}")

    def _resume(self, trainer: Trainer, resumption: Resumption) -> None:
        facts, step, checkpoint = resumption.facts, self._state.step, resumption.checkpoint
        is_reset = wants_fresh_optimizers(facts, self._settings)
        then = _dropout_draws_from(facts["world_size"], facts["config"])
        now = _dropout_draws_from(self._world.world_size, self._settings)
        trainer.restore(checkpoint, optimizers=not is_reset, random=then == now)
        self._check_best(resumption)
        n_newer = on_rank_zero(lambda: set_aside_newer(resumption))
        self._progress.say(f"resumed after step {step}, epoch {rounded(trainer.epoch)}, from {checkpoint}")
        if n_newer:
            self._progress.say(f"moved out of the way: {counted(n_newer, 'newer checkpoint')}, to {SET_ASIDE}/")
        if then != now:
            self._progress.say(f"{now} in place of {then}: dropout draws other numbers")
        if is_reset:
            self._progress.say("with fresh optimizers")
        if facts["global_batch"] != self._global_batch:
            self._progress.say(f"global batches of {self._global_batch} in place of {facts['global_batch']} sequences")
        changed = changes(facts, self._settings)
        for name, (before, wanted) in changed.items():
            self._progress.say(f"{name} = {wanted} in place of {before}")
        if self._log:
            self._log.add_note("resume", step, world_size=self._world.world_size, changed=changed)

    def _check_best(self, resumption: Resumption) -> None:
        """Where the checkpoint of the best weights is lost, those at hand are validated, and the search begins anew."""
        state = self._state
        best = step_folder(resumption.run / CHECKPOINTS, state.best_step)
        if not state.best_step or best == resumption.checkpoint:
            return
        try:
            if not on_rank_zero(best.is_dir):
                raise DataError(f"the best checkpoint so far, {best.name}, is missing")
            verify(best)
        except DataError as error:
            self._progress.say(f"warning: {error}; the search for the best weights starts again here")
            state.best_ndcg, state.best_step, state.best_epoch, state.n_worse, state.validated = -1.0, 0, 0.0, 0, -1.0

    def _held_out(self) -> dict[str, HeldOut]:
        """Of each split that holds somebody out, what is known of its users."""
        splits = (split for split in ("validation", "test") if self._holds_out(split))
        return {split: HeldOut.of(self._dataset.splits[split]) for split in splits}

    def _results(self, trainer: Trainer, held_out: dict[str, HeldOut]) -> dict[str, Metrics]:
        """The model on both splits, and on the test split what popularity and the best possible would have got.

        What the dataset holds nobody out for is left out.
        """
        dataset, protocols = self._dataset, self._config.evaluation.protocols

        def metrics(ranks: Ranks, split: str) -> Metrics:
            return to_metrics(with_unseen(ranks, held_out[split].repeated), self._ks)

        results = {split: metrics(self._rank(split, protocols, trainer.leave_if_asked), split) for split in held_out}
        if "test" in results:
            popularity = on_rank_zero(lambda: rank_by_popularity(dataset.popularity, dataset.splits["test"], protocols))
            results["popularity_baseline"] = metrics(popularity, "test")
            if oracle := dataset.oracle_ranks():
                results["best_possible"] = metrics({name: oracle[name] for name in protocols}, "test")
        return results

    def _holds_out(self, split: str) -> bool:
        return len(self._dataset.splits[split]) > 0

    def _rank(self, split: str, protocols: Sequence[str], between: Callable[[], None]) -> Ranks:
        """By the model as it is now."""
        ranker = ModelRanker(
            unwrap(self._model),
            batch_size=self._config.evaluation.per_device_eval_batch_size,
            device=self._world.device,
            max_len=self._config.model.max_len,
            precision=self._config.training.precision,
            between=between,
        )
        return ranker.rank(self._dataset.splits[split], protocols)

    @property
    def _ks(self) -> list[int]:
        return sorted({*self._config.evaluation.ks, 10})

    def _about(self, held_out: dict[str, HeldOut]) -> dict[str, Any]:
        """What the report says before the figures."""
        metadata = self._dataset.metadata
        return {
            "format_version": FORMAT_VERSION,
            "dataset": {
                **{key: metadata[key] for key in ("source", "users", "items", "rows", "fingerprint")},
                "split": self._config.preprocessing.split,
                "n_eval_negatives": self._config.preprocessing.n_eval_negatives,
                "repeated_targets": {split: _count(users.repeated) for split, users in held_out.items()},
                "left_out": {split: _count(users.left_out) for split, users in held_out.items()},
            },
            "model": KINDS[self._config.model.kind].title,
            "mode": self._config.parallelism.mode,
            "world_size": self._world.world_size,
        }


def _dropout_draws_from(world_size: int, settings: Mapping[str, Any]) -> str:
    """Each process of each kind of device has a random state of its own."""
    return f"{world_size} x {settings['parallelism']['device']}"


def _count(users: Bools) -> dict[str, int]:
    """Of how many users it is so."""
    return {"users": int(users.sum()), "of": len(users)}


def _open(config: Config, *, verify: bool) -> Dataset:
    preprocessing = config.preprocessing.recipe
    dataset = open_dataset(config.data.folder, max_len=config.model.max_len, preprocessing=preprocessing, verify=verify)
    if not len(dataset.splits["train"]):
        raise DataError(f"{dataset.folder}: the training split is empty; loosen the filters of [preprocessing]")
    return dataset


def _training(trainer: Trainer, peak_memory: list[int], resumed: list[dict[str, Any]]) -> dict[str, Any]:
    state = trainer.state
    return {
        "epochs": trainer.epoch,
        "steps": state.step,
        "seconds": state.seconds,
        "best_epoch": state.best_epoch,
        "stopped_by": state.stopped_by,
        "sequences_per_second": trainer.meter.rate,
        "peak_memory_bytes": peak_memory,
        "resumed": [(record["step"], record["world_size"]) for record in resumed],
    }


def _by_rank(held: list[dict[str, int]]) -> dict[str, list[int]]:
    """Bytes of weights and of optimizer state, a list over the ranks each."""
    return {key: [rank[key] for rank in held] for key in held[0]}
