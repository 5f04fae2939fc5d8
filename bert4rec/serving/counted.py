"""Score histories by a kind that only counts, as a network does: histories → queries → scores of items."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from bert4rec.evaluation.top_k import TILE
from bert4rec.runtime.errors import DataError
from bert4rec.serving.histories import KnownHistory

if TYPE_CHECKING:
    from bert4rec.models.baselines import UntrainedScorer  # imports Arrow


class Counted:
    """The `scorer` of a `kind` of model that is not trained; `len` is the number of its items.

    `kinds` of events are by number, () if nothing depends on them.
    """

    times, knows_times = "none", False

    def __init__(self, kind: str, scorer: "UntrainedScorer", kinds: Sequence[str] = ()) -> None:
        self.kind, self.kinds, self._scorer = kind, kinds, scorer
        self._items = torch.cat([scorer.items(ids) for ids in torch.arange(scorer.n_items).split(TILE)])

    def __len__(self) -> int:
        return self._scorer.n_items

    @property
    def is_alike(self) -> bool:
        """Return whether all histories have the same scores, as by popularity; else they need a known item."""
        return not self._scorer.width

    def encode(self, histories: Sequence[KnownHistory]) -> Tensor:
        """Return the queries [B, width] of `histories`, which are read whole."""
        from bert4rec.dataset.histories import Rows  # imports Arrow

        items = np.concatenate([history.items for history in histories]).astype(np.int32)
        rows = Rows(items, np.array([len(history) for history in histories], np.int64))
        return self._scorer.encode(rows, torch.zeros(len(histories), 1, dtype=torch.int64))[0]

    def tile_scores(self, queries: Tensor, first: int, stop: int) -> Tensor:
        """Return the scores [B, C] of the items `first` … `stop` - 1."""
        return self._scorer.scores(queries, self._items[first:stop], first, TILE)

    def require_likeness(self) -> None:
        """Raise `DataError` if all histories have the same scores: then no item is more like another one."""
        if self.is_alike:
            raise DataError(f"{self.about} knows no likeness of items; name the run of another kind of model")

    @property
    def about(self) -> str:
        """Return the beginning of a message about what the model cannot do."""
        return f'this model, model.kind = "{self.kind}", only counts: it'
