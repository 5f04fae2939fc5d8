"""Small networks on this process, and batches for them."""

from typing import Any

import torch
from torch import Tensor

from bert4rec.feed.batch import Batch, Lookup
from bert4rec.models.sequence_model import Bert4Rec, SASRec, SequenceModel
from bert4rec.models.tables import Table
from bert4rec.sharding.parallelize import initialize

N_ITEMS, WIDTH, HEADS, MAX_LEN = 38, 16, 2, 12


def model(kind: type[SequenceModel] = Bert4Rec, **changes: Any) -> SequenceModel:
    shape: dict[str, Any] = {
        "n_items": N_ITEMS, "embed_dim": WIDTH, "n_heads": HEADS, "n_layers": 2, "ffn_dim": 24, "max_len": MAX_LEN,
        "dropout": 0.0, "head": "tied", "device": "cpu",
    }  # fmt: skip
    network = kind(**shape | changes)
    initialize(network, seed=3)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():  # zeros and ones would hide a weight that is not used
        for weight in network.parameters():
            weight += 0.3 * torch.randn(weight.shape, generator=generator)
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


SEQUENCES = [[2, 3, 4], [5, 6, 7, 8, 9, 10, 11], [12, 13], [14, 15, 16, 17]]
POSITIONS = [[0, 2], [1, 5, 6], [1], [0, 1, 2, 3]]
