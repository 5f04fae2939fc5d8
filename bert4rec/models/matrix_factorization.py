"""Matrix factorisation: a vector a user and a vector an item, for ratings or for rankings.

Koren, Bell and Volinsky 2009, "Matrix factorization techniques for recommender systems" (dot product, biases); He et
al. 2017, "Neural collaborative filtering" (an MLP over both vectors). Both tables are sharded alike. Shapes: M pairs, C
candidates, d = embed_dim, D = the width of what is scored.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bert4rec.config.kinds import KINDS
from bert4rec.dataset.format import NO_ITEM
from bert4rec.dataset.histories import Rows, TrainingPairs, TrainingWindows
from bert4rec.feed.batch import Lookup, Pairs, long
from bert4rec.feed.batches import Examples
from bert4rec.feed.pairs import TRAINING, parts_of_pairs
from bert4rec.models.losses import SOFTMAX, LossSettings
from bert4rec.models.ranking_model import RankingModel
from bert4rec.models.tables import CataloguePart, ItemTable, Table
from bert4rec.models.transformer import append_ones

NUMBERS_AT_ONCE = 2**22  # of a hidden layer, where whole tiles are scored without a gradient: 16 MiB
MLP_LAYERS = (64, 32)  # widths of the hidden layers, halved from layer to layer as in the NCF paper


class MatrixFactorization(RankingModel):
    """Scores items for users by `form`: "dot", "bias" (with one of each user and item), "neural" (an MLP over both).

    The loss "mse" learns ratings, as they are or, with a `rating_range`, as a sigmoid between its two numbers. With the
    other losses a user's bias plays no part: it is the same for all items.
    """

    kind = KINDS["matrix_factorization"]

    def __init__(
        self, *, n_items: int, n_users: int, embed_dim: int, form: str, dropout: float,
        loss: LossSettings = SOFTMAX, device: torch.device | str = "meta",
    ) -> None:  # fmt: skip
        item_table = ItemTable(n_items, embed_dim, head="tied", output_bias=form == "bias", device=device)
        super().__init__(item_table, loss)
        self.form, self.rating_range = form, tuple(loss.rating_range)
        self.user_table = Table(
            "user", n_rows=n_users, width=item_table.width, features=["user"], n_initialized=embed_dim, device=device
        )
        self.mlp = MLP(embed_dim, MLP_LAYERS, dropout, device) if form == "neural" else None
        is_rating = self.loss == "mse" and form != "neural"  # whose last layer has a bias
        self.rating_bias = nn.Parameter(torch.empty(1, device=device)) if is_rating else None

    @classmethod
    def examples(cls, windows: TrainingWindows, **settings: Any) -> Examples:
        """Return the pairs of the histories, but for those that are held out where ratings are learnt."""
        return parts_of_pairs(TrainingPairs(windows.histories), **settings)[TRAINING]

    def n_positions(self, batch_size: int) -> int:
        """Return `batch_size`: a pair is one position."""
        return batch_size

    @staticmethod
    def n_targets(batch_size: int, n_positions: int, *, mask_prob: float) -> int:
        """Return `n_positions`: each pair is a target."""
        return batch_size

    @staticmethod
    def inference_batch(rows: Rows, max_len: int, times: str = "none") -> Pairs:
        """Return a batch of the users of the rows; their histories are in their vectors."""
        assert rows.users is not None, "an evaluation split has users"
        assert rows.targets is not None, "an evaluation split has targets"
        return Pairs.between(long(rows.users), long(rows.targets))

    def encode_queries(self, batch: Pairs, candidates: Lookup) -> tuple[Tensor, Tensor]:
        """Return users [M, D] and the `candidates`, [C, D]."""
        return self._represent_users(self._users(batch)), self.encode_items(candidates)

    def encode_for_catalogue(self, batch: Pairs) -> tuple[Tensor, CataloguePart]:
        """Return users [M, D], and this process's part of the catalogue."""
        return self._represent_users(self._users(batch)), self.item_table.catalogue(batch.targets.device)

    def lookups(self, batch: Pairs) -> list[tuple[Table, dict[str, Lookup]]]:
        """Return users, and candidates where the loss has any."""
        users = [(self.user_table, {"user": batch.users})]
        candidates = batch.candidates
        return users if candidates is None else [*users, (self.item_table, {"candidate": candidates.items})]

    def encode_items(self, items: Lookup) -> Tensor:
        """Return the rows of the items, or in the neural form the outputs of the first layer."""
        rows = self.item_table.candidates(items)
        return rows if self.mlp is None else self.mlp.of_item(rows)

    def score(self, queries: Tensor, items: Tensor) -> Tensor:
        """Return products, or the MLP's outputs, of each pair [M, C]."""
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
        """Return the width of a row, or of the first layer."""
        return super().width if self.mlp is None else self.mlp.width

    def forward(self, batch: Pairs) -> Tensor:
        """Return the sum of the loss over the pairs, a scalar; pairs whose target is NO_ITEM count nothing."""
        if self.loss != "mse":
            return super().forward(batch)
        assert batch.ratings is not None, "a squared error needs ratings"
        return ((self.rate(batch) - batch.ratings).square() * (batch.targets != NO_ITEM)).sum()

    def rate(self, batch: Pairs) -> Tensor:
        """Return the ratings [M] float32 that the users would give the targets."""
        assert batch.candidates is not None, "items that are rated are looked up"
        rows, items = self._users(batch), self.encode_items(batch.candidates.items)
        items = items.index_select(0, batch.candidates.positives)
        found = self.score_pairs(self._represent_users(rows), items[:, None])[:, 0].float()
        if self.form == "bias":
            found = found + rows[:, self.item_table.embed_dim]
        if self.rating_bias is not None:
            found = found + self.rating_bias
        if not self.rating_range:
            return found
        low, high = self.rating_range
        return low + (high - low) * found.sigmoid()

    def _users(self, batch: Pairs) -> Tensor:
        return self.user_table.look_up({"user": batch.users})["user"].index_select(0, batch.places)

    def _represent_users(self, rows: Tensor) -> Tensor:
        """Return user rows [M, …] as queries [M, D]: with a 1 at the item bias, or after the first layer."""
        if self.mlp is not None:
            return self.mlp.of_user(rows)
        return append_ones(rows[:, : self.item_table.embed_dim], self.item_table.width)

    def lookups_per_step(self, *, n_positions: int, n_candidates: int) -> dict[str, int]:
        """Return the ids of each feature of the tables in a step of a process."""
        return {"user": n_positions, "item": 0, "candidate": n_candidates}

    def activation_numel(self, n_positions: int, n_targets: int) -> int:
        """Return the numbers of encoded users; those of scores are counted by `score_numel_factor`."""
        return n_targets * self.width

    @property
    def score_numel_factor(self) -> int:
        """Return one, in the neural form also the width of each hidden layer."""
        return 1 if self.mlp is None else 1 + self.mlp.activation_numel


class MLP(nn.Module):
    """A network over two vectors [..., d], whose first layer is the sum of what it makes of each: W_u u + W_v v + b.

    So each user and each item goes through it once, however many pairs they are scored in.
    """

    def __init__(self, embed_dim: int, layers: Sequence[int], dropout: float, device: torch.device | str) -> None:
        super().__init__()
        self.width, self.activation_numel = layers[0], 2 * sum(layers)
        self.of_user = nn.Linear(embed_dim, self.width, device=device)
        self.of_item = nn.Linear(embed_dim, self.width, bias=False, device=device)
        self.layers = nn.ModuleList(nn.Linear(*sizes, device=device) for sizes in pairwise([*layers, 1]))
        self.dropout = nn.Dropout(dropout)

    def forward(self, summed: Tensor) -> Tensor:
        """Return sums [..., width] of both → scores [...]."""
        for layer in self.layers:
            summed = layer(self.dropout(F.relu(summed)))
        return summed.squeeze(-1)
