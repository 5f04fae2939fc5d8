"""What a sequence model is: tables, an encoder between them and the scores, a loss; its batches and its size.

It knows nothing of processes: parallelism is applied from outside. Shapes: B sequences, N positions in all, M positions
to predict, C candidates, d = embed_dim, D = d and the columns of a bias.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bert4rec.config.abilities import needs_negatives
from bert4rec.dataset.reader import Rows
from bert4rec.dataset.schema import FIRST_ITEM_ID, PAD_ID
from bert4rec.feed.batch import Batch
from bert4rec.feed.batches import Examples
from bert4rec.models.losses import SAMPLED_LOSSES, Sampled, softmax_loss
from bert4rec.models.tables.item_table import ItemTable
from bert4rec.models.tables.table import Table
from bert4rec.models.transformer import Encoder, with_one


class SequenceModel(nn.Module):
    """A transformer over item sequences whose hidden states are scored against the items.

    Differences from the papers, each for a reason: blocks normalise first (pre-LN), which trains without warm-up;
    positions count from the end; logits are computed for the positions to predict only, and so are the queries of the
    last block, since nothing else is read from it. `loss` is "softmax" or one of `SAMPLED_LOSSES`, `encoder` the
    remaining settings of the `Encoder`.
    """

    title: ClassVar[str]  # in reports
    is_causal: ClassVar[bool]  # whether a position sees only what stands before it, and itself

    def __init__(
        self, *, n_items: int, embed_dim: int, head: str, output_bias: bool, loss: str = "softmax",
        gbce_calibration: float = 0.75, device: torch.device | str = "meta", **encoder: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        self.loss, self.gbce_calibration = loss, gbce_calibration
        self.item_table = ItemTable(n_items, embed_dim, head=head, output_bias=output_bias, device=device)
        self.encoder = Encoder(embed_dim=embed_dim, is_causal=self.is_causal, device=device, **encoder)

    @staticmethod
    def examples(**settings: Any) -> Examples:
        """What the model is trained on; `settings` are the keywords of `Masking`."""
        raise NotImplementedError

    @staticmethod
    def n_targets(n_sequences: int, n_positions: int, *, mask_prob: float) -> int:
        """About how many of the `n_positions` of as many sequences are to be predicted in a step."""
        raise NotImplementedError

    @staticmethod
    def ask(rows: Rows, max_len: int) -> Batch:
        """Histories as a batch that asks for the item after each; of at most `max_len` positions."""
        raise NotImplementedError

    def forward(self, batch: Batch) -> Tensor:
        """The sum of the loss over the batch's positions, a scalar; positions whose target is PAD_ID count nothing."""
        return self._sampled_loss(batch) if needs_negatives(self.loss) else self._softmax_loss(batch)

    def represent(self, batch: Batch, candidates: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden states [M, D] at the batch's positions and vectors [C, D] of the `candidates` [C].

        Scores are `hidden @ vectors.T`.
        """
        vectors, of_candidates = self.item_table.look_up_items(batch.items, batch.lengths, candidates)
        return self._encode(vectors, batch), of_candidates

    def _encode(self, vectors: Tensor, batch: Batch) -> Tensor:
        """Item vectors [N, d] → hidden states [M, D]."""
        return with_one(self.encoder(vectors, batch.lengths, batch.positions), self.item_table.width)

    def _softmax_loss(self, batch: Batch) -> Tensor:
        vectors, part = self.item_table.look_up_catalogue(batch.items, batch.lengths)
        return softmax_loss(
            self._encode(vectors, batch), part.vectors, batch.targets - FIRST_ITEM_ID, self.item_table.partition,
            first=part.first, averaged=part.is_averaged,
        )  # fmt: skip

    def _sampled_loss(self, batch: Batch) -> Tensor:
        assert batch.negatives is not None, f"{self.loss} needs negatives"
        is_real = batch.targets != PAD_ID
        positives = torch.where(is_real, batch.targets, FIRST_ITEM_ID)
        hidden, vectors = self.represent(batch, torch.cat([positives, batch.negatives.ids]))
        own, shared = vectors[: len(hidden)], vectors[len(hidden) :]
        positive, negative = (hidden * own).sum(1).float(), (hidden @ shared.T).float()
        negative = negative.masked_fill(positives[:, None] == batch.negatives.ids, -torch.inf)
        scores = Sampled(
            positive, negative, batch.negatives.log_expected, self.item_table.n_items, self.gbce_calibration
        )
        return (SAMPLED_LOSSES[self.loss](scores) * is_real).sum()

    @property
    def tables(self) -> list[Table]:
        """Those that can be sharded."""
        return [module for module in self.modules() if isinstance(module, Table)]

    def n_ids(self, *, n_positions: int, n_candidates: int) -> dict[str, int]:
        """How many ids each feature of the tables has in a step of a process."""
        return {"item": n_positions, "candidate": n_candidates}

    def floats_kept(self, n_positions: int, n_targets: int) -> int:
        """Numbers that a step keeps for backward, without vectors that are looked up and scores."""
        return self.encoder.floats_kept(n_positions, n_targets)
