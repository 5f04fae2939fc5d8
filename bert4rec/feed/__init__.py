"""Read the dataset folder as batches of tensors; uses torch, never Polars."""
