"""The comparison of all processes of a run before any collective.

Every process publishes its facts in the store, or why it cannot start; the first one compares them and publishes what
it finds, which all raise together. In a collective, a process without the dataset would leave the others waiting.
"""

import hashlib
import json
import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

import fbgemm_gpu
import torch
import torch.distributed as dist
import torchrec

from bert4rec.config.load import flat
from bert4rec.runtime.errors import RunInterruptedError, UserError
from bert4rec.runtime.processes import SECONDS_OF_SILENCE, SECONDS_TO_COME

SECONDS_TO_READ = 10.0  # for all to read the findings before the first one ends, and perhaps the store with it
NAMED = 3  # differences that are named; more are counted

Facts: TypeAlias = dict[str, dict[str, Any]]
"""Kind (a key of `ADVICE`) → name → value."""

ADVICE = {
    "versions": "install the same versions on all hosts",
    "dataset": "make the dataset once and copy its folder to all hosts",
    "device": 'set parallelism.device = "cpu", or start on hosts with GPUs only',
    "weights": "name the same weights on all hosts",
    "settings": "start all hosts with the same settings",
}
PLACES = ("data.", "run.dir", "run.name")  # may differ from host to host: a dataset is known by its fingerprint

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Report(NamedTuple):
    """Holds what a process publishes: where it is, its facts, or why it cannot start.

    `node` is the number of its launcher on the host.
    """

    rank: int
    host: str
    node: str = ""
    facts: Facts | None = None
    error: str = ""

    def __str__(self) -> str:
        return f"process {self.rank} on {self.host}"


def environment_facts(settings: Mapping[str, Mapping[str, Any]], fingerprint: str, device_type: str) -> Facts:
    """Return what must be the same on all processes, for this one: versions, settings, dataset, kind of device."""
    return {
        "versions": {
            "torch": str(torch.__version__),  # with its build: 2.13.0+cpu
            "torchrec": torchrec.__version__,
            "fbgemm_gpu": fbgemm_gpu.__version__,
            "bert4rec (checksum)": _own_checksum(),
        },
        "dataset": {"dataset (fingerprint)": fingerprint[:12]},
        "device": {"device": device_type},
        "settings": {name: value for name, value in flat(settings).items() if not name.startswith(PLACES)},
    }


def preflight(store: dist.Store, rank: int, world_size: int, prepare: Callable[[], tuple[T, Facts]]) -> T:
    """Return what `prepare` returns if its facts are the same on all processes; every process of the run calls this.

    Raises the same `UserError` on every process if any raised one, facts differ, or one never came.
    """
    store = dist.PrefixStore("preflight", store)
    here = Report(rank, socket.gethostname(), os.environ.get("GROUP_RANK", ""))
    refusal: UserError | None = None
    crash: Exception | None = None
    try:
        result, facts = prepare()
        report = here._replace(facts=facts)
    except UserError as error:
        refusal, report = error, here._replace(error=str(error))
    except Exception as error:
        crash, report = error, here._replace(error=f"{type(error).__name__}: {error}".splitlines()[0])
    problem = _exchange(store, report, world_size)
    if crash:
        raise crash
    if problem:
        common = refusal if refusal and str(refusal) == problem else UserError(problem)
        common.is_on_all = True
        raise common
    return result


def _exchange(store: dist.Store, report: Report, world_size: int) -> str:
    """Publish `report`, and return what is wrong with those of all processes, "" for nothing."""
    try:
        store.set(f"report/{report.rank}", json.dumps(report))
        if report.rank:
            store.wait(["findings"], timedelta(seconds=SECONDS_TO_COME + SECONDS_TO_READ))
            problem = store.get("findings").decode()
            if problem and store.add("readers", 1) == world_size - 1:
                store.set("read", "")
            return problem
        problem = _examine(store, world_size)
        store.set("findings", problem)
        if problem and world_size > 1:
            _wait(store, ["read"], SECONDS_TO_READ)
        return problem
    except dist.DistError as error:
        reason = str(error).splitlines()[0]
        raise RunInterruptedError(
            f"the first process of this run does not answer ({reason}); read the output of its host"
        ) from None


def _examine(store: dist.Store, world_size: int) -> str:
    """Return what is wrong with the reports of all processes, or with those that have not come."""
    keys = [f"report/{rank}" for rank in range(world_size)]

    def missing() -> str:
        ranks = [rank for rank, key in enumerate(keys) if not store.check([key])]
        more = _count(len(ranks) - 1, "is missing", "are missing")
        return f"process {ranks[0]} of {world_size}{more}" if ranks else ""

    silence = min(SECONDS_OF_SILENCE, SECONDS_TO_COME / 2)
    if not _wait(store, keys, silence) and (named := missing()):
        logger.info(f"waiting for {named}")
        _wait(store, keys, SECONDS_TO_COME - silence)
    if named := missing():
        return (
            f"{named} did not start within {SECONDS_TO_COME:g} s; read the output of its host, and start it within "
            "that time"
        )
    return problem_of([Report(*json.loads(text)) for text in store.multi_get(keys)])


def _wait(store: dist.Store, keys: list[str], seconds: float) -> bool:
    """Return whether all `keys` are set in time."""
    try:
        store.wait(keys, timedelta(seconds=seconds))
    except dist.DistStoreError:
        return False
    return True


def problem_of(reports: Sequence[Report]) -> str:
    """Return what is wrong with the `reports` of all processes, by rank, in one line; "" if nothing is."""
    failed = [report for report in reports if report.error]
    if failed:
        alike = [report for report in failed if report.error == failed[0].error]
        if _nodes(alike) == _nodes(reports):  # on each perhaps by one process, which looks for all
            return failed[0].error
        more = _count(len(failed) - 1, "process has failed", "processes have failed")
        return f"{failed[0]}: {failed[0].error}{more}"
    first, *others = reports
    differing = [report for report in others if report.facts != first.facts]
    if not differing:
        return ""
    named, advice = _differences(differing[0].facts or {}, first.facts or {})
    more = _count(len(differing) - 1, "process differs", "processes differ")
    return f"{differing[0]} differs from {first}: {named}; {advice}{more}"


def _nodes(reports: Sequence[Report]) -> set[tuple[str, str]]:
    return {(report.host, report.node) for report in reports}


def _differences(facts: Facts, of_first: Facts) -> tuple[str, str]:
    """Return the first differences, and what to do about all of them."""
    pairs = [(kind, facts.get(kind, {}), of_first.get(kind, {})) for kind in ADVICE]
    found = [
        (kind, f"{name} = {_shown(here, name)}, not {_shown(there, name)}")
        for kind, here, there in pairs
        for name in {**here, **there}
        if _shown(here, name) != _shown(there, name)
    ]
    named = "; ".join(text for _, text in found[:NAMED]) + _count(len(found) - NAMED, "difference", "differences")
    return named, "; ".join(dict.fromkeys(ADVICE[kind] for kind, _ in found))


def _shown(facts: Mapping[str, Any], name: str) -> str:
    return json.dumps(facts[name]) if name in facts else "missing"


def _count(n: int, one: str, several: str) -> str:
    return f" ({n} more {one if n == 1 else several})" if n > 0 else ""


def _own_checksum() -> str:
    """Return a checksum of the source files of this program, to find a host that was not updated."""
    folder = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]
