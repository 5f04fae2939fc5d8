"""Memory as the system counts it."""

import torch

from bert4rec.memory import PeakMemory, proportional_set_size, release_free_memory

MIB = 2**20


def test_the_peak_is_not_forgotten() -> None:
    peak = PeakMemory(torch.device("cpu"))
    before = peak.read()
    block = bytearray(b"x" * (100 * MIB))
    during = peak.read()
    del block
    assert during - before > 90 * MIB
    assert peak.read() >= during


def test_freed_memory_between_what_is_still_used_goes_back() -> None:
    blocks = [bytearray(b"x" * 64 * 1024) for _ in range(3200)]
    full = proportional_set_size()
    del blocks[1::2], blocks[:-1]
    release_free_memory()
    assert full - proportional_set_size() > 150 * MIB
