"""The network: ragged = padded by hand, and a sequence's output does not depend on its neighbours."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bert4rec.dataset.schema import FIRST_ITEM_ID, PAD_ID
from bert4rec.feed.batch import Batch
from bert4rec.models.bert4rec import Bert4Rec
from bert4rec.sharding.initialization import initialize

N_ITEMS, WIDTH, HEADS, MAX_LEN = 38, 16, 2, 12


def model(**changes: Any) -> Bert4Rec:
    shape: dict[str, Any] = {
        "n_items": N_ITEMS, "embed_dim": WIDTH, "n_heads": HEADS, "n_layers": 2, "ffn_dim": 24, "max_len": MAX_LEN,
        "dropout": 0.0, "head": "tied", "output_bias": True, "device": "cpu",
    }  # fmt: skip
    made = Bert4Rec(**shape | changes)
    initialize(made, seed=3)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():  # zeros and ones would hide a weight that is not used
        for weight in made.parameters():
            weight += 0.3 * torch.randn(weight.shape, generator=generator)
    return made


def batch(sequences: list[list[int]], positions: list[list[int]]) -> Batch:
    """Positions are given within each sequence."""
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    starts = (lengths.cumsum(0) - lengths).tolist()
    flat = torch.tensor([a + p for a, inside in zip(starts, positions, strict=True) for p in inside])
    items = torch.tensor([item for sequence in sequences for item in sequence])
    return Batch(items, lengths, flat, items[flat])


def hidden_of(made: Bert4Rec, asked: Batch) -> Tensor:
    return made.represent(asked, torch.tensor([], dtype=torch.int64))[0]


SEQUENCES = [[2, 3, 4], [5, 6, 7, 8, 9, 10, 11], [12, 13], [14, 15, 16, 17]]
POSITIONS = [[0, 2], [1, 5, 6], [1], [0, 1, 2, 3]]


def plainly(made: Bert4Rec, sequence: list[int]) -> Tensor:
    """Hidden states of one whole sequence, written out once more without raggedness, heads in a loop."""
    encoder = made.encoder
    table = made.item_table.collection.embeddings["item"].weight[:, :WIDTH]
    n = len(sequence)
    x = table[torch.tensor(sequence)] + encoder.positions.weight[torch.arange(n - 1, -1, -1)]
    for block in encoder.blocks:
        h = block.attention_norm(x)
        q, (k, v) = block.query(h), block.key_value(h).chunk(2, dim=-1)
        heads = []
        for part in torch.arange(WIDTH).chunk(HEADS):
            attention = torch.softmax(q[:, part] @ k[:, part].T / len(part) ** 0.5, dim=-1)
            heads.append(attention @ v[:, part])
        x = x + block.attention_out(torch.cat(heads, dim=1))
        x = x + block.ffn_out(F.gelu(block.ffn_in(block.ffn_norm(x))))
    return encoder.norm(x)


def test_hidden_states_are_those_of_a_plain_transformer() -> None:
    made = model()
    expected = torch.cat([plainly(made, s)[p] for s, p in zip(SEQUENCES, POSITIONS, strict=True)])
    hidden, behind = hidden_of(made, batch(SEQUENCES, POSITIONS)).split([WIDTH, 4], dim=1)
    torch.testing.assert_close(hidden, expected, rtol=0, atol=1e-5)
    assert torch.equal(behind, torch.tensor([1.0, 0.0, 0.0, 0.0]).expand(len(expected), -1))


def test_many_rows_go_through_attention_in_groups() -> None:
    made = model()
    sequences = [SEQUENCES[i % 4] for i in range(50)]
    positions = [POSITIONS[i % 4] for i in range(50)]
    expected = torch.cat([plainly(made, s)[p] for s, p in zip(sequences, positions, strict=True)])
    hidden = hidden_of(made, batch(sequences, positions))[:, :WIDTH]
    torch.testing.assert_close(hidden, expected, rtol=0, atol=1e-5)


def test_an_output_does_not_depend_on_the_batch() -> None:
    made = model()
    together = hidden_of(made, batch(SEQUENCES, POSITIONS)).split([len(p) for p in POSITIONS])
    for sequence, positions, expected in zip(SEQUENCES, POSITIONS, together, strict=True):
        torch.testing.assert_close(hidden_of(made, batch([sequence], [positions])), expected, rtol=0, atol=1e-5)


def test_positions_count_from_the_end() -> None:
    """The last item's position vector is row 0, whatever the length: without attention nothing else matters."""
    made = model()
    with torch.no_grad():
        for block in made.encoder.blocks:
            block.attention_out.weight.zero_()
    short, long = hidden_of(made, batch([[7, 5], [9, 8, 7, 5]], [[0, 1], [2, 3]])).chunk(2)
    torch.testing.assert_close(short, long, rtol=0, atol=1e-5)


def test_the_loss_is_the_cross_entropy_of_the_masked_positions() -> None:
    made = model()
    asked = batch(SEQUENCES, POSITIONS)
    hidden = hidden_of(made, asked)
    vectors, bias, _ = made.item_table.collection.embeddings["item"].weight[FIRST_ITEM_ID:].split([WIDTH, 1, 3], dim=1)
    scores = hidden[:, :WIDTH] @ vectors.T + bias[:, 0]
    expected = -torch.log_softmax(scores, dim=1)[torch.arange(len(scores)), asked.targets - FIRST_ITEM_ID].sum()
    torch.testing.assert_close(made(asked), expected)


def test_padding_as_target_counts_nothing() -> None:
    made = model()
    asked = batch(SEQUENCES, POSITIONS)
    nothing = Batch(asked.items, asked.lengths, asked.positions, torch.full_like(asked.targets, PAD_ID))
    loss = made(nothing)
    loss.backward()
    assert loss.item() == 0.0
    assert all(weight.grad is not None and not weight.grad.any() for weight in made.parameters())


@pytest.mark.parametrize("head", ["tied", "linear"])
@pytest.mark.parametrize("output_bias", [True, False])
def test_candidates_give_the_scores_that_training_used(head: str, output_bias: bool) -> None:
    made = model(head=head, output_bias=output_bias)
    asked = batch(SEQUENCES, POSITIONS)
    vectors = made.item_table.candidates(FIRST_ITEM_ID + torch.arange(N_ITEMS))
    assert vectors.shape == (N_ITEMS, WIDTH + {"tied": 4, "linear": 1}[head] * output_bias)
    scores = hidden_of(made, asked) @ vectors.T
    torch.testing.assert_close(F.cross_entropy(scores, asked.targets - FIRST_ITEM_ID, reduction="sum"), made(asked))


@pytest.mark.parametrize("head", ["tied", "linear"])
def test_every_weight_learns(head: str) -> None:
    made = model(head=head)
    made(batch(SEQUENCES, POSITIONS)).backward()
    assert [name for name, weight in made.named_parameters() if weight.grad is None or not weight.grad.any()] == []


def test_bf16_autocast_stays_near_fp32() -> None:
    made = model()
    asked = batch(SEQUENCES, POSITIONS)
    expected = made(asked)
    with torch.autocast("cpu", torch.bfloat16):
        loss = made(asked)
    assert loss.dtype == torch.float32
    assert abs(loss / expected - 1) < 0.02


def test_a_built_model_takes_no_memory() -> None:
    huge = Bert4Rec(
        n_items=10**9, embed_dim=128, n_heads=2, n_layers=1, ffn_dim=8, max_len=5, dropout=0.0, head="tied",
        output_bias=True,
    )  # fmt: skip
    assert {weight.device.type for weight in huge.parameters()} == {"meta"}
