"""What differs between the processes of a run, in one line; that all raise it: test_agreement_together.py."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from bert4rec.config.tables import Config
from bert4rec.training import agreement
from bert4rec.training.agreement import Facts, Report, facts_of, late_host, problem_of

FIRST = facts_of(Config().model_dump(mode="json"), "9bc1" * 16, "cpu")


def changed(**kinds: dict[str, Any]) -> Facts:
    """The facts of the first process, with changes by kind."""
    return {kind: values | kinds.get(kind, {}) for kind, values in FIRST.items()}


def problem_with(*facts: Facts) -> str:
    """What is said where the first process has `FIRST`, and others these facts, on a host each."""
    every = [FIRST, *facts]
    reports = [
        Report(rank, f"host{rank}", checksum=json.dumps(mine, sort_keys=True)) for rank, mine in enumerate(every)
    ]
    return problem_of(reports, every.__getitem__)


VERSIONS = "install the same versions on all hosts"
SETTINGS = "start all hosts with the same settings"
DATASET = "make the dataset once and copy its folder to all hosts"


def test_processes_that_have_the_same_have_no_problem() -> None:
    assert problem_with() == ""
    assert problem_with(changed(), changed()) == ""


@pytest.mark.parametrize(
    ("kinds", "named", "advice"),
    [
        (
            {"settings": {"training.learning_rate": 0.01}}, "training.learning_rate = 0.01, not 0.001", SETTINGS,
        ),
        ({"settings": {"parallelism.mode": "ddp"}}, 'parallelism.mode = "ddp", not "dmp"', SETTINGS),
        ({"settings": {"model.output_bias": False}}, "model.output_bias = false, not true", SETTINGS),
        ({"settings": {"training.rho": 1}}, "training.rho = 1, not missing", SETTINGS),
        ({"dataset": {"dataset (fingerprint)": "3fa93fa93fa9"}},
         'dataset (fingerprint) = "3fa93fa93fa9", not "9bc19bc19bc1"', DATASET),
        ({"versions": {"torch": "2.13.0+cu126"}}, f'torch = "2.13.0+cu126", not "{torch.__version__}"', VERSIONS),
        ({"device": {"device": "cuda"}}, 'device = "cuda", not "cpu"',
         'set parallelism.device = "cpu", or start on hosts with GPUs only'),
        (
            {"settings": {"training.learning_rate": 0.01, "model.dropout": 0.2}},
            'model.dropout = 0.2, not "auto"; training.learning_rate = 0.01, not 0.001', SETTINGS,
        ),
        (
            {"versions": {"torchrec": "1.7.0"}, "dataset": {"dataset (fingerprint)": "3fa93fa93fa9"},
             "settings": {"training.seed": 2, "training.n_epochs": 3, "run.resume": "auto"}},
            f'torchrec = "1.7.0", not "{FIRST["versions"]["torchrec"]}"; dataset (fingerprint) = "3fa93fa93fa9", not '
            '"9bc19bc19bc1"; training.n_epochs = 3, not 200 (2 more differences)',
            f"{VERSIONS}; {DATASET}; {SETTINGS}",
        ),
    ],
)  # fmt: skip
def test_a_difference_is_one_line(kinds: dict[str, dict[str, Any]], named: str, advice: str) -> None:
    other = changed(**kinds)
    assert problem_with(other) == f"process 1 on host1 differs from process 0 on host0: {named}; {advice}"


def test_what_is_evaluated_must_be_the_same() -> None:
    ones, others = ({"weights": {"weights (checksum)": checksum}} for checksum in ("3fa9", "9bc1"))
    reports = [Report(rank, f"host{rank}", checksum=str(facts)) for rank, facts in enumerate((ones, others))]
    assert problem_of(reports, [ones, others].__getitem__) == (
        'process 1 on host1 differs from process 0 on host0: weights (checksum) = "9bc1", not "3fa9"; name the same '
        "weights on all hosts"
    )


def test_the_first_process_that_differs_is_named_and_the_others_counted() -> None:
    """By asking for the facts of two processes, however many differ."""
    slow, fast = changed(), changed(settings={"training.learning_rate": 0.01})
    line = (
        "process 2 on host2 differs from process 0 on host0: training.learning_rate = 0.01, not 0.001; "
        "start all hosts with the same settings"
    )
    assert problem_with(slow, fast) == line
    assert problem_with(slow, fast, fast) == line + " (1 more process differs)"
    assert problem_with(slow, fast, slow, fast, fast) == line + " (2 more processes differ)"
    reports = [Report(rank, "host", checksum=str(rank > 2)) for rank in range(9)]
    asked: list[int] = []

    def read(rank: int) -> Facts:
        asked.append(rank)
        return fast if rank else FIRST

    assert problem_of(reports, read).endswith(" (5 more processes differ)")
    assert sorted(asked) == [0, 3]


@pytest.mark.parametrize(
    ("errors", "line"),
    [
        (["", "no folder", ""], "process 1 on host1: no folder"),
        (["gone", "", "torn"], "process 0 on host0: gone (1 more process has failed)"),
        (["gone", "gone", "torn"], "process 0 on host0: gone (2 more processes have failed)"),
        (["gone", "gone", "gone"], "gone"),
    ],
)
def test_what_one_process_cannot_is_said_of_it(errors: list[str], line: str) -> None:
    """Before any comparison: a process that has failed has no facts."""
    reports = [Report(rank, f"host{rank}", error=error) for rank, error in enumerate(errors)]
    assert problem_of(reports, lambda rank: FIRST) == line


def test_what_every_host_cannot_is_said_as_by_one_process() -> None:
    """Though only one process of a host looks for it; two launchers on a machine are two hosts."""
    errors = {(0, 0): "torn", (0, 1): "", (1, 0): "torn", (1, 1): ""}
    reports = [Report(rank, "host", str(node), error=text) for rank, ((node, _), text) in enumerate(errors.items())]
    assert problem_of(reports, lambda rank: FIRST) == "torn"
    assert problem_of(reports[1:], lambda rank: FIRST) == "process 2 on host: torn"


def test_every_setting_is_compared_but_those_that_name_places(small_config: Callable[..., Config]) -> None:
    settings = facts_of(small_config().model_dump(mode="json"), "", "cpu")["settings"]
    tables = {name: set(keys) for name, keys in small_config().model_dump(mode="json").items()}
    tables["run"] -= {"dir", "name"}
    del tables["data"]
    assert set(settings) == {f"{table}.{key}" for table, keys in tables.items() for key in keys}
    assert settings["training.per_device_train_batch_size"] == 16
    assert {"run.resume", "run.init_from", "run.reset_optimizer", "checkpoint.async"} <= set(settings)


def test_the_versions_tell_builds_and_sources_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    versions = FIRST["versions"]
    assert versions["torch"] == torch.__version__
    monkeypatch.setattr("bert4rec.training.agreement.__file__", str(tmp_path / "training" / "agreement.py"))
    checksums = []
    for name, text in [("a.py", "x"), ("a.py", "y"), ("b.py", ""), ("notes.txt", "no source")]:
        (tmp_path / name).write_text(text)
        checksums.append(facts_of({}, "", "cpu")["versions"]["bert4rec (checksum)"])
    assert len({versions["bert4rec (checksum)"], *checksums}) == 4
    assert checksums[2] == checksums[3]


def test_who_came_last_is_named_where_others_waited_for_long() -> None:
    """By the ages of the launchers, in seconds, whatever the hosts' clocks say."""

    def late(**ages: float) -> str:
        return late_host([Report(rank, host, age=age) for rank, (host, age) in enumerate(ages.items())])

    assert late(alone=400.0) == ""
    assert late(first=12.0, second=11.0, third=2.5) == ""
    assert late(first=14.0, second=317.4, third=15.0) == "second has waited 5:03 for first"


def test_a_process_that_comes_as_one_looks_who_is_missing_is_not_missing() -> None:
    class Store(dist.HashStore):
        def wait(self, keys: list[str], timeout: timedelta) -> None:
            self.set(keys[0], "here")
            raise dist.DistStoreError("timed out")

    assert agreement._wait_for_all(Store(), ["report/0"]) == []
