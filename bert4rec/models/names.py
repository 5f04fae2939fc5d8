"""The names of a model's tensors in checkpoints and model packages, for code that does not import TorchRec."""

ENCODER = "encoder."  # prefix of the transformer's tensors
TABLE, HEAD, HEAD_BIAS = "item_table.embeddings.item.weight", "head.weight", "head.bias"
MASK = "mask_vector"
FEATURES = "features."  # prefix of the weights of item features
FEATURE_VALUES = "features.values"
FEATURE_TABLE = "tables.{0}.embeddings.{0}.weight"  # of a feature with a table of its own, after the prefix
