"""Runs as the columns of a comparison: those of one setting that differ in their seed alone are one."""

import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bert4rec.report.compare.runs import Run

SEED = "training.seed"
PLACES = ("data.dataset_dir", "data.path")  # of the dataset, which its fingerprint tells better
MISSING = "–"
SEPARATOR = "; "


@dataclass(frozen=True)
class Column:
    """The runs of one setting, by a letter."""

    letter: str
    runs: Sequence[Run]

    @property
    def title(self) -> str:
        """Above the figures."""
        return self.letter if len(self.runs) == 1 else f"{self.letter} ({len(self.runs)} runs)"

    @property
    def first(self) -> Run:
        """Which stands for all in what they have in common."""
        return self.runs[0]

    @property
    def model(self) -> str:
        """What was trained; reports of an older version had one kind."""
        return str(self.first.report.get("model", "Bert4Rec"))

    @property
    def folders(self) -> str:
        """Of its runs."""
        return ", ".join(str(run.folder) for run in self.runs)

    @property
    def trainings(self) -> list[Mapping[str, Any]]:
        """How each went; none of an evaluation or of what is not trained."""
        return [run.report["training"] for run in self.runs if "training" in run.report]


def columns(runs: Sequence[Run]) -> list[Column]:
    """The columns, in the order of their first runs."""
    groups: list[tuple[dict[str, Any], list[Run]]] = []
    for run in runs:
        key = {"fingerprint": run.fingerprint, "settings": bool(run.settings), **_comparable(run, with_seed=False)}
        joined = (group for other, group in groups if other == key and run.seed not in [one.seed for one in group])
        group = next(joined, None) if run.settings else None
        if group is None:
            groups.append((key, [run]))
        else:
            group.append(run)
    return [Column(letter, group) for letter, (_, group) in zip(_letters(), groups, strict=False)]


def differing_settings(compared: Sequence[Column]) -> dict[str, list[str]]:
    """Setting → its value in each of the columns; of several runs all values."""
    values = [[_comparable(run, with_seed=True) for run in column.runs] for column in compared]
    names = dict.fromkeys(name for of_column in values for of_run in of_column for name in of_run)
    found = {name: [_distinct(of_run.get(name) for of_run in of_column) for of_column in values] for name in names}
    return {name: shown for name, shown in found.items() if len({*shown}) > 1 or SEPARATOR in shown[0]}


def _distinct(values: Iterable[Any]) -> str:
    return SEPARATOR.join(dict.fromkeys(map(_shown, values)))


def _comparable(run: Run, *, with_seed: bool) -> dict[str, Any]:
    """The settings without those of the run folder, and what is set elsewhere."""
    settings = {
        name: value
        for name, value in run.settings.items()
        if not name.startswith("run.") and name not in PLACES and (with_seed or name != SEED)
    }
    dataset = f"{run.report['dataset'].get('source', '?')} {run.fingerprint[:12]}"
    return settings | {"processes": run.report.get("world_size"), "dataset": dataset}


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return MISSING if value is None else str(value)


def _letters() -> Iterator[str]:
    """A, B, …, Z, A1, B1, …"""
    number = 0
    while True:
        yield from (f"{letter}{number or ''}" for letter in string.ascii_uppercase)
        number += 1
