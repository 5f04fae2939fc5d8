"""The processes that read batches ahead of a training: where they come from."""
