"""Processes that differ, or of which one cannot begin, all say so before any of them waits for another."""

from typing import Any

import pytest

from tests.processes import jobs

DIFFERS = (
    'process 2 on host2 differs from process 0 on host0: training.seed = "b", not "a"; start all hosts with the same '
    "settings"
)


@pytest.mark.parametrize(
    ("parts", "ends"),
    [
        (["a", "a", "a"], [("agreed", "a")] * 3),
        (["a", "a", "b"], [("UserError", DIFFERS)] * 3),
        (["a", "fails", "b"], [("UserError", "process 1 on host1: no dataset folder")] * 3),
        (["fails", "fails", "fails"], [("DataError", "no dataset folder")] * 3),
        (
            ["a", "crashes", "a"],
            [
                ("UserError", "process 1 on host1: ZeroDivisionError: in a line"),
                ("ZeroDivisionError", "in a line\nand another"),
                ("UserError", "process 1 on host1: ZeroDivisionError: in a line"),
            ],
        ),
        (
            ["a", "never comes", "a"],
            [
                ("UserError", "process 1 of 3 has not come within 2 s; look at what its host says, and start it "
                 "within that time"),
                ("", ""),
                ("UserError", "process 1 of 3 has not come within 2 s; look at what its host says, and start it "
                 "within that time"),
            ],
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value[0], str) else "",
)  # fmt: skip
def test_all_processes_end_alike(pools: Any, parts: list[str], ends: list[tuple[str, str]]) -> None:
    assert pools(3).run(jobs.begin, " ".join(parts), parts) == ends


def test_without_the_first_process_the_others_end_too(pools: Any) -> None:
    _, *others = pools(3).run(jobs.begin, "no first", ["never comes", "a", "a"])
    for kind, text in others:
        assert kind == "RunInterruptedError"
        assert text.startswith("the first process of this run does not answer (wait timeout after 4000ms, ")
