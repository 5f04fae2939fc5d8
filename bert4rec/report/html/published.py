"""What others have published on the same data, where these are known."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import tomli

FIGURES = Path(__file__).with_name("published.toml")


class Published(NamedTuple):
    """One published result; `source` and `url` say where, `note` why it is not quite of a kind with the others."""

    model: str
    hit_rate: float
    ndcg: float
    source: str
    url: str
    note: str


def known_file(dataset: Mapping[str, Any]) -> tuple[dict[str, Any], str] | None:
    """The entry of the file that a `dataset`, as the report has it, was made from, and in words by what it is known.

    The counts decide, since filters could have left out rows of the very file; its checksum tells whether it is that.
    """
    if dataset.get("split") != "leave_one_out":
        return None
    counts = ("users", "items", "rows")
    for file in tomli.loads(FIGURES.read_text(encoding="utf-8"))["file"]:
        if all(file[name] == dataset.get(name) for name in counts):
            is_same = dataset.get("file_sha256") == file["sha256"]
            return file, "the checksum of its file" if is_same else "its counts alone, not by the checksum of its file"
    return None


def published(file: Mapping[str, Any], protocol: str, *, n_negatives: int = 100) -> list[Published]:
    """By a protocol, the lowest NDCG@10 first; among sampled items only where they are 100, as in the papers."""
    if protocol != "full" and n_negatives != 100:
        return []
    rows = (_row(row, file["sources"]) for row in file["figures"].get(protocol, []))
    return sorted(rows, key=lambda row: row.ndcg)


def _row(row: Mapping[str, Any], sources: Mapping[str, Any]) -> Published:
    source, url = sources[row["source"]]
    return Published(row["model"], row["HR"], row["NDCG"], source, url, row.get("note", ""))
