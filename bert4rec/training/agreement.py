"""Compare the facts of all ranks of a run before the first collective.

Every rank publishes its facts in the store, or the reason why it cannot start. Rank zero compares them and publishes
the problem, if any, and every rank raises it. If a rank failed inside a collective, the remaining ranks would hang.
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

SECONDS_TO_READ = 10.0  # the store may end with rank zero, so rank zero waits until all ranks have read the problem
MOST_DIFFERENCES = 3  # number of differences to list; the rest is counted

CommonFacts: TypeAlias = dict[str, dict[str, Any]]
"""Kind (a key of `DIFFERENCE_ADVICE`) → name → value."""

DIFFERENCE_ADVICE = {
    "versions": "install the same versions on all hosts",
    "dataset": "make the dataset once and copy its folder to all hosts",
    "device": 'set parallelism.device = "cpu", or start on hosts with GPUs only',
    "weights": "name the same weights on all hosts",
    "settings": "start all hosts with the same settings",
}
HOST_SETTINGS = ("data.", "run.dir", "run.name")  # may differ between hosts: the fingerprint identifies the dataset

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Report(NamedTuple):
    """The message of a rank: its host, and its facts or the error that prevents its start.

    `node` is the group rank of its launcher.
    """

    rank: int
    host: str
    node: str = ""
    facts: CommonFacts | None = None
    error: str = ""

    def __str__(self) -> str:
        return f"process {self.rank} on {self.host}"


def environment_facts(settings: Mapping[str, Mapping[str, Any]], fingerprint: str, device_type: str) -> CommonFacts:
    """Return the facts of this rank that must be equal on all ranks: versions, settings, dataset and device type."""
    return {
        "versions": {
            "torch": str(torch.__version__),  # with its build: 2.13.0+cpu
            "torchrec": torchrec.__version__,
            "fbgemm_gpu": fbgemm_gpu.__version__,
            "bert4rec (checksum)": _own_checksum(),
        },
        "dataset": {"dataset (fingerprint)": fingerprint[:12]},
        "device": {"device": device_type},
        "settings": {
            name: value
            for name, value in flat(settings).items()
            if name == "data.parts_by_host" or not name.startswith(HOST_SETTINGS)
        },
    }


def preflight(store: dist.Store, rank: int, world_size: int, prepare: Callable[[], tuple[T, CommonFacts]]) -> T:
    """Return the result of `prepare` if its facts are the same on all ranks; every rank of the run calls this.

    Raises the same `UserError` on every rank if a rank raised one, if facts differ, or if a rank did not start.
    """
    store = dist.PrefixStore("preflight", store)
    identity = Report(rank, socket.gethostname(), os.environ.get("GROUP_RANK", ""))
    refusal: UserError | None = None
    crash: Exception | None = None
    try:
        result, facts = prepare()
        report = identity._replace(facts=facts)
    except UserError as error:
        refusal, report = error, identity._replace(error=str(error))
    except Exception as error:
        crash, report = error, identity._replace(error=f"{type(error).__name__}: {error}".splitlines()[0])
    problem = _exchange(store, report, world_size)
    if crash:
        raise crash
    if problem:
        common = refusal if refusal and str(refusal) == problem else UserError(problem)
        common.is_on_all = True
        raise common
    return result


def _exchange(store: dist.Store, report: Report, world_size: int) -> str:
    """Publish `report`, and return the problem with the reports of all ranks, or ""."""
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
    """Return the problem with the reports of all ranks, or which reports are missing; "" if there is no problem."""
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
    """Return whether all `keys` are set within `seconds`."""
    try:
        store.wait(keys, timedelta(seconds=seconds))
    except dist.DistStoreError:
        return False
    return True


def problem_of(reports: Sequence[Report]) -> str:
    """Return the problem with the `reports` of all ranks, in rank order, as one line; "" if there is none."""
    failed = [report for report in reports if report.error]
    if failed:
        same_error = [report for report in failed if report.error == failed[0].error]
        if _nodes(same_error) == _nodes(reports):  # one rank of a node may check on behalf of the node
            return failed[0].error
        more = _count(len(failed) - 1, "process has failed", "processes have failed")
        return f"{failed[0]}: {failed[0].error}{more}"
    first, *rest = reports
    differing = [report for report in rest if report.facts != first.facts]
    if not differing:
        return ""
    named, advice = _differences(differing[0].facts or {}, first.facts or {})
    more = _count(len(differing) - 1, "process differs", "processes differ")
    return f"{differing[0]} differs from {first}: {named}; {advice}{more}"


def _nodes(reports: Sequence[Report]) -> set[tuple[str, str]]:
    return {(report.host, report.node) for report in reports}


def _differences(facts: CommonFacts, first_facts: CommonFacts) -> tuple[str, str]:
    """Return the first `MOST_DIFFERENCES` differences as text, and the advice for all of them."""
    pairs = [(kind, facts.get(kind, {}), first_facts.get(kind, {})) for kind in DIFFERENCE_ADVICE]
    differences = [
        (kind, f"{name} = {_shown(values, name)}, not {_shown(first_values, name)}")
        for kind, values, first_values in pairs
        for name in {**values, **first_values}
        if _shown(values, name) != _shown(first_values, name)
    ]
    more = _count(len(differences) - MOST_DIFFERENCES, "difference", "differences")
    named = "; ".join(text for _, text in differences[:MOST_DIFFERENCES]) + more
    return named, "; ".join(dict.fromkeys(DIFFERENCE_ADVICE[kind] for kind, _ in differences))


def _shown(facts: Mapping[str, Any], name: str) -> str:
    return json.dumps(facts[name]) if name in facts else "missing"


def _count(n: int, one: str, several: str) -> str:
    return f" ({n} more {one if n == 1 else several})" if n > 0 else ""


def _own_checksum() -> str:
    """Return a checksum of the source files of this program; it reveals a host that was not updated."""
    folder = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]
