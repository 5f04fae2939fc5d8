"""What a transformer is told of time, to the letter."""

import torch

from bert4rec.models.times import BETWEEN_DATES, N_DATES, N_GAPS, Dates, kind_of_gap


def test_kinds_of_gaps_are_as_long_as_the_root_of_two() -> None:
    seconds = torch.tensor([0, 1, 2, 3, 7, 2**20 - 1, 2**40, -5])
    assert kind_of_gap(seconds).tolist() == [0, 2, 3, 4, 6, 40, N_GAPS - 1, 0]
    gaps = torch.arange(1, 100_000)
    assert torch.equal(kind_of_gap(gaps), (2 * torch.log2(1 + gaps.double())).floor().long())


def dates() -> Dates:
    of = Dates(3, "cpu")
    with torch.no_grad():
        of.weight.copy_(torch.randn(of.weight.shape, generator=torch.Generator().manual_seed(1)))
    return of


def test_between_two_dates_a_vector_moves_in_a_straight_line() -> None:
    of = dates()
    instants = torch.tensor([0, 7 * BETWEEN_DATES, 7 * BETWEEN_DATES + BETWEEN_DATES // 4])
    expected = torch.stack([of.weight[0], of.weight[7], 0.75 * of.weight[7] + 0.25 * of.weight[8]])
    torch.testing.assert_close(of(instants), expected, rtol=0, atol=1e-6)


def test_before_the_first_date_and_after_the_last_it_stays() -> None:
    of = dates()
    ends = torch.stack([of.weight[0], of.weight[-1]])
    torch.testing.assert_close(of(torch.tensor([-(2**62), 2**62])), ends, rtol=0, atol=1e-5)
    assert N_DATES * BETWEEN_DATES > 4e9  # the next century


def test_a_date_learns_from_the_instants_around_it() -> None:
    of = dates()
    of(torch.tensor([5 * BETWEEN_DATES + 1, 6 * BETWEEN_DATES - 1])).sum().backward()
    assert of.weight.grad is not None
    assert of.weight.grad.abs().sum(1).nonzero().flatten().tolist() == [5, 6]
