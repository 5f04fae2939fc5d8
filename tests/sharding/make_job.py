"""Jobs of the default shape, for the tests of who holds what."""

from typing import Any

from bert4rec.runtime.memory import Memory
from bert4rec.sharding.footprint import Job

NO_LIMIT = Memory(host=None)
SHAPE = {"embed_dim": 64, "n_heads": 2, "n_layers": 2, "ffn_dim": 256, "max_len": 50, "dropout": 0.1, "head": "tied"}


def make_job(n_items: int, world_size: int = 1, device_type: str = "cpu", **changes: Any) -> Job:
    """A job of the default shape; `changes` may name its fields and the model's."""
    shape = SHAPE | {key: changes.pop(key) for key in list(changes) if key in SHAPE}
    usual = {"kind": "bert4rec", "mode": "dmp", "sparse_optimizer": "rowwise_adagrad", "optimizer": "adamw",
             "batch_size": 64, "mask_prob": 0.2, "local_world_size": min(8, world_size)}  # fmt: skip
    return Job(
        model={"n_items": n_items, **shape},
        world_size=world_size,
        device_type=device_type,
        **usual | changes,
    )
