"""Signals that wait for an answer of the other processes."""

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from bert4rec.runtime.signals import SIGNALS, Interruption
from tests.checks import Capture, Patch


def wait_until(is_so: Callable[[], object]) -> None:
    """However slow the machine is; pytest's own time limit ends a test that waits in vain."""
    while not is_so():
        time.sleep(0.01)


def join_watches() -> None:
    """Wait for the threads of contexts that have ended: each closes a file as its last act."""
    for thread in threading.enumerate():
        if thread.name == "signals":
            thread.join()


def handlers() -> list[object]:
    return [signal.getsignal(number) for number in SIGNALS]


def test_without_an_answer_a_signal_ends_the_process_all_the_same(monkeypatch: Patch, capsys: Capture) -> None:
    """Not by other signals, and not while something is being saved."""
    ended: list[int] = []
    monkeypatch.setattr("os._exit", lambda status: (ended.append(status), interruption.answered()))
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    with Interruption(patience=0.1) as interruption:
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.15)
        assert interruption.number == 0
        with interruption.busy():
            os.kill(os.getpid(), signal.SIGTERM)
            wait_until(lambda: interruption.number)
            time.sleep(0.15)
            assert (ended, interruption.number) == ([], signal.SIGTERM)
        wait_until(lambda: ended)
    signal.signal(signal.SIGUSR1, before)
    assert ended == [143]
    assert capsys.readouterr().err.startswith("SIGTERM: ")


def test_a_signal_in_the_last_moment_does_not_end_what_follows(monkeypatch: Patch) -> None:
    ended: list[int] = []
    monkeypatch.setattr("os._exit", ended.append)
    with Interruption(patience=0.1):
        os.kill(os.getpid(), signal.SIGTERM)
    join_watches()
    assert ended == []


def test_what_was_ignored_stays_so_and_afterwards_all_is_as_before() -> None:
    """nohup ignores SIGHUP; a thread other than the main one leaves signals alone."""

    def inside() -> list[object]:
        with Interruption():
            return handlers()

    before = handlers()
    own = [signal.default_int_handler, signal.SIG_DFL, signal.SIG_IGN]
    try:
        for number, handler in zip(SIGNALS, own, strict=True):
            signal.signal(number, handler)
        with ThreadPoolExecutor(1) as threads:
            assert threads.submit(inside).result() == own
        assert [new != old for new, old in zip(inside(), own, strict=True)] == [True, True, False]
        assert handlers() == own
    finally:
        for number, handler in zip(SIGNALS, before, strict=True):
            signal.signal(number, handler)  # type: ignore[arg-type]


def test_nothing_is_left_open() -> None:
    join_watches()
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with Interruption():
            (watch,) = (thread for thread in threading.enumerate() if thread.name == "signals")
        watch.join()
    assert set(os.listdir("/proc/self/fd")) <= before


def test_in_the_program_of_others_nothing_ends_and_its_own_way_to_hear_of_signals_comes_back() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)
    try:
        with Interruption(patience=None) as interruption:
            os.kill(os.getpid(), signal.SIGTERM)
            wait_until(lambda: interruption.number)
            assert interruption.number == signal.SIGTERM
        assert signal.set_wakeup_fd(-1) == writing
    finally:
        signal.set_wakeup_fd(-1)
        os.close(reading)
        os.close(writing)
    join_watches()
