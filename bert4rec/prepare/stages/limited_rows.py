"""The rows of items and users that have neither too few nor too many of them."""

from functools import partial

import numpy as np

from bert4rec.config.tables import Preprocessing
from bert4rec.prepare.order.filters import FILTERS, apply, drop_rare_items
from bert4rec.prepare.progress import Progress
from bert4rec.prepare.stages.ordered_rows import OrderedRows, filters_of_users
from bert4rec.runtime.errors import DataError


def limit_rows(ordered: OrderedRows, settings: Preprocessing, *, progress: Progress) -> None:
    """Drop rare items, then users with too few or too many rows; again until both limits hold, where `k_core`.

    Raises `DataError` where no row is left.
    """
    least, n_rounds = settings.min_item_interactions, 0
    is_rare = least > 1
    while is_rare:
        n_rounds += 1
        before, ordered.counts = ordered.counts, np.zeros_like(ordered.counts)
        verbs = {"min_item_interactions": partial(drop_rare_items, counts=before, min_interactions=least)}
        with progress.stage(f"limits, round {n_rounds}", int(before.sum())) as stage:
            for index, frame in enumerate(ordered.parts):
                kept = apply(verbs | filters_of_users(settings), frame, ordered.dropped)
                if len(kept) < len(frame):
                    ordered.parts.replace(index, kept)
                ordered.counts += np.bincount(kept["item"].to_numpy(), minlength=len(before))
                stage.advance(stage.n_rows + len(frame), len(frame))
        is_rare = settings.k_core and bool(((ordered.counts > 0) & (ordered.counts < least)).any())
    if not ordered.counts.any():
        default = Preprocessing()
        changed = [
            f"{name} = {value}" for name in FILTERS if (value := getattr(settings, name)) != getattr(default, name)
        ]
        raise DataError(
            f"0 of {ordered.n_rows_read} rows and {ordered.n_users_read} users pass [preprocessing] "
            f"{', '.join(changed) or 'as it is'}; relax these filters"
        )
