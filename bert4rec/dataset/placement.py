"""Which host has which part of a dataset, if each host holds only some: the rules that all processes share.

A part is a range of users: a file of `histories/` and the file of the same name of `negatives/`. All other files of a
dataset folder are on every host.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bert4rec.dataset.format import EVALUATED, FOLDERS
from bert4rec.runtime.errors import DataError

FILES_NAMED = 4  # missing files that a message names


class Held(NamedTuple):
    """The report of a process: its `host`, and the parts there with the number of held-out users by split.

    Only one process of a host reports parts.
    """

    host: str
    parts: dict[str, dict[str, int]]


@dataclass(frozen=True)
class Placement:
    """The hosts of a run and their parts, as seen by the process `rank`.

    `hosts` are the ranks of each host, in the order of their first ranks. `owners` are the numbers of the hosts that
    the parts belong to, in the order of the users; `held_out` the numbers of users of each part, by split.
    """

    rank: int
    hosts: tuple[tuple[int, ...], ...]
    owners: Mapping[str, int]
    held_out: Mapping[str, Sequence[int]]

    @property
    def host(self) -> int:
        """Return the number of this process's host."""
        return next(number for number, ranks in enumerate(self.hosts) if self.rank in ranks)

    @property
    def place(self) -> int:
        """Return the number of this process among those of its host."""
        return self.hosts[self.host].index(self.rank)

    @property
    def n_local(self) -> int:
        """Return the number of processes of this host."""
        return len(self.hosts[self.host])

    @property
    def n_processes(self) -> int:
        """Return the number of processes of all hosts."""
        return sum(map(len, self.hosts))

    @property
    def parts(self) -> list[str]:
        """Return the parts that belong to this host."""
        return [part for part, host in self.owners.items() if host == self.host]

    @property
    def in_order(self) -> list[int]:
        """Return the numbers of the hosts in the order of their first parts, whatever their ranks."""
        return [*dict.fromkeys(self.owners.values())]

    @property
    def checksum(self) -> str:
        """Return a checksum of the parts and the number of processes of each host: an epoch's order depends on both.

        A restarted launcher may give the hosts other ranks, which changes nothing.
        """
        content = [
            [len(self.hosts[host]), [part for part, owner in self.owners.items() if owner == host]]
            for host in self.in_order
        ]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]

    def reader(self, host: int) -> int:
        """Return the rank of the process that reads for this one on a `host`; the processes there take turns."""
        return self.hosts[host][self.rank % len(self.hosts[host])]


def files_by_host(metadata: Mapping[str, Any]) -> set[str]:
    """Return the files of a dataset that may be on other hosts."""
    return {name for name in metadata["files"] if name.endswith(".arrow") and name.partition("/")[0] in FOLDERS}


def parts_here(folder: Path, parts: Sequence[str]) -> list[str]:
    """Return the `parts` that have all their files in the dataset `folder`."""
    return [part for part in parts if all((folder / name / part).is_file() for name in FOLDERS)]


def place(folder: Path, parts: Sequence[str], reports: Sequence[Held], rank: int) -> Placement:
    """Return where the `parts` are by the `reports` of all processes: a part belongs to the first host that has it.

    Raises `DataError` for a part that no host has, and for a host to which no part belongs.
    """
    by_host: dict[str, list[int]] = {}
    for number, report in enumerate(reports):
        by_host.setdefault(report.host, []).append(number)
    held = [{part: n for number in ranks for part, n in reports[number].parts.items()} for ranks in by_host.values()]
    owners = {part: next((host for host, there in enumerate(held) if part in there), -1) for part in parts}
    if missing := [f"{name}/{part}" for part, host in owners.items() if host < 0 for name in FOLDERS]:
        more = f" and {len(missing) - FILES_NAMED} more" if len(missing) > FILES_NAMED else ""
        raise DataError(
            f"{folder}: no host has {', '.join(missing[:FILES_NAMED])}{more}; copy the files of the same name in "
            f"{' and '.join(f'{name}/' for name in FOLDERS)} to one of the hosts"
        )
    if idle := [name for number, name in enumerate(by_host) if number not in owners.values()]:
        raise DataError(
            f"{folder}: no part belongs to {idle[0]}, since an earlier host has each part that it has; remove some "
            "from the earlier host, or start on fewer hosts"
        )
    held_out = {split: [held[host][part][split] for part, host in owners.items()] for split in EVALUATED}
    return Placement(rank, tuple(tuple(ranks) for ranks in by_host.values()), owners, held_out)
