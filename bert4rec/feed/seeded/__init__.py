"""Numbers and permutations that are a function of a seed and of what they are for: nothing is drawn or stored."""
