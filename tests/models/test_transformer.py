"""The encoder: attention, padding, positions, times, as written-out arithmetic."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bert4rec.models import transformer
from bert4rec.models.sequence_model import Bert4Rec, SASRec, SequenceModel
from bert4rec.models.transformer import (
    BETWEEN_DATES,
    N_DATES,
    N_GAPS,
    Dates,
    Dropout,
    Rotation,
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


MANY = [SEQUENCES[i % 4] for i in range(12)]
SOMEWHERE = [POSITIONS[i % 4] if i % 3 else [] for i in range(12)]


@KINDS
@POSITION_KINDS
@pytest.mark.parametrize(
    ("at_a_time", "sequences", "positions"),
    [(2048, SEQUENCES, POSITIONS), (2048, SEQUENCES, EVERYWHERE), (1, MANY, SOMEWHERE), (16, MANY, SOMEWHERE)],
    ids=["some positions", "all positions", "each sequence apart", "in groups"],
)
def test_hidden_states_and_gradients_are_those_of_a_plain_transformer(
    kind: type[SequenceModel], encoding: str, at_a_time: int, sequences: list[list[int]], positions: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(transformer, "POSITIONS_AT_A_TIME", at_a_time)
    network = model(kind, positions=encoding, input_norm=encoding == "rotary")
    expected = torch.cat([plainly(network, s)[p] for s, p in zip(sequences, positions, strict=True)])
    hidden, behind = hidden_of(network, batch(sequences, positions)).split([WIDTH, 4], dim=1)
    torch.testing.assert_close(hidden, expected, rtol=0, atol=1e-5)
    assert torch.equal(behind, torch.tensor([1.0, 0.0, 0.0, 0.0]).expand(len(expected), -1))
    factors, weights = torch.randn(hidden.shape), list(network.encoder.parameters())
    ours, plain = (torch.autograd.grad((each * factors).sum(), weights) for each in (hidden, expected))
    torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-4)


def test_what_is_turned_keeps_its_precision_and_length() -> None:
    places, vectors = torch.arange(5), torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(1))
    rotation = Rotation.of(places, HEADS, WIDTH // HEADS)
    whole, half = rotation.rotate(vectors), rotation.rotate(vectors.bfloat16())
    torch.testing.assert_close(whole.norm(dim=1), vectors.norm(dim=1))
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), whole, rtol=0, atol=0.05)


def test_dropout_keeps_its_share_scaled_and_follows_the_seed() -> None:
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
def test_a_gap_and_a_date_add_their_vectors(kind: type[SequenceModel]) -> None:
    network, without = (model(kind, positions="rotary", times=times).encoder for times in ("target", "none"))
    without.load_state_dict(network.state_dict(), strict=False)
    asked = batch(SEQUENCES, POSITIONS)
    gaps, instants = torch.arange(len(asked.places)) ** 4, torch.arange(len(asked.positions)) * 10**8
    vectors = torch.randn(len(asked.places), WIDTH)
    found = network(vectors, asked.lengths, asked.positions, gaps, instants)
    shifted = vectors + network.gaps.weight[bucketize_time_delta(gaps)]
    assert torch.equal(found, without(shifted, asked.lengths, asked.positions) + network.dates(instants))


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
