"""What differs between the processes of a run is named, and all processes raise it."""

import json
import re
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from bert4rec.config.load import flat
from bert4rec.config.tables import Config
from bert4rec.runtime.errors import DataError
from bert4rec.training import agreement
from bert4rec.training.agreement import CommonFacts, Report, environment_facts, problem_of
from tests.conftest import long
from tests.fixture_types import Patch, Settings

FIRST = environment_facts(Config().model_dump(mode="json"), "9bc1" * 16, "cpu")


def changed(**kinds: dict[str, Any]) -> CommonFacts:
    """The facts of the first process, with changes by kind."""
    return {kind: values | kinds.get(kind, {}) for kind, values in FIRST.items()}


def problem_with(*facts: CommonFacts) -> str:
    """What is said where the first process has `FIRST`, and others these facts, on a host each."""
    every = [FIRST, *facts]
    return problem_of([Report(rank, f"host{rank}", facts=facts) for rank, facts in enumerate(every)])


def begin(name: str, parts: list[str]) -> tuple[str, str]:
    """How it ends on this process, where each plays a part: its own fact, "fails", "crashes", "never comes"."""
    part, rank = parts[dist.get_rank()], dist.get_rank()

    def prepare() -> tuple[str, agreement.CommonFacts]:
        if part == "fails":
            raise DataError("no dataset folder")
        if part == "crashes":
            raise ZeroDivisionError("in a line\nand another")
        return part, {"versions": {}, "dataset": {}, "device": {}, "settings": {"training.seed": part}}

    if part == "never comes":
        return "", ""
    store = dist.PrefixStore(name, dist.distributed_c10d._get_default_store())
    with (
        mock.patch.object(agreement, "SECONDS_TO_COME", 0.5 if "never comes" in parts else 60.0),
        mock.patch.object(agreement, "SECONDS_TO_READ", 1.0),
        mock.patch("socket.gethostname", return_value=f"host{rank}"),
    ):
        try:
            return "agreed", agreement.preflight(store, rank, dist.get_world_size(), prepare)
        except Exception as error:
            return type(error).__name__, str(error)


@pytest.mark.parametrize(
    ("kinds", "named"),
    [
        ({"settings": {"training.rho": 1}}, ["training.rho = 1, not missing"]),
        ({"device": {"device": "cuda"}}, ['device = "cuda", not "cpu"']),
        ({"weights": {"weights (checksum)": "9bc1"}}, ['"9bc1", not missing']),
        (
            {"versions": {"torchrec": "1.7.0"}, "dataset": {"dataset (fingerprint)": "3fa93fa93fa9"},
             "settings": {"training.seed": 2, "training.n_epochs": 3, "run.resume": "auto"}},
            ['torchrec = "1.7.0"', '"3fa93fa93fa9", not "9bc19bc19bc1"', "training.n_epochs = 3, not 200"],
        ),
    ],
)  # fmt: skip
def test_a_difference_is_named_with_both_values(kinds: dict[str, dict[str, Any]], named: list[str]) -> None:
    problem = problem_with(changed() | kinds if "weights" in kinds else changed(**kinds))
    assert [text for text in ["process 1 on host1", "process 0 on host0", *named] if text not in problem] == []


def test_the_first_process_that_differs_is_named_and_the_others_counted() -> None:
    same, other = changed(), changed(settings={"training.learning_rate": 0.01})
    assert problem_with(same, same) == ""
    problem = problem_with(same, other, same, other, other)
    assert "process 2 on host2" in problem
    assert "(2 more " in problem


@pytest.mark.parametrize(
    ("hosts", "errors", "line"),
    [
        ("a b c", ["", "no folder", ""], "process 1 on b: no folder"),
        ("a b c", ["gone", "", "torn"], "process 0 on a: gone (1 more "),
        ("a b c", ["gone", "gone", "torn"], "process 0 on a: gone (2 more "),
        ("a b c", ["gone", "gone", "gone"], "gone"),
        ("a,0 a,0 a,1 a,1", ["torn", "", "torn", ""], "torn"),  # one process of each launcher looks
        ("a,0 a,0 a,1 a,1", ["", "", "torn", ""], "process 2 on a: torn"),
    ],
)
def test_what_one_process_or_all_hosts_cannot(hosts: str, errors: list[str], line: str) -> None:
    places = [host.partition(",") for host in hosts.split()]
    reports = [
        Report(rank, host, node, error=error)
        for rank, ((host, _, node), error) in enumerate(zip(places, errors, strict=True))
    ]
    assert problem_of(reports).startswith(line)


def test_every_setting_is_compared_but_those_that_name_places(small_config: Settings) -> None:
    tables = small_config().model_dump(mode="json")
    settings = environment_facts(tables, "", "cpu")["settings"]
    others = {name for name in flat(tables) if name.startswith("data.")} | {"run.dir", "run.name"}
    compared = {name: value for name, value in flat(tables).items() if name not in others}
    assert settings == compared | {"data.parts_by_host": False}  # by which all processes read


def test_the_versions_tell_builds_and_sources_apart(monkeypatch: Patch, tmp_path: Any) -> None:
    versions = FIRST["versions"]
    assert versions["torch"] == torch.__version__
    monkeypatch.setattr("bert4rec.training.agreement.__file__", str(tmp_path / "training" / "agreement.py"))
    checksums = []
    for name, text in [("a.py", "x"), ("a.py", "y"), ("b.py", ""), ("notes.txt", "no source")]:
        (tmp_path / name).write_text(text)
        checksums.append(environment_facts({}, "", "cpu")["versions"]["bert4rec (checksum)"])
    assert len({versions["bert4rec (checksum)"], *checksums}) == 4
    assert checksums[2] == checksums[3]


def test_a_process_that_comes_as_one_looks_who_is_missing_is_not_missing() -> None:
    class Store(dist.HashStore):
        def wait(self, keys: list[str], timeout: timedelta) -> None:
            self.set(keys[0], json.dumps(Report(0, "host0", facts=FIRST)))
            raise dist.DistStoreError("timed out")

    assert agreement._examine(Store(), 1) == ""


DIFFERS = r'process 2 on host2 .* process 0 on host0: training.seed = "b", not "a"'
MISSING = "process 1 of 3"
CRASH = "process 1 on host1: ZeroDivisionError: in a line"


@pytest.mark.parametrize(
    ("parts", "ends"),
    [
        (["a", "a", "a"], [("agreed", "a")] * 3),
        (["a", "a", "b"], [("UserError", DIFFERS)] * 3),
        (["a", "fails", "b"], [("UserError", "process 1 on host1: no dataset folder")] * 3),
        (["fails", "fails", "fails"], [("DataError", "no dataset folder")] * 3),
        (["a", "crashes", "a"], [("UserError", CRASH), ("ZeroDivisionError", "line\nand"), ("UserError", CRASH)]),
        (["a", "never comes", "a"], [("UserError", MISSING), ("", ""), ("UserError", MISSING)]),
        long(["never comes", "a", "a"], [("", ""), *[("RunInterruptedError", "first process")] * 2]),
    ],
)
def test_all_processes_end_alike(pools: Any, parts: list[str], ends: list[tuple[str, str]]) -> None:
    for (kind, text), (expected, pattern) in zip(pools(3).run(begin, " ".join(parts), parts), ends, strict=True):
        assert kind == expected
        assert re.search(pattern, text)
