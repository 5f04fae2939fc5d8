"""The tables of vectors: lookups, candidates, head, biases, and the ways in which gradients reach the rows."""
