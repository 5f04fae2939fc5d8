"""The snapshot of all sentences of the program is up to date."""

from tests.messages import SNAPSHOT, messages


def test_the_snapshot_has_every_sentence() -> None:
    assert SNAPSHOT.read_text(encoding="utf-8") == messages(), "a sentence changed: type `python -m tests.messages`"
