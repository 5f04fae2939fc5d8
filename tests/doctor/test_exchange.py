"""Two processes, by gloo; and where they do not meet."""

import subprocess
from typing import Any

import pytest

from bert4rec.doctor import exchange


def test_two_processes_meet() -> None:
    (found,) = exchange.exchange()
    assert (found.name, found.is_good) == ("gloo", True), found
    assert found.text.startswith("two processes sum up 16 MiB in ")


@pytest.mark.long
def test_an_interface_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nothing0")
    found = exchange.all_reduce("gloo")
    assert found.text.startswith("two processes do not reach each other: ")
    assert found.advice.startswith("GLOO_SOCKET_IFNAME names the network interface")


def test_processes_that_never_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(command: list[str], **_: Any) -> None:
        raise subprocess.TimeoutExpired(command, 120)

    monkeypatch.setattr(subprocess, "run", wait)
    found = exchange.all_reduce("nccl")
    assert found.text == "two processes have not met within 120 s"
    assert "NCCL_P2P_DISABLE=1" in found.advice
