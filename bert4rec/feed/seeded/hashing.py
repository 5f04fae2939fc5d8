"""Random numbers that are a function of what they are for, in the place of a stream from which they would be drawn."""

import numpy as np
import numpy.typing as npt

# Constants of splitmix64 (Steele, Lea, Flood 2014).
GAMMA = np.uint64(0x9E3779B97F4A7C15)
MIX_1, MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)

Words = npt.NDArray[np.uint64]


def mix(x: Words) -> Words:
    """Return the finalizer of splitmix64; products wrap around."""
    x = (x ^ (x >> np.uint64(30))) * MIX_1
    x = (x ^ (x >> np.uint64(27))) * MIX_2
    return x ^ (x >> np.uint64(31))


def splitmix64(key: Words, counter: Words) -> Words:
    """Return the output number `counter`, from 0, of the generator that is seeded with `key`."""
    return mix(key + (counter + np.uint64(1)) * GAMMA)
