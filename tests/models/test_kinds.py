"""Kinds of trained models: names, ranking interface, what they learn from."""

from dataclasses import fields

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from bert4rec.config.kinds import KINDS
from bert4rec.dataset.format import NO_ITEM
from bert4rec.dataset.histories import Rows
from bert4rec.feed.batch import Lookup
from bert4rec.models.names import ENCODER, HEAD, HEAD_BIAS, MASK, TABLE
from bert4rec.models.ranking_model import model_class
from bert4rec.models.sequence_model import Bert4Rec, SASRec, SequenceModel
from bert4rec.models.tables import saved_name
from bert4rec.models.transformer import EncoderSettings
from tests.feed.shown import shown
from tests.models.networks import N_ITEMS, POSITIONS, SEQUENCES, WIDTH, batch, hidden_of, model

TRAINED = [name for name, kind in KINDS.items() if kind.is_trained]


@pytest.mark.parametrize("kind", TRAINED)
def test_what_is_known_of_a_kind_without_its_class_is_so(kind: str) -> None:
    found = model_class(kind)
    assert found.kind is KINDS[kind]
    assert issubclass(found, SequenceModel) == KINDS[kind].is_transformer


def test_all_weights_have_these_names() -> None:
    def names(kind: type[SequenceModel], head: str) -> set[str]:
        saved = map(saved_name, model(kind, head=head).state_dict())
        return {name for name in saved if not name.startswith(ENCODER)}

    assert names(Bert4Rec, "tied") == {TABLE, MASK}
    assert names(SASRec, "linear") == {TABLE, HEAD, HEAD_BIAS}


@pytest.mark.parametrize("kind", TRAINED)
def test_a_kind_names_its_settings(kind: str) -> None:
    """All that the builder gives a model is there for it to take."""
    from inspect import signature

    traits, model = KINDS[kind], model_class(kind)
    accepted = {*signature(model).parameters}
    if traits.is_transformer:
        accepted |= {field.name for field in fields(EncoderSettings)}
    assert {*traits.size_arguments, *traits.settings} == accepted - {
        "encoder",
        "loss",
        "features",
        "n_events",
        "device",
    }
    assert traits.title


MASKING = {"seed": 1, "n_items": 50, "mask_prob": 0.5, "last_item_mask_prob": 0.0, "mask_token_share": 1.0,
           "random_token_share": 0.0}  # fmt: skip


def test_it_is_trained_on_masked_positions() -> None:
    items = torch.arange(2, 32)
    rows = Rows(np.arange(2, 32, dtype=np.int32), np.array([10, 20]))
    batch = Bert4Rec.make_examples(**MASKING)(rows, np.arange(2), 0)
    assert (shown(batch)[batch.positions] == NO_ITEM).all()
    assert torch.equal(batch.targets, items[batch.positions])


def test_a_plan_counts_the_mean_of_masked_positions_and_one_more_a_sequence_or_every_position() -> None:
    assert SASRec.kind.n_targets(64, 3200, mask_prob=0.2) == 3200
    assert Bert4Rec.kind.n_targets(64, 3200, mask_prob=0.2) == 704
    assert Bert4Rec.kind.n_targets(64, 128, mask_prob=0.9) == 128


HISTORY = [5, 6, 7, 8]
TAKEN = [100, 103, 500, 90_000]


@pytest.mark.parametrize("times", ["none", "history", "target"])
def test_what_it_is_trained_on_is_what_it_is_asked(times: str) -> None:
    """The loss of a sequence is the sum of what each of its beginnings, asked for the next item, has to say."""
    network = model(SASRec, times=times)
    with torch.no_grad():
        network.encoder.positions.weight.zero_()  # which count from the end
    taken = None if times == "none" else np.array(TAKEN)
    rows = Rows(np.array(HISTORY, np.int32), np.array([4]), times=taken)
    batch = SASRec.make_examples(times=times)(rows, np.array([0]), 0)
    vectors = network.item_table.candidates(Lookup.of(torch.arange(N_ITEMS)))
    expected = torch.zeros(())
    for n in range(1, len(HISTORY)):
        known = {} if taken is None else {"times": taken[:n], "target_times": taken[n : n + 1]}
        asked = SASRec.inference_batch(Rows(np.array(HISTORY[:n], np.int32), np.array([n]), **known), 12, times)
        hidden, _ = network.encode_queries(asked, Lookup.of(torch.tensor([], dtype=torch.int64)))
        expected = expected + F.cross_entropy(hidden @ vectors.T, torch.tensor([HISTORY[n]]))
    torch.testing.assert_close(network(batch), expected)


def test_the_loss_is_the_cross_entropy_of_the_masked_positions() -> None:
    network = model()
    asked = batch(SEQUENCES, POSITIONS)
    hidden = hidden_of(network, asked)
    vectors, bias, _ = network.item_table.collection.embeddings["item"].weight.split([WIDTH, 1, 3], dim=1)
    scores = hidden[:, :WIDTH] @ vectors.T + bias[:, 0]
    expected = -torch.log_softmax(scores, dim=1)[torch.arange(len(scores)), asked.targets].sum()
    torch.testing.assert_close(network(asked), expected)


def test_padding_as_target_counts_nothing() -> None:
    network = model()
    asked = batch(SEQUENCES, POSITIONS)
    nothing = asked._replace(targets=torch.full_like(asked.targets, NO_ITEM))
    loss = network(nothing)
    loss.backward()
    assert loss.item() == 0.0
    assert all(weight.grad is not None and not weight.grad.any() for weight in network.parameters())


@pytest.mark.parametrize("kind", ["bert4rec", "sasrec"])
@pytest.mark.parametrize("head", ["tied", "linear"])
def test_every_weight_learns(head: str, kind: str) -> None:
    kind_of_model = model_class(kind)
    assert issubclass(kind_of_model, SequenceModel)
    network = model(kind_of_model, head=head)
    shown = [[2, NO_ITEM, 4], *SEQUENCES[1:]] if network.kind.has_mask_token else SEQUENCES
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
    )  # fmt: skip
    assert {weight.device.type for weight in huge.parameters()} == {"meta"}
