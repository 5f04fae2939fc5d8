"""How the item table is updated, as the settings decide it."""


def trains_shards(mode: str, loss: str, head: str, sharding_type: str, compute_kernel: str) -> bool:
    """Whether row-wise shards are trained as ordinary parameters: where every item has a gradient at every step."""
    exact = mode == "dmp" and loss == "softmax" and head == "tied"
    return exact and sharding_type == "row_wise" and compute_kernel == "fused"
