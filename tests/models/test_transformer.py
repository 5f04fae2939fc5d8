"""The encoder: attention, padding, positions, times, as written-out arithmetic."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bert4rec.models import transformer
from bert4rec.models.sequence_model import Bert4Rec, SASRec, SequenceModel
from bert4rec.models.transformer import (
    BETWEEN_DATES,
    N_DATES,
    N_GAPS,
    Dates,
    Dropout,
    Rotation,
    append_ones,
    bucketize_time_delta,
)
from tests.models.networks import HEADS, POSITIONS, SEQUENCES, WIDTH, batch, hidden_of, model

KINDS = pytest.mark.parametrize("kind", [Bert4Rec, SASRec])
POSITION_KINDS = pytest.mark.parametrize("encoding", ["learned", "rotary"])
EVERYWHERE = [list(range(len(sequence))) for sequence in SEQUENCES]


def turned(vector: Tensor, place: int) -> Tensor:
    """Consecutive values as complex numbers, each turned by the place times its frequency."""
    first, second = vector[::2], vector[1::2]
    angles = torch.tensor([place / 10_000 ** (2 * i / len(vector)) for i in range(len(first))])
    numbers = torch.complex(first, second) * torch.polar(torch.ones(len(first)), angles)
    return torch.view_as_real(numbers).flatten()


def plainly(network: SequenceModel, sequence: list[int]) -> Tensor:
    """Hidden states of one whole sequence, written out once more without raggedness, heads in a loop."""
    encoder = network.encoder
    table = network.item_table.collection.embeddings["item"].weight[:, :WIDTH]
    n = len(sequence)
    x = table[torch.tensor(sequence)]
    if encoder.positions is not None:
        x = x + encoder.positions.weight[torch.arange(n - 1, -1, -1)]
    if encoder.input_norm:
        x = (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True, correction=0) + 1e-5).sqrt()
    for block in encoder.blocks:
        h = block.attention_norm(x)
        q, (k, v) = block.query(h), block.key_value(h).chunk(2, dim=-1)
        heads = []
        for part in torch.arange(WIDTH).chunk(HEADS):
            asked, known = q[:, part], k[:, part]
            if encoder.positions is None:
                asked, known = (torch.stack([turned(row, i) for i, row in enumerate(rows)]) for rows in (asked, known))
            scores = asked @ known.T / len(part) ** 0.5
            if encoder.is_causal:
                scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)
            attention = torch.softmax(scores, dim=-1)
            heads.append(attention @ v[:, part])
        x = x + block.attention_out(torch.cat(heads, dim=1))
        x = x + block.ffn_out(F.gelu(block.ffn_in(block.ffn_norm(x))))
    return encoder.norm(x)


@KINDS
@POSITION_KINDS
@pytest.mark.parametrize("positions", [POSITIONS, EVERYWHERE], ids=["some positions", "all positions"])
def test_hidden_states_are_those_of_a_plain_transformer(
    kind: type[SequenceModel], encoding: str, positions: list[list[int]]
) -> None:
    network = model(kind, positions=encoding, input_norm=encoding == "rotary")
    expected = torch.cat([plainly(network, s)[p] for s, p in zip(SEQUENCES, positions, strict=True)])
    hidden, behind = hidden_of(network, batch(SEQUENCES, positions)).split([WIDTH, 4], dim=1)
    torch.testing.assert_close(hidden, expected, rtol=0, atol=1e-5)
    assert torch.equal(behind, torch.tensor([1.0, 0.0, 0.0, 0.0]).expand(len(expected), -1))


@KINDS
@POSITION_KINDS
@pytest.mark.parametrize("at_a_time", [1, 16])
def test_many_rows_go_through_the_blocks_in_groups(
    kind: type[SequenceModel], encoding: str, at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transformer, "POSITIONS_AT_A_TIME", at_a_time)
    network = model(kind, positions=encoding)
    sequences = [SEQUENCES[i % 4] for i in range(12)]
    positions = [POSITIONS[i % 4] if i % 3 else [] for i in range(12)]
    expected = torch.cat([plainly(network, s)[p] for s, p in zip(sequences, positions, strict=True)])
    hidden = hidden_of(network, batch(sequences, positions))[:, :WIDTH]
    torch.testing.assert_close(hidden, expected, rtol=0, atol=1e-5)


def test_what_is_turned_keeps_its_precision_and_length() -> None:
    places, vectors = torch.arange(5), torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(1))
    rotation = Rotation.of(places, HEADS, WIDTH // HEADS)
    whole = rotation.rotate(vectors)
    torch.testing.assert_close(whole.norm(dim=1), vectors.norm(dim=1))
    half = rotation.rotate(vectors.bfloat16())
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), whole, rtol=0, atol=0.05)


@KINDS
@POSITION_KINDS
def test_gradients_are_those_of_a_plain_transformer(
    kind: type[SequenceModel], encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transformer, "POSITIONS_AT_A_TIME", 16)
    network = model(kind, positions=encoding)
    weights = list(network.encoder.parameters())
    found = hidden_of(network, batch(SEQUENCES, POSITIONS))[:, :WIDTH]
    expected = torch.cat([plainly(network, s)[p] for s, p in zip(SEQUENCES, POSITIONS, strict=True)])
    factors = torch.randn(found.shape, generator=torch.Generator().manual_seed(1))
    ours, plain = (torch.autograd.grad((hidden * factors).sum(), weights) for hidden in (found, expected))
    for one, other in zip(ours, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_a_one_is_filled_in_and_not_copied_from_the_host() -> None:
    """A copy of a number makes the host wait for a GPU in every forward pass."""
    called: list[str] = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            called.append(func.overloadpacket.__name__)
            return func(*args, **kwargs or {})

    with Recorder():
        widened = append_ones(torch.full((2, 3), 5.0), 6)
    assert widened.tolist() == [[5.0, 5.0, 5.0, 1.0, 0.0, 0.0]] * 2
    assert not {"copy_", "_to_copy", "_copy_from", "lift_fresh", "_local_scalar_dense"} & set(called)


def test_dropout_keeps_its_share_scaled_and_follows_the_seed() -> None:
    """Of 200,001 numbers 30 % are dropped, give or take five standard errors; gradients take the same factors."""
    dropout, values = Dropout(0.3), torch.ones(200_001, requires_grad=True)
    torch.manual_seed(1)
    first = dropout(values)
    rounded = round(0.3 * 2**16) / 2**16
    assert set(first.unique().tolist()) == {0.0, torch.tensor(1 / (1 - rounded)).item()}
    assert (first == 0).float().mean().item() == pytest.approx(0.3, abs=5 * (0.3 * 0.7 / 200_001) ** 0.5)
    assert torch.equal(torch.autograd.grad(first.sum(), values)[0], first)
    assert not torch.equal(dropout(values), first)
    torch.manual_seed(1)
    assert torch.equal(dropout(values, onto=torch.full_like(values, 2)), 2 + first)
    assert torch.equal(dropout.eval()(values), values)


@KINDS
def test_a_gap_adds_the_vector_of_its_kind(kind: type[SequenceModel]) -> None:
    network, without = model(kind, positions="rotary", times="target"), model(kind, positions="rotary")
    asked = batch(SEQUENCES, POSITIONS)
    gaps = torch.arange(len(asked.places)) ** 4
    vectors = torch.randn(len(asked.places), WIDTH)
    shifted = vectors + network.encoder.gaps.weight[bucketize_time_delta(gaps)]
    without.encoder.load_state_dict(network.encoder.state_dict(), strict=False)
    assert torch.equal(
        network.encoder(vectors, asked.lengths, asked.positions, gaps),
        without.encoder(shifted, asked.lengths, asked.positions),
    )


@KINDS
def test_the_vector_of_a_date_is_added_to_each_hidden_state(kind: type[SequenceModel]) -> None:
    network = model(kind, positions="rotary", times="history")
    asked = batch(SEQUENCES, POSITIONS)
    instants = torch.arange(len(asked.positions)) * 10**8
    expected = hidden_of(network, asked)[:, :WIDTH] + network.encoder.dates(instants)
    assert torch.equal(hidden_of(network, asked._replace(instants=instants))[:, :WIDTH], expected)


def test_kinds_of_gaps_are_as_long_as_the_root_of_two() -> None:
    seconds = torch.tensor([0, 1, 2, 3, 7, 2**20 - 1, 2**40, -5])
    assert bucketize_time_delta(seconds).tolist() == [0, 2, 3, 4, 6, 40, N_GAPS - 1, 0]
    gaps = torch.arange(1, 100_000)
    assert torch.equal(bucketize_time_delta(gaps), (2 * torch.log2(1 + gaps.double())).floor().long())


def test_between_two_dates_a_vector_moves_in_a_straight_line_and_beyond_all_of_them_it_stays() -> None:
    dates = Dates(3, "cpu")
    torch.nn.init.normal_(dates.weight)
    instants = torch.tensor([0, 7 * BETWEEN_DATES, 7 * BETWEEN_DATES + BETWEEN_DATES // 4])
    expected = torch.stack([dates.weight[0], dates.weight[7], 0.75 * dates.weight[7] + 0.25 * dates.weight[8]])
    torch.testing.assert_close(dates(instants), expected, rtol=0, atol=1e-6)
    ends = torch.stack([dates.weight[0], dates.weight[-1]])
    torch.testing.assert_close(dates(torch.tensor([-(2**62), 2**62])), ends, rtol=0, atol=1e-5)
    assert N_DATES * BETWEEN_DATES > 4e9  # the next century
    dates(torch.tensor([5 * BETWEEN_DATES + 1, 6 * BETWEEN_DATES - 1])).sum().backward()
    assert dates.weight.grad.abs().sum(1).nonzero().flatten().tolist() == [5, 6]
