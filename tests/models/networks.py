"""Small networks on this process, and batches for them."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from bert4rec.dataset.histories import Rows
from bert4rec.feed.batch import Batch, Lookup
from bert4rec.models.losses import LossSettings
from bert4rec.models.matrix_factorization import MatrixFactorization
from bert4rec.models.ranking_model import RankingModel
from bert4rec.models.sequence_model import Bert4Rec, SASRec, SequenceModel
from bert4rec.models.tables import Table
from bert4rec.sharding.parallelize import initialize

N_ITEMS, N_USERS, WIDTH, HEADS, MAX_LEN = 38, 6, 16, 2, 12


def fill(network: RankingModel) -> None:
    initialize(network, seed=3)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():  # zeros and ones would hide a weight that is not used
        for weight in network.parameters():
            weight += 0.3 * torch.randn(weight.shape, generator=generator)


def model(kind: type[SequenceModel] = Bert4Rec, loss: str = "softmax", **changes: Any) -> SequenceModel:
    shape: dict[str, Any] = {
        "n_items": N_ITEMS, "embed_dim": WIDTH, "n_heads": HEADS, "n_layers": 2, "ffn_dim": 24, "max_len": MAX_LEN,
        "dropout": 0.0, "head": "tied", "device": "cpu",
    }  # fmt: skip
    network = kind(loss=LossSettings(loss), **shape | changes)
    fill(network)
    return network


def factors(form: str, loss: str = "softmax", **changes: Any) -> MatrixFactorization:
    settings = LossSettings(loss, rating_range=changes.pop("rating_range", ()))
    shape = {"n_items": N_ITEMS, "n_users": N_USERS, "embed_dim": WIDTH, "dropout": 0.0, "device": "cpu"}
    network = MatrixFactorization(form=form, loss=settings, **shape | changes)
    fill(network)
    return network


class WithGroups(SASRec):
    """SASRec with a second table: an item's vector has that of its group added."""

    N_GROUPS = 5

    def __init__(self, *, embed_dim: int, device: torch.device | str = "meta", **settings: Any) -> None:
        super().__init__(embed_dim=embed_dim, device=device, **settings)
        self.group_table = Table("group", n_rows=self.N_GROUPS, width=embed_dim, features=["group"], device=device)

    def _encode(self, vectors: Tensor, batch: Batch) -> Tensor:
        groups = Lookup.of(batch.items.ids % self.N_GROUPS)
        return super()._encode(vectors + self.group_table.look_up({"group": groups})["group"], batch)

    def lookups_per_step(self, *, n_positions: int, n_candidates: int) -> dict[str, int]:
        return {**super().lookups_per_step(n_positions=n_positions, n_candidates=n_candidates), "group": n_positions}


def batch(sequences: list[list[int]], positions: list[list[int]]) -> Batch:
    """Positions are given within each sequence."""
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    starts = (lengths.cumsum(0) - lengths).tolist()
    flat = torch.tensor([a + p for a, inside in zip(starts, positions, strict=True) for p in inside])
    items = torch.tensor([item for sequence in sequences for item in sequence])
    return Batch.from_items(items, lengths, flat, items[flat])


def hidden_of(network: SequenceModel, asked: Batch) -> Tensor:
    return network.encode_queries(asked, Lookup.of(torch.tensor([], dtype=torch.int64)))[0]


def rows_of(*histories: list[int]) -> Rows:
    items = np.array([item for items in histories for item in items], np.int32)
    return Rows(items, np.array([len(items) for items in histories]))


def scores_of(scorer: Any, *histories: list[int]) -> list[list[float]]:
    """Scores of all items by a scorer without training, the same as those of chosen items to the last bit."""
    everything = torch.arange(scorer.n_items)
    users, chosen = scorer.encode(rows_of(*histories), everything.expand(len(histories), -1))
    scores: Tensor = scorer.scores(users, scorer.items(everything), 0, len(everything))
    assert scores.dtype == users.dtype == scorer.dtype
    assert users.shape == (len(histories), scorer.width)
    assert torch.equal(scores, chosen)
    return scores.tolist()


SEQUENCES = [[2, 3, 4], [5, 6, 7, 8, 9, 10, 11], [12, 13], [14, 15, 16, 17]]
POSITIONS = [[0, 2], [1, 5, 6], [1], [0, 1, 2, 3]]
