"""One update of a model: append the new rows, score them, train, judge, and switch. Each step is done once.

What is done is in the folder `next` of the models folder. Killed anywhere, the same command goes on with it, and until
the last step the champion is what it was.
"""

import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from glob import glob
from pathlib import Path
from typing import Any

import numpy as np

from bert4rec.checkpoint.models_folder import (
    CHAMPION,
    DATASET,
    appended_by,
    new_version_name,
    read_aliases,
    read_updates,
    version_folder,
)
from bert4rec.checkpoint.run_folder import CHECKPOINTS, CONFIG, Trained, find_trained, found, lock
from bert4rec.checkpoint.run_settings import WITHOUT_STATE, load_run_settings, with_dataset
from bert4rec.config.load import Overrides, load_config
from bert4rec.config.tables import Config
from bert4rec.dataset.format import NO_ITEM, TEST
from bert4rec.dataset.reader import open_dataset, read_metadata
from bert4rec.evaluation.evaluator import POPULARITY_BASELINE
from bert4rec.evaluation.metrics import gains as gains_of
from bert4rec.prepare.append import append, settings_to_append
from bert4rec.prepare.destination import origin_of
from bert4rec.prepare.grown_folder import APPENDED
from bert4rec.runtime.arrays import Bools, Float64s, Int32s
from bert4rec.runtime.errors import DivergenceError
from bert4rec.runtime.files import atomic_write, withdraw_directory
from bert4rec.serving.events import Events, settings_to_read
from bert4rec.training.evaluate import rank_test
from bert4rec.training.extend import extend
from bert4rec.training.run import run as run_training
from bert4rec.update.checks import after_training, before_training, list_figures
from bert4rec.update.finish import DECISION, RUN, TAIL, UNFINISHED_UPDATE, UPDATE_PLAN, earlier_tails, finish
from bert4rec.update.gate import Tail, judge, paired_loss
from bert4rec.update.together import Steps
from bert4rec.update.versions import link_folder
from bert4rec.update.windows import choose_windows, write_windows

BASELINE = "markov"
WINDOWS = "windows.npy"  # in the folder of an unfinished update
EPOCHS = 3  # at most, of the chosen windows
STEPS_OF_SMALL_DAY = 16  # of an epoch: batches of a small day are smaller
NDCG = "NDCG@10"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """The end of an update: a sentence for people, and the exit status."""

    sentence: str
    status: int


class Nightly:
    """An update of the model in the folder `models`, with the input and settings `given` on the command line.

    With `full`, a new model is trained on all rows, with the settings of the first version; the input may then be
    missing. With `accept`, rows that are only unusual do not stop it. With `events`, the place where a server keeps
    them, the rows are those that came since the last update. Every process of the launch makes the same calls.
    """

    def __init__(self, models: Path, given: Overrides, *, full: bool, accept: bool = False, events: str = "") -> None:
        self._models, self._full, self._accept, self._events, self._steps = models, full, accept, events, Steps()
        self._next, self._dataset = models / UNFINISHED_UPDATE, models / DATASET
        self._given, self._run_settings, self._input = given, Overrides(), Overrides({}, given.typed)
        update_settings = Overrides()
        places = {"update": update_settings, "data": self._input, "preprocessing": self._input}
        for name, value in given.items():
            places.get(name.partition(".")[0], self._run_settings)[name] = value
        self._settings = load_config(None, update_settings).update

    def run(self) -> Outcome:
        """Append, score, train, judge and switch; return the outcome. Raises `UserError`, also if another one runs."""
        with ExitStack() as held:
            self._steps.first(lambda: self._lock(held))
            return self._run()

    def _lock(self, held: ExitStack) -> None:
        read_aliases(self._models)  # refuses any other folder
        held.enter_context(lock(self._models))

    def _run(self) -> Outcome:
        plan = self._steps.first(self._begin)
        if "sentence" in plan:
            return Outcome(plan["sentence"], plan["status"])
        champion = find_trained(version_folder(self._models, plan["champion"]))
        if self._events:
            claimed = self._steps.once(self._next / "claim.json", lambda: self._claim(plan["time"]))
            if not claimed["events"]:
                return self._end(plan | _without_version("stopped", ["no event has come since the last update"]))
        if self._input or self._events:
            line = {**plan, **self._steps.once(self._next / "append.json", lambda: self._append(plan["time"]))}
            seconds = line["seconds"] = {"append": line["seconds"]}
            if problems := self._problems_of(line):
                return self._end(line | _without_version("stopped", problems))
            line["score"] = self._together("score", lambda: self._score(champion))
            seconds["score"] = line["score"].pop("seconds")
            if problems := self._problems_of(line):
                return self._end(line | _without_version("stopped", problems))
        else:
            self._steps.once(self._next / "append.json", self._keep_dataset)
            line = {**plan, "seconds": (seconds := dict[str, float]())}
        began = time.monotonic()
        try:
            self._train(champion)
            trained = self._steps.once(self._next / "train.json", lambda: {"seconds": time.monotonic() - began})
            judged = self._together("gate", lambda: self._judge(champion))
        except DivergenceError as error:
            return self._end(line | _without_version("refused", [str(error)]))
        seconds |= {"train": trained["seconds"], "gate": judged.pop("seconds")}
        return self._end(line | self._steps.first(lambda: self._decide(line, judged)))

    def _problems_of(self, line: Mapping[str, Any]) -> list[str]:
        """Return what stops an update with this `line`, as far as it is known; what to type if that is not so."""

        def check() -> list[str]:
            found = before_training(line, read_updates(self._models))
            return [
                problem.text if problem.is_certain else f"{problem.text}; if it is as it should be: --accept"
                for problem in found
                if problem.is_certain or not self._accept
            ]

        texts: list[str] = self._steps.first(check)
        return texts

    def _decide(self, line: Mapping[str, Any], judged: dict[str, Any]) -> dict[str, Any]:
        """Return the decision on the challenger, with what it is based on."""
        loaded = np.load(self._next / TAIL)
        tail = Tail(loaded["users"], loaded["champion"], loaded["challenger"])
        above = paired_loss(Tail(tail.users, loaded["popularity"], tail.challenger))
        history = read_updates(self._models)
        problems = after_training({**line, **judged}, history, is_finite=True, above_popularity=above)
        verdict = judge(tail, earlier_tails(self._models), checks_passed=not problems, margin=self._settings.margin)
        certain = [problem.text for problem in problems if problem.is_certain]
        sentence = f"refused: {certain[0]}" if certain else verdict.sentence
        return {
            "gate": verdict.figures() | {"new_items": judged["new_items"]}, "lists": judged["lists"],
            "decision": "refused" if certain else verdict.decision, "taken": verdict.is_taken and not certain,
            "reasons": [sentence, *(problem.text for problem in problems if not problem.is_certain)],
            "version": line["time"],
        }  # fmt: skip

    def _end(self, line: dict[str, Any]) -> Outcome:
        """Write down the decision, and act on it."""

        def end() -> dict[str, Any]:
            atomic_write(self._next / DECISION, json.dumps(line))
            return finish(self._models)

        return Outcome(**self._steps.first(end))

    def _begin(self) -> dict[str, Any]:
        """Return what the update is: as it was begun before, if the input and the model are the same ones.

        An older one that was decided is finished first; if it was of the same input, its outcome is returned.
        """
        self._next.mkdir(exist_ok=True)
        file = self._next / UPDATE_PLAN
        about = {"settings": dict(self._given), "full": self._full, "accept": self._accept, "events": self._events}
        key = hashlib.sha256(json.dumps([about, _stamps(self._input)], sort_keys=True).encode()).hexdigest()
        if (self._next / DECISION).is_file():
            is_same = json.loads((self._next / DECISION).read_text(encoding="utf-8"))["key"] == key
            done = finish(self._models)
            if is_same:
                return done
            self._next.mkdir()
        champion = read_aliases(self._models)[CHAMPION]
        if file.is_file():
            begun: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            if (begun["key"], begun["champion"]) == (key, champion):
                logger.info(f"goes on with the update that began at {begun['began']}")
                return begun
            logger.info(f"the unfinished update that began at {begun['began']} is given up: it is of other rows")
        withdraw_directory(self._next)
        self._next.mkdir()
        now = datetime.now(UTC)
        plan = {"time": new_version_name(self._models, now), "began": now.isoformat(timespec="seconds")}
        plan |= {"key": key, "champion": champion}
        atomic_write(file, json.dumps(plan))
        return plan

    def _claim(self, update: str) -> dict[str, int]:
        """Let this update take the events that no other one has appended, and return how many there are."""
        events = Events(self._events)
        n_events = events.claim(update, appended_by(self._models))
        events.close()
        return {"events": n_events}

    def _append(self, update: str) -> dict[str, Any]:
        """Append the rows, and return what they are, as `updates.jsonl` has it."""
        began, given = time.monotonic(), self._input
        if self._events:
            columns = read_metadata(self._dataset)["columns"]
            given = Overrides({**settings_to_read(self._events, update, columns), **given}, given.typed)
        config = settings_to_append(self._dataset, given)
        new = append(
            self._dataset, config, self._next / DATASET, tail=self._settings.tail, scored=self._next / "day",
            overlap_hours=self._settings.overlap_hours,
        )  # fmt: skip
        lengths = read_metadata(self._next / DATASET)["lengths"]
        return {
            "input": {name: value for name, value in origin_of(config.data).items() if name != "source"},
            "day": list(new.span),
            "last": new.last,
            "rows": {
                "read": new.rows + new.future, "new": new.new, "known": new.rows - new.new, "late": new.late,
                "future": new.future, "bad": new.bad, "guests": new.guests,
            },
            "users": {"day": new.users, "new": new.new_users, "largest": new.largest},
            "items": {"day": new.items, "new": new.new_items},
            "shift": new.shift,
            "lengths": {name: lengths[name] for name in ("median", "mean")},
            "seconds": time.monotonic() - began,
        }  # fmt: skip

    def _keep_dataset(self) -> dict[str, Any]:
        """Let the next dataset be the one that is there, as links."""
        shutil.rmtree(self._next / DATASET, ignore_errors=True)
        link_folder(self._dataset, self._next / DATASET)
        return {}

    def _score(self, champion: Trained) -> dict[str, Any]:
        """Return the figures of the champion on the first new item of each user, the second one if the user is new."""
        folder = self._next / "day"
        if not _n_tested(folder):
            return {"users": 0}
        test = rank_test(_to_rank(champion, folder), champion, baselines=[BASELINE], counted=self._dataset)
        ranks, is_user = test.ranks.get(TEST), test.users < read_metadata(self._dataset)["users"]
        is_item = test.targets < champion.n_items
        figures = _figures(ranks, is_user) | {
            "known_items": _figures(ranks, is_user & is_item),
            "new_items": {"targets": int((is_user & ~is_item).sum())},
            "new_users": _figures(ranks, ~is_user),
        }
        for name, kind in (("popularity", POPULARITY_BASELINE), ("baseline", BASELINE)):
            figures[name] = {"kind": kind, **_figures(test.ranks.get(kind), is_user)}
        return figures | ({"order": dict(test.later)} if test.later else {})

    def _train(self, champion: Trained) -> None:
        """Make the run of the challenger in `next`, and train it."""
        folder, chosen = self._next / RUN, None
        if self._full:
            begun = self._steps.first(lambda: bool(found(folder / CHECKPOINTS)))
            self._steps.first(lambda: None if begun else shutil.rmtree(folder, ignore_errors=True))
            if not begun:
                run_training(self._anew(folder))
                return
        else:
            chosen = self._next / WINDOWS
            self._steps.first(lambda: chosen.is_file() or self._choose_windows(champion, chosen))
            self._steps.once(self._next / "extended.json", lambda: self._extend(champion, folder))
        settings = load_run_settings(None, Overrides({"run.resume": str(folder)}), looks_around=False)
        if settings.finished is None:
            run_training(settings.config, windows=chosen)

    def _anew(self, folder: Path) -> Config:
        """Return the settings of the first version, for a run in `folder` on all rows."""
        overrides = Overrides({"run.dir": str(folder.parent), "run.name": folder.name, **self._run_settings})
        return load_config(self._models / CONFIG, with_dataset(str(self._next / DATASET), overrides))

    def _choose_windows(self, champion: Trained, file: Path) -> int:
        """Write down the windows that the challenger is trained on, and return how many there are."""
        length, step, seed = (
            int(champion.settings[name]) for name in ("model.max_len", "training.sliding_step", "training.seed")
        )
        dataset, older = (open_dataset(place, verify=False) for place in (self._next / DATASET, self._dataset))
        windows = dataset.windows(max_len=length, step=step or length)
        seed += int(dataset.metadata[APPENDED])
        chosen = choose_windows(windows, older.histories, replay=self._settings.replay, seed=seed)
        write_windows(file, chosen)
        logger.info(f"trains on {len(chosen):,} of {len(windows):,} windows")
        return len(chosen)

    def _extend(self, champion: Trained, folder: Path) -> dict[str, Any]:
        """Make the run of the challenger from the champion, with the settings for an update."""
        shutil.rmtree(folder, ignore_errors=True)
        first, n_windows = load_config(self._models / CONFIG), self._n_windows
        least_steps = STEPS_OF_SMALL_DAY * self._steps.world_size
        per_step = max(1, min(int(first.training.per_device), n_windows // least_steps))
        rate = first.training.rate
        if first.training.optimizer == "muon":
            rate *= per_step / first.training.per_device  # as "auto" does
        changed = {
            "run.dir": str(self._next), "run.name": folder.name, "training.n_epochs": EPOCHS,
            "training.max_minutes": self._settings.minutes, "training.per_device_train_batch_size": per_step,
            # at the end: few of the users who are validated have new rows
            "training.eval_every_n_epochs": self._run_settings.get("training.n_epochs", EPOCHS),
            "training.learning_rate": rate,
            "parallelism.sparse_learning_rate": first.parallelism.sparse_learning_rate,
            **self._run_settings,
        }  # fmt: skip
        overrides = with_dataset(str(self._next / DATASET), Overrides(changed))
        extended = extend(champion, self._models, overrides, may_keep_old=False)
        return {"new_items": extended.dataset.n_items - champion.n_items}

    @property
    def _n_windows(self) -> int:
        return len(np.load(self._next / WINDOWS, mmap_mode="r"))

    def _judge(self, champion: Trained) -> dict[str, Any]:
        """Return the figures of the challenger on what was kept from training, and keep the gains of both models."""
        challenger, folder = find_trained(self._next / RUN), self._next / DATASET
        if not _n_tested(folder):
            users, nothing = np.zeros(0, np.int64), np.zeros(0)
            file = self._next / TAIL
            self._steps.first(
                lambda: np.savez(file, users=users, champion=nothing, challenger=nothing, popularity=nothing)
            )
            return {"new_items": {"targets": 0}, "lists": {"users": 0}}
        n_items, n_known = challenger.n_items, champion.n_items
        same = np.where(np.arange(n_items) < n_known, np.arange(n_items), NO_ITEM).astype(np.int32)
        before, after = (rank_test(_to_rank(one, folder), one, known=same) for one in (champion, challenger))
        whole = after if n_items == n_known else rank_test(_to_rank(challenger, folder), challenger)
        if self._steps.rank:
            return {}
        is_known = before.targets < n_known
        ranks_of_models = before.ranks[TEST], after.ranks[TEST], after.ranks[POPULARITY_BASELINE]
        champion_gains, challenger_gains, popularity = (_ndcg(ranks[is_known]) for ranks in ranks_of_models)
        np.savez(
            self._next / TAIL, users=before.users[is_known].astype(np.int64), champion=champion_gains,
            challenger=challenger_gains, popularity=popularity,
        )  # fmt: skip
        figures = _figures(whole.ranks[TEST], ~is_known)
        return {
            "new_items": {"targets": figures.pop("users"), **figures},
            "lists": list_figures(whole.lists, before.lists, n_items),
        }

    def _together(self, name: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return what `work` returns, which all processes do together, or what it returned before."""
        file, began = self._next / f"{name}.json", time.monotonic()
        if self._steps.first(file.is_file):
            return self._steps.once(file, dict)
        result = work()
        return self._steps.once(file, lambda: {**result, "seconds": time.monotonic() - began})


def _without_version(decision: str, reasons: Sequence[str]) -> dict[str, Any]:
    """Return a decision that was made before there was a version to judge."""
    return {
        "decision": decision, "taken": False, "reasons": [f"{decision}: {reasons[0]}", *reasons[1:]], "version": None,
    }  # fmt: skip


def _to_rank(trained: Trained, folder: Path) -> Config:
    """Return the settings of a run to rank the dataset at `folder`."""
    assert trained.run is not None, "a version is a run"
    changed = {"data.dataset_dir": str(folder), "evaluation.protocols": ["full"], **WITHOUT_STATE}
    return load_config(trained.run / CONFIG, Overrides(changed))


def _n_tested(folder: Path) -> int:
    return int(read_metadata(folder)["test_users"])


def _ndcg(ranks: Int32s) -> Float64s:
    return dict(gains_of(ranks, [10]))[NDCG]


def _figures(ranks: Int32s | None, chosen: Bools | None = None) -> dict[str, Any]:
    """Return the number of users, HR@10 and NDCG@10 of those `chosen`."""
    if ranks is None or not len(ranks := ranks if chosen is None else ranks[chosen]):
        return {"users": 0}
    values = dict(gains_of(ranks, [10]))
    return {"users": len(ranks), **{name: float(values[name].mean()) for name in ("HR@10", NDCG)}}


def _stamps(given: Mapping[str, Any]) -> list[Any]:
    """Return the sizes and times of the files that the settings name: another file of this name is another input."""
    paths = [path for name in ("data.path", "data.items_path") for path in sorted(glob(str(given.get(name, ""))))]
    return [(path, os.stat(path).st_size, os.stat(path).st_mtime_ns) for path in paths]
