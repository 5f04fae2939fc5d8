"""The loop of a training, and what belongs to it: steps, state, decisions, progress, checkpoints."""
