"""The fixtures that the tests of sources/ and prepare/ share."""

from tests.preparation import prepare, small, storage

__all__ = ["prepare", "small", "storage"]
