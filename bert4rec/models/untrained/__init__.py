"""Baselines without training: they count what the training split holds, and score by that."""
