"""What makes a model a Bert4Rec."""

import torch

from bert4rec.dataset.schema import MASK_ID
from bert4rec.models.bert4rec import Bert4Rec
from tests.feed.shown import shown

MASKING = {"seed": 1, "n_rows": 50, "mask_prob": 0.5, "last_item_mask_prob": 0.0, "mask_token_share": 1.0,
           "random_token_share": 0.0}  # fmt: skip


def test_it_is_trained_on_masked_positions() -> None:
    items, lengths = torch.arange(2, 32), torch.tensor([10, 20])
    batch = Bert4Rec.make_examples(**MASKING)(items, lengths, torch.arange(2), 0)
    assert (shown(batch)[batch.positions] == MASK_ID).all()
    assert torch.equal(batch.targets, items[batch.positions])


def test_a_plan_counts_the_mean_and_one_more_a_sequence() -> None:
    assert Bert4Rec.n_targets(64, 3200, mask_prob=0.2) == 704
    assert Bert4Rec.n_targets(64, 128, mask_prob=0.9) == 128
