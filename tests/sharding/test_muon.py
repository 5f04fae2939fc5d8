"""Muon moves matrices as torch's own does, whose iterations are in bfloat16."""

import numpy as np
import pytest
import torch

from bert4rec.sharding.muon import Muon, orthogonalized

SHAPES = [(8, 8), (16, 8), (8, 32)]


@pytest.mark.parametrize("shape", SHAPES)
def test_singular_values_become_equal_and_vectors_stay(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    assert values.max() > 2 * values.min()
    found = left.mT @ orthogonalized(matrix) @ right.mT
    np.testing.assert_allclose(found - found.diagonal().diag(), 0, atol=1e-5)
    assert 0.6 < found.diagonal().min() <= found.diagonal().max() < 1.3
    assert orthogonalized(torch.zeros(shape)).abs().max() == 0


def test_steps_are_those_of_torch() -> None:
    draw = torch.Generator().manual_seed(2)
    ours, theirs = ([torch.nn.Parameter(torch.ones(shape)) for shape in SHAPES] for _ in range(2))
    muon = Muon(ours, 0.01, 0.5)
    other = torch.optim.Muon(theirs, 0.01, weight_decay=0.5, adjust_lr_fn="match_rms_adamw")
    for _ in range(5):
        for one, two in zip(ours, theirs, strict=True):
            one.grad = two.grad = torch.randn(one.shape, generator=draw)
        muon.step()
        other.step()
    for one, two in zip(ours, theirs, strict=True):
        moved, expected = (each.detach() - (1 - 0.01 * 0.5) ** 5 for each in (one, two))
        assert (moved - expected).norm() < 0.05 * expected.norm()  # bfloat16
        assert torch.equal(muon.state[one]["momentum_buffer"], other.state[two]["momentum_buffer"])
