"""Losses of whole models, of each kind."""

import pytest
import torch

from bert4rec.dataset.schema import FIRST_ITEM_ID, MASK_ID, PAD_ID
from bert4rec.models.bert4rec import Bert4Rec
from bert4rec.models.kinds import KINDS
from bert4rec.models.sequence_model import SequenceModel
from tests.models.networks import POSITIONS, SEQUENCES, WIDTH, batch, hidden_of, model


def test_the_loss_is_the_cross_entropy_of_the_masked_positions() -> None:
    network = model()
    asked = batch(SEQUENCES, POSITIONS)
    hidden = hidden_of(network, asked)
    vectors, bias, _ = (
        network.item_table.collection.embeddings["item"].weight[FIRST_ITEM_ID:].split([WIDTH, 1, 3], dim=1)
    )
    scores = hidden[:, :WIDTH] @ vectors.T + bias[:, 0]
    expected = -torch.log_softmax(scores, dim=1)[torch.arange(len(scores)), asked.targets - FIRST_ITEM_ID].sum()
    torch.testing.assert_close(network(asked), expected)


def test_padding_as_target_counts_nothing() -> None:
    network = model()
    asked = batch(SEQUENCES, POSITIONS)
    nothing = asked._replace(targets=torch.full_like(asked.targets, PAD_ID))
    loss = network(nothing)
    loss.backward()
    assert loss.item() == 0.0
    assert all(weight.grad is not None and not weight.grad.any() for weight in network.parameters())


@pytest.mark.parametrize("kind", ["bert4rec", "sasrec"])
@pytest.mark.parametrize("head", ["tied", "linear"])
def test_every_weight_learns(head: str, kind: str) -> None:
    kind_of_model = KINDS[kind]
    assert issubclass(kind_of_model, SequenceModel)
    network = model(kind_of_model, head=head)
    shown = [[2, MASK_ID, 4], *SEQUENCES[1:]] if network.has_mask_token else SEQUENCES
    network(batch(shown, POSITIONS)).backward()
    assert [name for name, weight in network.named_parameters() if weight.grad is None or not weight.grad.any()] == []


def test_bf16_autocast_stays_near_fp32() -> None:
    network = model()
    asked = batch(SEQUENCES, POSITIONS)
    expected = network(asked)
    with torch.autocast("cpu", torch.bfloat16):
        loss = network(asked)
    assert loss.dtype == torch.float32
    assert abs(loss / expected - 1) < 0.02


def test_a_built_model_takes_no_memory() -> None:
    huge = Bert4Rec(
        n_items=10**9, embed_dim=128, n_heads=2, n_layers=1, ffn_dim=8, max_len=5, dropout=0.0, head="tied",
        output_bias=True,
    )  # fmt: skip
    assert {weight.device.type for weight in huge.parameters()} == {"meta"}
