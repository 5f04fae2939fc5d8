"""What `metadata.json` says of a dataset, but for what the splits and the checksums add."""

import hashlib
from pathlib import Path
from typing import Any

from bert4rec.config.tables import Config
from bert4rec.config.urls import is_url
from bert4rec.dataset.statistics import lengths_of
from bert4rec.prepare.order.filters import FILTERS
from bert4rec.prepare.read.interactions import Interactions
from bert4rec.prepare.read.synthetic import Generated
from bert4rec.prepare.stages.ordered_rows import OrderedRows
from bert4rec.prepare.stages.survey import Survey
from bert4rec.prepare.writer import created_from

MOST_HASHED = 2**28  # bytes, a second: files that others have published on are smaller


def describe_rows(
    config: Config, source: Interactions | Generated, ordered: OrderedRows, survey: Survey
) -> dict[str, Any]:
    """Return the origin of the rows, how many were read, dropped and kept, and the results of the survey."""
    n_rows, n_users, n_items = int(ordered.counts.sum()), len(survey.lengths), len(survey.train_counts)
    bad = source.bad
    return {
        "created_from": created_from(config.data.source, config.data.path) | _checksum(config.data.path),
        "source": config.data.source,
        "max_len": config.max_len,
        "preprocessing": config.preprocessing.recipe,
        "extends": bool(config.data.extends),
        "order": dict(source.order),
        "rows_read": ordered.n_rows_read + bad.total,
        "users_read": ordered.n_users_read,
        "items_read": ordered.n_items_read,
        "bad_rows": dict(sorted(bad.counts.items())),
        "dropped": {name: ordered.dropped[name] for name in FILTERS if ordered.dropped[name]},
        "rows": n_rows,
        "users": n_users,
        "items": n_items,
        "density": n_rows / (n_users * n_items),
        "lengths": lengths_of(survey.lengths[survey.lengths > 0]),
        "time_span": list(survey.time_span) if survey.time_span else None,
        "train_positions": int(survey.train_counts.sum()),
        "has_times": "time" in ordered.parts.columns,
        "has_target_times": "time" in ordered.parts.columns,
        "has_ratings": "rating" in ordered.parts.columns,
    }


def _checksum(name: str) -> dict[str, str]:
    """Return the SHA-256 of one local file that is not large: a report knows by it what others have published."""
    path = Path(name)
    if is_url(name) or not path.is_file() or path.stat().st_size > MOST_HASHED:
        return {}
    with path.open("rb") as file:
        return {"sha256": hashlib.file_digest(file, "sha256").hexdigest()}
