"""Who is compared with whom, on which datasets: the trainings of a benchmark, with all their settings."""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from bert4rec.config.abilities import UNTRAINED, is_trained
from bert4rec.config.load import Overrides, load_config, parse_command_line, settings_file
from bert4rec.config.suggestions import did_you_mean, nearest_values
from bert4rec.config.tables import Config, Model
from bert4rec.runtime.errors import SettingsError

SPLITS = ("leave_one_out", "time")
KINDS = get_args(Model.model_fields["kind"].annotation)
ALL_UNTRAINED = "untrained"  # the word for all kinds without training
OWN = {  # what a benchmark says itself → by what it is told
    "model.kind": "name the kind as a contestant", "preprocessing.split": "--splits", "training.seed": "--seeds",
    "run.dir": "--output", "run.name": "--output", "run.resume": "the same command goes on by itself",
    "run.init_from": "bert4rec train", "run.reset_optimizer": "bert4rec train",
}  # fmt: skip


@dataclass(frozen=True)
class Contestant:
    """A `kind` of model with settings of its `own` beside those that all share, or what a settings `file` says."""

    name: str
    kind: str = ""
    file: str = ""
    own: Overrides = field(default_factory=Overrides)

    @property
    def folder_name(self) -> str:
        """As the folders of its runs begin."""
        return re.sub(r"[^\w.-]+", "-", self.name).strip("-")


@dataclass(frozen=True)
class Job:
    """One training: who, on which split, with which seed (None: nothing is drawn), and its `settings`, a word each."""

    contestant: str
    split: str
    seed: int | None
    config: Config
    settings: list[str]

    @property
    def name(self) -> str:
        """Of its run folder."""
        return self.config.run.name

    def __str__(self) -> str:
        return f"{self.contestant}, {self.split}" + (f", seed {self.seed}" if self.seed is not None else "")


@dataclass(frozen=True)
class Contest:
    """What was asked for: contestants on one dataset, split in several ways."""

    contestants: Sequence[Contestant]
    file: str | None
    overrides: Overrides
    seeds: Sequence[int]
    output: Path

    def jobs(self, split: str) -> Iterator[Job]:
        """The trainings on a split, contestant by contestant."""
        for contestant in self.contestants:
            seeds = self.seeds or [self._config(contestant, {}).training.seed]
            is_drawn = is_trained(self._config(contestant, {}).model.kind)
            for seed in seeds if is_drawn else [None]:
                yield self._job(contestant, split, seed)

    def _job(self, contestant: Contestant, split: str, seed: int | None) -> Job:
        name = "-".join([contestant.folder_name, split, *([] if seed is None else [f"seed{seed}"])])
        own = {
            "preprocessing.split": split,
            "data.dataset_dir": str(self.dataset(split)),
            **({} if seed is None else {"training.seed": seed}),
            "run.dir": str(self.output),
            "run.name": name,
        }
        config = self._config(contestant, own)
        named = [f"--config={file}"] if (file := contestant.file or self.file) else []
        kind = [f"--model.kind={contestant.kind}"] if contestant.kind else []
        given = zip(self.overrides, self.overrides.options, strict=True)
        others = [option for key, option in given if key not in own and key not in contestant.own]
        options = [f"--{key}={value}" for key, value in own.items()]
        settings = [*named, *others, *kind, *contestant.own.options, *options]
        return Job(contestant.name, split, seed, config, settings)

    def dataset(self, split: str) -> Path:
        """The folder of the dataset: that of the split by time has `-time` behind its name."""
        folder = self._config(self.contestants[0], {}).data.folder
        return folder.with_name(f"{folder.name}-time") if split == "time" else folder

    def _config(self, contestant: Contestant, own: dict[str, object]) -> Config:
        kind = {"model.kind": contestant.kind} if contestant.kind else {}
        typed = self.overrides.typed | contestant.own.typed
        changed = Overrides(self.overrides | kind | contestant.own | own, typed)
        return load_config(contestant.file or self.file, changed)

    def check(self) -> None:
        """Raise `SettingsError` for settings that cannot be, and for contestants that need different datasets."""
        first, *others = self.contestants
        needed = self._dataset_settings(first)
        for contestant in others:
            for name, value in self._dataset_settings(contestant).items():
                if value != needed[name]:
                    raise SettingsError(
                        f"{contestant.name} and {first.name} need different datasets: {name} = {value} and "
                        f"{needed[name]}; choose one for all: --{name}={needed[name]}"
                    )

    def _dataset_settings(self, contestant: Contestant) -> dict[str, object]:
        config = self._config(contestant, {"preprocessing.split": SPLITS[0]})
        recipe = {f"preprocessing.{key}": value for key, value in config.preprocessing.recipe.items()}
        return {"data.dataset_dir": str(config.data.folder), "model.max_len": config.model.max_len, **recipe}


def make_contest(
    names: Sequence[str], file: str | None, overrides: Overrides, *, seeds: str | None, output: Path | None
) -> Contest:
    """What was typed, checked. Raises `SettingsError`."""
    _refuse_own(overrides)
    file = settings_file(file)
    contest = Contest(_contestants(names), file, overrides, _seeds(seeds), output or Path())
    contest.check()
    if output is None:
        run_dir = load_config(file, overrides).run.dir
        output = Path(run_dir) / f"benchmark-{contest.dataset(SPLITS[0]).name}"
    return Contest(contest.contestants, file, overrides, contest.seeds, output)


def _refuse_own(overrides: Overrides) -> None:
    for key, typed in overrides.typed.items():
        if key in OWN:
            raise SettingsError(f"{typed}: a benchmark sets {key} itself; instead: {OWN[key]}")


def chosen_splits(text: str | None) -> tuple[str, ...]:
    """The splits of `--splits`, all where nothing was said. Raises `SettingsError`."""
    names = tuple(dict.fromkeys(text.split(","))) if text is not None else SPLITS
    for name in names:
        if name not in SPLITS:
            raise SettingsError(f"--splits={text}: no split {name}; there are {', '.join(SPLITS)}")
    return names


def _seeds(text: str | None) -> list[int]:
    try:
        return list(dict.fromkeys(map(int, text.split(",")))) if text is not None else []
    except ValueError:
        raise SettingsError(f"--seeds={text}: must be whole numbers with commas between them, like 1,2,3") from None


def _contestants(names: Sequence[str]) -> list[Contestant]:
    words = [kind for name in names for kind in (UNTRAINED if name == ALL_UNTRAINED else [name])]
    found: dict[str, Contestant] = {}
    for word in words:
        contestant = _contestant(word)
        if found.setdefault(contestant.folder_name, contestant) != contestant:
            problem = f"another contestant is called {contestant.name}, too"
            raise SettingsError(f"{word}: {problem}; give it a name: NAME={word}")
    return list(found.values())


def _contestant(word: str) -> Contestant:
    """What `[NAME=]KIND[:key=value,key=value]` or `[NAME=]FILE` says; a key without a table is one of [model]."""
    named = re.fullmatch(r"([\w .-]+)=(.+)", word)
    name, meant = named.groups() if named else ("", word)
    kind, has_own, text = meant.partition(":")
    if kind in KINDS:
        pairs = re.split(r",(?=[\w.]+=)", text) if has_own else []
        own = parse_command_line([f"--{'' if '.' in pair.split('=')[0] else 'model.'}{pair}" for pair in pairs])[1]
        _refuse_own(own)
        return Contestant(name or meant, kind=kind, own=own)
    if os.path.isfile(meant):
        return Contestant(name or Path(meant).stem, file=meant)
    choices = [*KINDS, ALL_UNTRAINED]
    nearest = did_you_mean(nearest_values(kind, choices, {})) or f"; kinds: {', '.join(choices)}"
    raise SettingsError(f"{word}: neither a kind of model nor a settings file{nearest}")
