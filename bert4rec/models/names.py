"""The names of a model's tensors in checkpoints and model packages, for all who read them without TorchRec."""

ENCODER = "encoder."  # how those of the transformer begin
TABLE, HEAD, HEAD_BIAS = "item_table.embeddings.item.weight", "head.weight", "head.bias"
MASK = "mask_vector"
