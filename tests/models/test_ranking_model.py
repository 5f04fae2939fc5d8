"""What all kinds of models have in common."""

import pytest
import torch

from bert4rec.dataset.schema import FIRST_ITEM_ID, PAD_ID
from bert4rec.feed.batch import Pairs
from bert4rec.models.kinds import KINDS
from bert4rec.models.ranking_model import real_targets


def test_targets_that_are_padding_give_place_to_an_item() -> None:
    is_real, items = real_targets(Pairs(torch.tensor([0, 1]), torch.tensor([PAD_ID, 7])))
    assert (is_real.tolist(), items.tolist()) == ([False, True], [FIRST_ITEM_ID, 7])


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_kind_names_its_settings(kind: str) -> None:
    """All that the builder gives a model is there for it to take."""
    from inspect import signature

    model = KINDS[kind]
    accepted = signature(model).parameters
    takes_more = "encoder" in accepted
    names = {*model.tables_of, *model.settings, *model.loss_settings}
    assert {name for name in names if name not in accepted} == (
        {"n_heads", "n_layers", "ffn_dim", "max_len", "dropout"} if takes_more else set()
    )
    assert (bool(model.title), bool(model.unit)) == (True, True)
