"""What is refused, in one line; and short names for pytest's own types."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bert4rec.runtime.errors import DataError

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


@contextmanager
def one_line(start: str, *words: str, error: type[Exception] = DataError) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """Expect an `error` in one line that begins with `start` and has all `words`."""
    with pytest.raises(error) as caught:
        yield caught
    line = str(caught.value)
    assert line.startswith(start), line
    assert [word for word in words if word not in line] == [], line
    assert line.replace("\t", " ").isprintable()
