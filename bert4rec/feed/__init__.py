"""Right of the disk: the dataset folder becomes batches of tensors. Torch, no Polars."""
