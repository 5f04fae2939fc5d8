"""Initial weights that depend on the seed, the table and the row alone, whoever holds them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.models.sequence_model import Bert4Rec
from bert4rec.sharding.parallelize import ROWS_PER_BLOCK, fill_rows, initialize

N_ROWS = 2 * ROWS_PER_BLOCK + 500


def drawn(
    n_rows: int, *, first: int = 0, columns: range = range(4), name: str = "table", seed: int = 7
) -> torch.Tensor:
    """A shard of a table with four columns that are drawn."""
    part = torch.full((n_rows, len(columns)), torch.nan)
    fill_rows(part, name, first, columns.start, 4, seed)
    return part


TABLE = drawn(N_ROWS, columns=range(6))


@given(st.integers(0, N_ROWS), st.integers(0, N_ROWS), st.integers(0, 5), st.integers(0, 6))
@settings(max_examples=50, deadline=None)
def test_rows_are_the_same_wherever_a_shard_begins_and_ends(first: int, last: int, left: int, right: int) -> None:
    part = drawn(max(0, last - first), first=first, columns=range(left, max(left, right)))
    assert torch.equal(part, TABLE[first : max(first, last), left : max(left, right)])


def test_other_seeds_and_other_tables_have_other_rows() -> None:
    table = TABLE[:, :4]
    others = [drawn(100, seed=8), drawn(100, name="other"), *(table[n : n + 100] for n in (100, ROWS_PER_BLOCK))]
    for rows in others:
        assert not torch.isclose(rows, table[:100]).all(dim=1).any()
    assert len(table.unique(dim=0)) == len(table)
    assert abs(table.std() - 0.02) < 0.002
    assert not TABLE[:, 4:].any()


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
    assert torch.equal(table, drawn(10, name=name, columns=range(8 if head == "tied" else 4)))
    ones = {name for name, weight in weights.items() if (weight == 1).all()}
    zeros = {name for name, weight in weights.items() if (weight == 0).all()}
    assert ones == {f"encoder.{name}.weight" for name in ("norm", "blocks.0.attention_norm", "blocks.0.ffn_norm")}
    assert zeros == {name for name in weights if name.endswith("bias")}
    others = [weight for name, weight in weights.items() if name not in ones | zeros]
    assert all(weight.isfinite().all() and weight.std() > 0 for weight in others)
