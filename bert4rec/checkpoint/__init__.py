"""The run folder, its checkpoints, and how a run is resumed."""
