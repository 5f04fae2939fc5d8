"""Bert4Rec on TorchRec: from raw interactions to a trained, evaluated, sharded sequential recommender."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bert4rec.inference.load import load

__all__ = ["load"]


def __getattr__(name: str) -> object:
    """What the package offers, imported when it is asked for: torch takes seconds."""
    if name != "load":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from bert4rec.inference.load import load

    return load
