"""Which process says what, where there are several; whole runs are in end_to_end/."""

import pytest

from bert4rec.commands.jobs import launched
from bert4rec.runtime.errors import RunInterruptedError, SettingsError


@pytest.mark.parametrize(
    ("rank", "local_rank", "is_on_all", "waits", "said"),
    [
        (0, 0, True, False, "error: no room\n"),
        (1, 1, True, True, ""),
        (2, 0, True, False, "error: no room\n"),  # the first of the second host
        (3, 1, True, True, ""),
        (0, 0, False, False, "error: no room\n"),
        (1, 1, False, True, "error: no room (process 1)\n"),
        (2, 0, False, False, "error: no room (process 2)\n"),
    ],
)
def test_one_process_of_each_host_says_what_all_have_met(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rank: int, local_rank: int, is_on_all: bool,
    waits: bool, said: str,
) -> None:  # fmt: skip
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("LOCAL_RANK", str(local_rank))
    error = SettingsError("no room")
    error.is_on_all = is_on_all
    assert launched.show(error) == 2
    assert waited == [5.0] * waits
    assert capsys.readouterr().err == said


def test_a_lost_process_is_said_by_all_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The launcher ends them all promptly: nobody knows who still comes to speak."""
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert launched.show(RunInterruptedError("lost"), is_awaited=False) == 1
    assert capsys.readouterr().err == "error: lost (process 3)\n"


def test_a_process_that_was_lost_is_told_from_other_faults(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(words: str) -> None:
        raise RuntimeError(words)

    for words, said in (
        ("gloo: Connection reset by peer", launched.LOST_ANOTHER),
        ("gloo: Timed out waiting 6000ms for recv operation to complete", launched.NO_ANSWER),
        ("Application timeout caused pair closure", launched.NO_ANSWER),
    ):
        assert launched.run(lambda words=words: words, fail, resumes=False) == 1
        assert capsys.readouterr().err == f"error: {said}; start it again\n"
    with pytest.raises(RuntimeError, match="shapes differ"):
        launched.run(lambda: "shapes differ", fail, resumes=False)


def test_what_is_wrong_before_the_start_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse() -> None:
        raise SettingsError("no such setting")

    def stop() -> None:
        raise KeyboardInterrupt

    assert launched.run(refuse, print, resumes=True) == 2
    assert launched.run(stop, print, resumes=True) == 130
    assert launched.run(lambda: None, print, resumes=True) == 0
    said = "error: no such setting\nstopped before the first step: nothing has changed\n"
    assert capsys.readouterr() == ("", said)
