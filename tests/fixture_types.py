"""Short names for the types of fixtures."""

from collections.abc import Callable

import pytest

from bert4rec.config.tables import Config

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
Settings = Callable[..., Config]  # `small_config` and its like
