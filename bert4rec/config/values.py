"""Kinds of values that settings take: numbers within limits, times, paths, addresses."""

import os
import re
from datetime import UTC, date, datetime
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer

from bert4rec.config.recognition import check_url, is_url, without_secrets

ENDINGS = (
    ".csv", ".tsv", ".txt", ".parquet", ".pq", ".json", ".jsonl", ".ndjson", ".feather", ".arrow", ".ipc", ".dat",
    ".data", ".gz", ".zst",
)  # fmt: skip


def instant(text: str) -> int:
    """Return seconds since 1970 of ISO 8601 text (UTC by default) or of seconds; raise `ValueError` otherwise."""
    try:
        return int(text)
    except ValueError:
        moment = datetime.fromisoformat(text)
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())


def expand_user(path: str) -> str:
    """Return `path` with `~` or `~user` at its beginning as that home folder; `ValueError` where that is missing."""
    whole = os.path.expanduser(path)
    if path.startswith("~") and whole == path:
        raise ValueError(f"there is no home folder {path.partition('/')[0]} on this machine; write the whole path")
    return whole


def name_of_path(path: str) -> str:
    """Return the name of a file, folder or pattern without endings: "logs" of `logs/*.csv`, "" of nothing."""
    whole = without_secrets(path) if is_url(path) else os.path.abspath(path)
    parts = whole.split(os.sep) if path else []
    return next((name for part in reversed(parts) if (name := _plain_name(part))), "")


def _plain_name(part: str) -> str:
    """Return one part of a path without endings, and without what stands for other letters in a pattern."""
    while (stem := os.path.splitext(part)[0]) != part and part.lower().endswith(ENDINGS):
        part = stem
    plain = re.sub(r"\[[^]]*\]|[*?]", "", part)
    return part if plain == part else plain.strip(" .-_")


def _on_this_machine(path: str) -> str:
    if is_url(path):
        raise ValueError("must be a path of this machine; only data.path and data.titles_path may be addresses")
    return path


def _as_text(value: Any) -> Any:
    """Return dates and integers as text: TOML has types of its own for them."""
    if isinstance(value, date):
        return value.isoformat()
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _share_or_time(value: float | str) -> float | str:
    if isinstance(value, str):
        try:
            instant(value)
        except ValueError:
            raise ValueError("must be a time: 2019-03-01, 2019-03-01T12:00:00 or seconds") from None
    elif not 0 < value < 1:
        raise ValueError('a share must be between 0 and 1, an instant stands in quotes: "2019-03-01"')
    return value


Count: TypeAlias = Annotated[int, Field(ge=1)]
MaxLen: TypeAlias = Annotated[int, Field(ge=2)]
Dropout: TypeAlias = Annotated[float, Field(ge=0, lt=1)]
Whole: TypeAlias = Annotated[int, Field(ge=0)]
Positive: TypeAlias = Annotated[float, Field(gt=0)]
Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]
Age: TypeAlias = Annotated[float, Field(ge=0, lt=0.5)]
Seed: TypeAlias = Annotated[int, Field(ge=0, lt=2**32)]
UserPath: TypeAlias = Annotated[str, AfterValidator(expand_user), AfterValidator(_on_this_machine)]
DataPath: TypeAlias = Annotated[  # what is saved of a run is often shown to others
    str, AfterValidator(expand_user), AfterValidator(check_url), PlainSerializer(without_secrets, when_used="json")
]
Time: TypeAlias = Annotated[str, BeforeValidator(_as_text), AfterValidator(lambda text: text and _share_or_time(text))]
ShareOrTime: TypeAlias = Annotated[float | str, BeforeValidator(_as_text), AfterValidator(_share_or_time)]
