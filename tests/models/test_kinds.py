"""Kinds of trained models: their settings, what they learn from, and that all of their weights learn."""

from dataclasses import fields
from inspect import signature
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from bert4rec.config.kinds import KINDS, needs_negatives
from bert4rec.dataset.format import NO_ITEM
from bert4rec.dataset.histories import Rows
from bert4rec.feed.batch import Candidates, Lookup, Pairs
from bert4rec.feed.negatives import Negatives
from bert4rec.models.ranking_model import RankingModel, model_class
from bert4rec.models.sequence_model import Bert4Rec, SASRec, SequenceModel
from bert4rec.models.transformer import EncoderSettings
from tests.models.networks import N_ITEMS, POSITIONS, SEQUENCES, WIDTH, batch, factors, hidden_of, model


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.is_trained])
def test_a_kind_names_all_settings_that_its_class_takes(name: str) -> None:
    kind, found = KINDS[name], model_class(name)
    assert found.kind is kind
    assert issubclass(found, SequenceModel) == kind.is_transformer
    accepted = {*signature(found).parameters}
    if kind.is_transformer:
        accepted |= {field.name for field in fields(EncoderSettings)}
    given = {"encoder", "loss", "features", "n_events", "device"}
    assert {*kind.size_arguments, *kind.settings} == accepted - given


HISTORY = [5, 6, 7, 8]
TAKEN = [100, 103, 500, 90_000]


@pytest.mark.parametrize("times", ["none", "history", "target"])
def test_a_loss_is_the_sum_of_those_of_each_beginning_of_a_sequence_asked_for_the_next_item(times: str) -> None:
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
        expected = expected + F.cross_entropy(hidden_of(network, asked) @ vectors.T, torch.tensor([HISTORY[n]]))
    torch.testing.assert_close(network(batch), expected)


@pytest.mark.parametrize("head", ["tied", "linear"])
def test_candidates_give_the_scores_that_training_used(head: str) -> None:
    network, asked = model(head=head), batch(SEQUENCES, POSITIONS)
    vectors = network.item_table.candidates(Lookup.of(torch.arange(N_ITEMS)))
    assert vectors.shape == (N_ITEMS, WIDTH + {"tied": 4, "linear": 1}[head])
    expected = F.cross_entropy(hidden_of(network, asked) @ vectors.T, asked.targets, reduction="sum")
    torch.testing.assert_close(network(asked), expected)
    with torch.autocast("cpu", torch.bfloat16):
        loss = network(asked)
    assert loss.dtype == torch.float32
    assert abs(loss / expected - 1) < 0.02


LOSSES = ("softmax", "sampled_softmax", "gbce", "bpr", "mse")
WAYS = [(kind, head, loss) for kind in (Bert4Rec, SASRec) for head in ("tied", "linear") for loss in LOSSES[:3]]
FACTORS = [
    (None, form, loss) for form in ("dot", "bias", "neural") for loss in LOSSES if (form, loss) != ("neural", LOSSES[0])
]


def example(kind: type[SequenceModel] | None, form: str, loss: str) -> tuple[RankingModel, Any]:
    """A network and a batch, with the mask token if the kind has one."""
    if kind is None:
        pairs = Pairs.between(torch.tensor([0, 5, 5, 2]), torch.tensor([0, 19, 1, 7]), torch.tensor([1.0, 5, 3.5, 0.5]))
        return factors(form, loss), pairs
    shown = [[2, NO_ITEM, 4], *SEQUENCES[1:]] if kind.kind.has_mask_token else SEQUENCES
    return model(kind, loss, head=form), batch(shown, POSITIONS)


@pytest.mark.parametrize("has_targets", [True, False])
@pytest.mark.parametrize(("kind", "form", "loss"), WAYS + FACTORS)
def test_every_weight_learns_from_targets_and_none_without(
    kind: type[SequenceModel] | None, form: str, loss: str, has_targets: bool
) -> None:
    network, asked = example(kind, form, loss)
    if not has_targets:
        asked = asked._replace(targets=torch.full_like(asked.targets, NO_ITEM))
    if needs_negatives(loss) or loss == "mse":
        negatives = Negatives(torch.tensor([2, 7, 18]), torch.zeros(3))
        asked = asked._replace(candidates=Candidates.of(asked.targets, negatives))
    found = network(asked)
    found.backward()
    gradients = {name: weight.grad for name, weight in network.named_parameters()}
    assert None not in gradients.values()
    still = {name for name, gradient in gradients.items() if not gradient.any()}
    if has_targets:
        assert still <= {"mlp.layers.1.bias"}  # of a ranking: it is the same for all items
    else:
        assert (found.item(), still) == (0.0, gradients.keys())
