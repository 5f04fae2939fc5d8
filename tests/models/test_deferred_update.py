"""The gate, as written-out arithmetic: a loss of two lookups in a table of three rows."""

import torch

from bert4rec.models.deferred_update import Gate


def lookups() -> tuple[Gate, torch.Tensor]:
    """Behind the gate: the gradients of rows 0 and 2 are (3, 3) and (5, 5), those of row 1 twice (7, 7)."""
    gate, table = Gate(), torch.zeros(3, 2, requires_grad=True)
    first, second = gate.hold(table[[0, 2]]), gate.hold(table[[1, 1]])
    gate.hold(table[[0]])  # on which the loss does not depend
    loss = (first * torch.tensor([[3.0], [5.0]])).sum() + (7 * second).sum()
    loss.backward()
    return gate, table


def test_backward_ends_at_the_gate() -> None:
    gate, table = lookups()
    assert table.grad is None
    assert [gradient.tolist() for gradient in gate.gradients()] == [[[3, 3], [5, 5]], [[7, 7], [7, 7]]]


def test_what_is_let_pass_goes_into_the_table_once() -> None:
    gate, table = lookups()
    gate.let_pass()
    assert table.grad is not None
    assert table.grad.tolist() == [[3, 3], [14, 14], [5, 5]]
    assert gate.gradients() == []


def test_what_is_forgotten_never_passes() -> None:
    gate, table = lookups()
    gate.forget()
    assert (gate.gradients(), table.grad) == ([], None)


def test_vectors_without_a_gradient_pass_as_they_are() -> None:
    gate, vectors = Gate(), torch.ones(2, 2)
    assert gate.hold(vectors) is vectors
    assert gate.gradients() == []
