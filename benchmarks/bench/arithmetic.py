"""How many floating-point operations a step needs, whoever does it, and how many this machine can do."""

import time
from collections.abc import Sequence
from typing import NamedTuple

import torch

TRAINING = 3  # backward multiplies each product's gradient with both of its factors
SIZES = {"cpu": (1024, 2048, 4096), "cuda": (4096, 8192, 16384)}  # of square matrices; the best counts
TRIES = 3


class Network(NamedTuple):
    """The sizes of a transformer with scores against `n_items`."""

    n_items: int
    width: int
    n_layers: int
    ffn_width: int


def needed_flops(network: Network, lengths: Sequence[int], asked: Sequence[int]) -> int:
    """Floating-point operations of a training step over sequences of `lengths`, `asked` positions of each predicted.

    Products of matrices alone, an addition and a multiplication each; nothing for padding. Keys and values are needed
    of all positions; queries, what follows attention, and scores, in the last block, of those that are predicted.

    >>> needed_flops(Network(n_items=10, width=2, n_layers=1, ffn_width=8), lengths=[3], asked=[1])
    432
    """
    d, n_all, n_asked = network.width, sum(lengths), sum(asked)
    per_query = 2 * 2 * d * d + 2 * 2 * d * network.ffn_width  # query, attention's output; feed-forward in and out
    keys_and_values = n_all * 2 * 2 * d * d
    inner = keys_and_values + n_all * per_query + sum(4 * d * length * length for length in lengths)
    pairs_of_last = sum(length * n for length, n in zip(lengths, asked, strict=True))
    last = keys_and_values + n_asked * per_query + 4 * d * pairs_of_last
    scores = 2 * n_asked * d * network.n_items
    return TRAINING * ((network.n_layers - 1) * inner + last + scores)


def matmul_peak(device: torch.device, dtype: torch.dtype) -> float:
    """Floating-point operations a second in the best of some large products, with the threads that torch has."""
    return max(_rate_of_product(size, device, dtype) for size in SIZES[device.type] for _ in range(TRIES))


def _rate_of_product(size: int, device: torch.device, dtype: torch.dtype) -> float:
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    left @ right
    _wait(device)
    began = time.perf_counter()
    left @ right
    _wait(device)
    return 2 * size**3 / (time.perf_counter() - began)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
