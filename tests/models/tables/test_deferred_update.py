"""The deferred, as written-out arithmetic: a loss of two lookups in a table of three rows."""

import torch

from bert4rec.models.tables.deferred_update import DeferredUpdate


def lookups() -> tuple[DeferredUpdate, torch.Tensor]:
    """Behind the deferred: the gradients of rows 0 and 2 are (3, 3) and (5, 5), those of row 1 twice (7, 7)."""
    deferred, table = DeferredUpdate(), torch.zeros(3, 2, requires_grad=True)
    first, second = deferred.defer(table[[0, 2]]), deferred.defer(table[[1, 1]])
    deferred.defer(table[[0]])  # on which the loss does not depend
    loss = (first * torch.tensor([[3.0], [5.0]])).sum() + (7 * second).sum()
    loss.backward()
    return deferred, table


def test_backward_ends_at_the_gate() -> None:
    deferred, table = lookups()
    assert table.grad is None
    assert [gradient.tolist() for gradient in deferred.gradients()] == [[[3, 3], [5, 5]], [[7, 7], [7, 7]]]


def test_what_is_let_pass_goes_into_the_table_once() -> None:
    deferred, table = lookups()
    deferred.apply()
    assert table.grad is not None
    assert table.grad.tolist() == [[3, 3], [14, 14], [5, 5]]
    assert deferred.gradients() == []


def test_what_is_forgotten_never_passes() -> None:
    deferred, table = lookups()
    deferred.discard()
    assert (deferred.gradients(), table.grad) == ([], None)


def test_vectors_without_a_gradient_pass_as_they_are() -> None:
    deferred, vectors = DeferredUpdate(), torch.ones(2, 2)
    assert deferred.defer(vectors) is vectors
    assert deferred.gradients() == []
