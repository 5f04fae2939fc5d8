"""The plain network says what the model says that was trained."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from bert4rec.dataset.histories import Rows
from bert4rec.feed.batch import Lookup
from bert4rec.models.sequence_model import Bert4Rec, SASRec, SequenceModel
from bert4rec.models.tables import saved_name
from bert4rec.serving.network import Network, make_network
from tests.conftest import long
from tests.models.networks import HEADS, MAX_LEN, N_ITEMS, WIDTH, model

HISTORIES = [[2, 3, 4], [37], [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]]


def network_of(trained: SequenceModel) -> Network:
    tensors = {saved_name(name): value for name, value in trained.state_dict().items()}
    shape: dict[str, Any] = {"embed_dim": WIDTH, "n_heads": HEADS, "n_layers": 2, "ffn_dim": 24}
    shape |= {"max_len": MAX_LEN, "dropout": 0.0}
    shape |= {"positions": "rotary" if trained.encoder.positions is None else "learned", "times": trained.times}
    shape |= {
        "input_norm": trained.encoder.input_norm,
        "kind": "bert4rec" if isinstance(trained, Bert4Rec) else "sasrec",
    }
    return make_network(tensors, shape, is_causal=trained.kind.is_causal)


class BothWays(SASRec):
    """Sees the whole history, and asks without a mask token."""

    kind = replace(SASRec.kind, is_causal=False)


class AskingByMask(Bert4Rec):
    """Sees what comes before, and asks by a mask token."""

    kind = replace(Bert4Rec.kind, is_causal=True)


KINDS = pytest.mark.parametrize("kind", [Bert4Rec, SASRec, BothWays, AskingByMask])
SHAPES = pytest.mark.parametrize(
    ("head", "positions"),
    [("tied", "rotary"), ("linear", "learned"), long("tied", "learned"), long("linear", "rotary")],
)


@KINDS
@SHAPES
@torch.no_grad()
def test_scores_are_those_of_the_model(kind: type[SequenceModel], head: str, positions: str) -> None:
    is_rotary = positions == "rotary"
    trained = model(kind, head=head, positions=positions, input_norm=is_rotary)
    ids, lengths = [item for items in HISTORIES for item in items], [len(items) for items in HISTORIES]
    asked = trained.inference_batch(Rows(np.array(ids, np.int32), np.array(lengths)), MAX_LEN)
    hidden, vectors = trained.encode_queries(asked, Lookup.of(torch.arange(N_ITEMS)))
    network = network_of(trained)
    assert network.max_len == MAX_LEN - 1
    found = network(torch.tensor(ids), torch.tensor(lengths))
    torch.testing.assert_close(found @ network.item_vectors.T, hidden @ vectors.T)


@KINDS
@pytest.mark.parametrize("times", ["history", "target"])
@torch.no_grad()
def test_scores_of_a_model_that_knows_times_are_those_of_the_model(kind: type[SequenceModel], times: str) -> None:
    trained = model(kind, times=times)
    ids, lengths = [item for items in HISTORIES for item in items], [len(items) for items in HISTORIES]
    seconds, at = np.cumsum(np.arange(len(ids)) ** 3), np.array([40, 60, 10**6])
    asked = trained.inference_batch(
        Rows(np.array(ids, np.int32), np.array(lengths), times=seconds, target_times=at), MAX_LEN, times
    )  # fmt: skip
    hidden, _ = trained.encode_queries(asked, Lookup.of(torch.arange(N_ITEMS)))
    network = network_of(trained)
    found = network(torch.tensor(ids), torch.tensor(lengths), torch.from_numpy(seconds), torch.from_numpy(at))
    torch.testing.assert_close(found, hidden)
    earlier = network(torch.tensor(ids), torch.tensor(lengths), torch.from_numpy(seconds), torch.from_numpy(at - 5))
    assert torch.equal(earlier, found) == (times == "history")
