"""Initial weights that depend on the seed, the table and the row alone, whoever holds them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.models.sequence_model import Bert4Rec
from bert4rec.sharding import parallelize
from bert4rec.sharding.parallelize import ROWS_PER_BLOCK, initial_rows, initialize

N_ROWS = 2 * ROWS_PER_BLOCK + 500
TABLE = initial_rows("table", 0, N_ROWS, 4, seed=7)


@given(st.integers(0, N_ROWS - 1), st.integers(1, N_ROWS))
@settings(max_examples=50, deadline=None)
def test_rows_are_the_same_wherever_a_shard_begins_and_ends(first: int, n_rows: int) -> None:
    n_rows = min(n_rows, N_ROWS - first)
    assert torch.equal(initial_rows("table", first, n_rows, 4, seed=7), TABLE[first : first + n_rows])


def test_each_block_of_a_shard_is_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []

    def noted(name: str, first: int, n_rows: int, width: int, seed: int) -> torch.Tensor:
        drawn.append((first // ROWS_PER_BLOCK, (first + n_rows - 1) // ROWS_PER_BLOCK))
        return initial_rows(name, first, n_rows, width, seed)

    monkeypatch.setattr(parallelize, "initial_rows", noted)
    for first, n_rows in ((0, N_ROWS), (300, N_ROWS - 300), (ROWS_PER_BLOCK, 9), (ROWS_PER_BLOCK - 1, 2), (5, 0)):
        part, _ = torch.full((n_rows, 5), torch.nan), drawn.clear()
        parallelize.fill_rows(part, "table", first, 1, 4, seed=7)
        assert torch.equal(part[:, :3], TABLE[first : first + n_rows, 1:])
        assert not part[:, 3:].any()
        blocks = range(first // ROWS_PER_BLOCK, -(-(first + n_rows) // ROWS_PER_BLOCK) if n_rows else 0)
        assert drawn == [(block, block) for block in blocks]


def test_other_seeds_and_other_tables_have_other_rows() -> None:
    others = [initial_rows("table", 0, 100, 4, seed=8), initial_rows("other", 0, 100, 4, seed=7)]
    for rows in [*others, TABLE[100:200], TABLE[ROWS_PER_BLOCK : ROWS_PER_BLOCK + 100]]:
        assert not torch.isclose(rows, TABLE[:100]).all(dim=1).any()
    assert len(TABLE.unique(dim=0)) == len(TABLE)
    assert abs(TABLE.std() - 0.02) < 0.002


@pytest.mark.parametrize("head", ["tied", "linear"])
def test_every_weight_of_a_model_is_filled(head: str) -> None:
    """The norms by ones, biases by zeros, the table by its rows, and zeros in the columns of the bias behind them."""
    shape = {"n_items": 10, "embed_dim": 4, "n_heads": 2, "n_layers": 1, "ffn_dim": 8, "max_len": 3}
    model = Bert4Rec(**shape, dropout=0.0, head=head, device="cpu")
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(torch.nan)
    initialize(model, seed=7)
    weights = model.state_dict()
    table = weights.pop("item_table.collection.embeddings.item.weight")
    name = "item_table.embeddings.item.weight"
    assert torch.equal(table[:, :4], initial_rows(name, 0, 10, 4, seed=7))
    assert table[:, 4:].tolist() == ([[0.0] * 4] * 10 if head == "tied" else [[]] * 10)
    ones = {name for name, weight in weights.items() if (weight == 1).all()}
    zeros = {name for name, weight in weights.items() if (weight == 0).all()}
    assert ones == {f"encoder.{name}.weight" for name in ("norm", "blocks.0.attention_norm", "blocks.0.ffn_norm")}
    assert zeros == {name for name in weights if name.endswith("bias")}
    drawn = [weight for name, weight in weights.items() if name not in ones | zeros]
    assert all(weight.isfinite().all() and weight.std() > 0 for weight in drawn)
