"""Matrix factorisation: one vector per user and one per item, for ratings or for rankings.

Koren, Bell and Volinsky 2009, "Matrix factorization techniques for recommender systems" (dot product, biases); He et
al. 2017, "Neural collaborative filtering" (an MLP over both vectors). Both tables are sharded alike. Shapes: M pairs, C
candidates, d = embed_dim, D = the width of queries and items.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bert4rec.config.kinds import KINDS
from bert4rec.dataset.histories import Rows, TrainingPairs, TrainingWindows
from bert4rec.feed.batch import Lookup, Pairs, long, weights_of
from bert4rec.feed.batches import Examples
from bert4rec.feed.pairs import TRAINING_PAIRS, parts_of_pairs
from bert4rec.models.item_features import FeatureSettings
from bert4rec.models.losses import SOFTMAX, LossSettings
from bert4rec.models.ranking_model import RankingModel
from bert4rec.models.tables import CataloguePart, ItemTable, Table
from bert4rec.models.transformer import append_ones

NUMBERS_AT_ONCE = 2**22  # activations of a hidden layer, 16 MiB, when whole tiles are scored without a gradient
MLP_LAYERS = (64, 32)  # widths of the hidden layers, each half of the one before as in the NCF paper


class MatrixFactorization(RankingModel):
    """Scores items for users by `form`: "dot", "bias" (with user and item biases), "neural" (an MLP over both vectors).

    The loss "mse" learns ratings; with a `rating_range`, they are predicted as a sigmoid scaled to this range. The
    other losses ignore a user's bias, which is the same for all items.
    """

    kind = KINDS["matrix_factorization"]

    def __init__(
        self, *, n_items: int, n_users: int, embed_dim: int, form: str, dropout: float,
        loss: LossSettings = SOFTMAX, features: FeatureSettings | None = None, device: torch.device | str = "meta",
    ) -> None:  # fmt: skip
        item_table = ItemTable(
            n_items, embed_dim, head="tied", output_bias=form == "bias", features=features, device=device
        )
        super().__init__(item_table, loss)
        self.form, self.rating_range = form, tuple(loss.rating_range)
        self.user_table = Table(
            "user", n_rows=n_users, width=item_table.width, features=["user"], n_initialized=embed_dim, device=device
        )
        self.mlp = MLP(embed_dim, MLP_LAYERS, dropout, device) if form == "neural" else None
        self.score_numel_factor += 0 if self.mlp is None else self.mlp.activation_numel
        is_rating = self.loss == "mse" and form != "neural"  # the last layer of the MLP has a bias
        self.rating_bias = nn.Parameter(torch.empty(1, device=device)) if is_rating else None

    @classmethod
    def examples(cls, windows: TrainingWindows, **settings: Any) -> Examples:
        """Return the training pairs of the histories, without the held-out ones if the loss learns ratings."""
        return parts_of_pairs(TrainingPairs(windows.histories), **settings)[TRAINING_PAIRS]

    def n_positions(self, batch_size: int) -> int:
        """Return `batch_size`: each pair is one position."""
        return batch_size

    @staticmethod
    def inference_batch(rows: Rows, max_len: int, times: str = "none") -> Pairs:
        """Return pairs of the users and targets of the rows; the user vectors represent the histories."""
        assert rows.users is not None, "an evaluation split has users"
        assert rows.targets is not None, "an evaluation split has targets"
        return Pairs.between(long(rows.users), long(rows.targets))

    def encode_queries(self, batch: Pairs, candidates: Lookup) -> tuple[Tensor, Tensor]:
        """Return the queries [M, D] of the users, and the `candidates` [C, D]."""
        return self._represent_users(self._users(batch)), self.encode_items(candidates)

    def encode_for_catalogue(self, batch: Pairs) -> tuple[Tensor, CataloguePart]:
        """Return the queries [M, d] of the users, and this process's part of the catalogue."""
        return self._users(batch)[:, : self.item_table.embed_dim], self.item_table.catalogue(batch.targets.device)

    def lookups(self, batch: Pairs) -> list[tuple[Table, dict[str, Lookup]]]:
        """Return the lookups of users, and of candidates if the batch has any."""
        users = [(self.user_table, {"user": batch.users})]
        candidates = batch.candidates
        return users if candidates is None else [*users, *self.item_table.all_lookups(None, candidates.items)]

    def encode_items(self, items: Lookup) -> Tensor:
        """Return the vectors [C, D] of the `items`: table rows or, with "neural", outputs of the first layer."""
        rows = self.item_table.candidates(items)
        return rows if self.mlp is None else self.mlp.of_item(rows)

    def score(self, queries: Tensor, items: Tensor) -> Tensor:
        """Return the scores [M, C] of all pairs: dot products or outputs of the MLP."""
        if self.mlp is None:
            return super().score(queries, items)
        if torch.is_grad_enabled():
            return self.mlp(queries[:, None] + items)
        step = max(1, NUMBERS_AT_ONCE // max(1, items.numel()))
        return torch.cat([self.mlp(part[:, None] + items) for part in queries.split(step)])

    def score_pairs(self, queries: Tensor, items: Tensor) -> Tensor:
        """Return the scores [..., n] of queries [..., D] with their own items [..., n, D]."""
        return super().score_pairs(queries, items) if self.mlp is None else self.mlp(queries.unsqueeze(-2) + items)

    @property
    def width(self) -> int:
        """Return the width of a row or, with "neural", of the first layer."""
        return super().width if self.mlp is None else self.mlp.width

    def _exact_loss(self, batch: Pairs) -> Tensor:
        if self.loss != "mse":
            return super()._exact_loss(batch)
        assert batch.ratings is not None, "a squared error needs ratings"
        return ((self.rate(batch) - batch.ratings).square() * weights_of(batch)).sum()

    def rate(self, batch: Pairs) -> Tensor:
        """Return the predicted ratings [M] float32 of the targets by the users."""
        assert batch.candidates is not None, "the rated items must be candidates"
        rows, items = self._users(batch), self.encode_items(batch.candidates.items)
        items = items.index_select(0, batch.candidates.positives)
        ratings = self.score_pairs(self._represent_users(rows), items[:, None])[:, 0].float()
        if self.form == "bias":
            ratings = ratings + rows[:, self.item_table.embed_dim]
        if self.rating_bias is not None:
            ratings = ratings + self.rating_bias
        if not self.rating_range:
            return ratings
        low, high = self.rating_range
        return low + (high - low) * ratings.sigmoid()

    def _users(self, batch: Pairs) -> Tensor:
        return self.user_table.look_up({"user": batch.users})["user"].index_select(0, batch.places)

    def _represent_users(self, rows: Tensor) -> Tensor:
        """Return user rows [M, …] as queries [M, D]: with a 1 for the item bias, or after the first layer."""
        if self.mlp is not None:
            return self.mlp.of_user(rows)
        return append_ones(rows[:, : self.item_table.embed_dim], self.item_table.width)

    def lookups_per_step(self, *, n_positions: int, n_candidates: int) -> dict[str, int]:
        """Return feature → number of ids that a process looks up per step."""
        return {"user": n_positions, "item": 0, "candidate": n_candidates}

    def activation_numel(self, n_positions: int, n_targets: int) -> int:
        """Return the number of values of the queries; `score_numel_factor` counts the activations of the scores."""
        return n_targets * self.width


class MLP(nn.Module):
    """An MLP over a user vector u and an item vector v [..., d], with the first layer W_u u + W_v v + b.

    The two terms are computed separately: once per user and once per item, not once per pair.
    """

    def __init__(self, embed_dim: int, layers: Sequence[int], dropout: float, device: torch.device | str) -> None:
        super().__init__()
        self.width, self.activation_numel = layers[0], 2 * sum(layers)
        self.of_user = nn.Linear(embed_dim, self.width, device=device)
        self.of_item = nn.Linear(embed_dim, self.width, bias=False, device=device)
        self.layers = nn.ModuleList(nn.Linear(*sizes, device=device) for sizes in pairwise([*layers, 1]))
        self.dropout = nn.Dropout(dropout)

    def forward(self, summed: Tensor) -> Tensor:
        """Return the scores [...] of the sums [..., width] of both terms of the first layer."""
        for layer in self.layers:
            summed = layer(self.dropout(F.relu(summed)))
        return summed.squeeze(-1)
