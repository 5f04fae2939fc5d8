"""A table: its lookups by feature, and how its parameter is called."""

import torch

from bert4rec.feed.lookup import Lookup
from bert4rec.models.tables.deferred_update import DeferredUpdate
from bert4rec.models.tables.table import Table, is_of_table, saved_name
from tests.models.networks import WithGroups, model


def lookups() -> dict[str, Lookup]:
    return {"b": Lookup.of(torch.tensor([0, 4, 1])), "a": Lookup.of(torch.tensor([4]))}


def table_of_rows() -> Table:
    table = Table("thing", n_rows=5, width=4, features=["a", "b"], device="cpu")
    torch.nn.init.normal_(table.weight)
    return table


def test_each_feature_has_the_rows_of_its_ids() -> None:
    table = table_of_rows()
    found = table.look_up(lookups())
    assert torch.equal(found["a"], table.weight[[4]])
    assert torch.equal(found["b"], table.weight[[0, 4, 1]])
    found = table.look_up({"b": lookups()["b"]})
    assert (found["a"].shape, found["b"].shape) == ((0, 4), (3, 4))


def test_a_deferred_gradient_reaches_the_rows_when_it_is_applied() -> None:
    table = table_of_rows()
    table.deferred = DeferredUpdate()
    found = table.look_up(lookups())
    (found["a"].sum() + 2 * found["b"].sum()).backward()
    assert table.weight.grad is None
    table.deferred.apply()
    assert table.weight.grad is not None
    assert table.weight.grad[:, 0].tolist() == [2.0, 2.0, 0.0, 0.0, 3.0]


def test_a_model_knows_all_its_tables() -> None:
    assert [table.config.name for table in model(WithGroups).tables] == ["item", "group"]


def test_names_in_checkpoints_say_what_a_parameter_is() -> None:
    names = ["item_table.collection.embeddings.item.weight", "item_table.head.weight", "encoder.norm.bias"]
    assert [name for name in names if is_of_table(name)] == names[:1]
    assert [saved_name(name) for name in names] == ["item_table.embeddings.item.weight", "head.weight", names[2]]
