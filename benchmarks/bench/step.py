"""A training step by its parts, beside three plain ways of writing it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.bench.arithmetic import Network, needed_flops
from benchmarks.bench.plain_model import Plain, padded
from benchmarks.bench.timing import OURS, Case, Clock, Seconds
from bert4rec.dataset.histories import Rows
from bert4rec.feed.batch import Batch
from bert4rec.feed.masking import Masking
from bert4rec.models.sequence_model import Bert4Rec
from bert4rec.models.tables import is_of_table
from bert4rec.sharding.parallelize import initialize

MASKED, ALL, EXAMPLE = "plain, masked logits", "plain, all logits", "as TorchRec's example"
HEADS, LAYERS = 2, 2


class Shape(NamedTuple):
    """What a step is made of; `lengths` of uniform numbers; as many batches take turns as `n_batches`."""

    title: str
    n_items: int
    width: int
    n_windows: int
    max_len: int
    lengths: Callable[[Tensor], Tensor]
    n_batches: int

    @property
    def network(self) -> Network:
        """Its sizes."""
        return Network(self.n_items, self.width, LAYERS, 4 * self.width)


SHAPES = {
    "ml-1m": Shape("128 of 20 to 200, 3,416 items × 64", 3416, 64, 128, 200, lambda share: 20 * 10**share, 2),
    "short": Shape("128 of mean 8, 50,000 items × 64", 50_000, 64, 128, 50, lambda share: 1 - 7 * share.log(), 1),
    "large": Shape("8 of 8 to 16, 500,000 items × 128", 500_000, 128, 8, 16, lambda share: 8 * 2**share, 1),
}


class Device(NamedTuple):
    """Where steps are computed, and in what precision products are."""

    device: torch.device
    precision: str  # fp32 or bf16

    @property
    def dtype(self) -> torch.dtype:
        """Of products."""
        return torch.bfloat16 if self.precision == "bf16" else torch.float32


@contextmanager
def step_case(name: str, shape: Shape, device: Device) -> Iterator[Case]:
    """A step over the batches of a `shape`, in the mean."""
    batches = [random_batch(shape, seed) for seed in range(shape.n_batches)]
    contestants = {
        OURS: ours(shape, batches, device),
        MASKED: plain(shape, batches, device),
        ALL: plain(shape, batches, device, everywhere=True),
        EXAMPLE: plain(shape, batches, device, everywhere=True, linear_head=True),
    }
    flops = sum(needed_flops(shape.network, *counts(batch)) for batch in batches) / len(batches)
    yield Case(f"step-{name}", shape.title, "sequences", shape.n_windows, contestants, flops)


def random_batch(shape: Shape, seed: int) -> Batch:
    """Windows with lengths as the shape draws them, sorted as a training has them, a fifth of the items masked."""
    generator = torch.Generator().manual_seed(seed)
    drawn = shape.lengths(torch.rand(shape.n_windows, generator=generator))
    lengths = drawn.long().clamp(max=shape.max_len).sort().values
    items = torch.randint(shape.n_items, (int(lengths.sum()),), generator=generator)
    masking = Masking(
        seed, shape.n_items, mask_prob=0.2, last_item_mask_prob=0.1, mask_token_share=1.0, random_token_share=0.0
    )
    rows = Rows(items.numpy().astype(np.int32), lengths.numpy())
    return masking(rows, np.arange(shape.n_windows), 0)


def counts(batch: Batch) -> tuple[list[int], list[int]]:
    """The lengths of a batch's sequences, and how many positions of each are to be predicted."""
    rows = torch.repeat_interleave(torch.arange(len(batch.lengths)), batch.lengths)
    asked = torch.bincount(rows[batch.positions], minlength=len(batch.lengths))
    return batch.lengths.tolist(), asked.tolist()


def ours(shape: Shape, batches: Sequence[Batch], device: Device) -> Callable[[], Seconds]:
    """A step of this package on one process: AdamW, Adam for the item table, the exact softmax."""
    model = our_model(shape).to(device.device)
    named = list(model.named_parameters())
    optimizers = [
        torch.optim.AdamW([weight for name, weight in named if not is_of_table(name)], lr=1e-3, fused=True),
        torch.optim.Adam([weight for name, weight in named if is_of_table(name)], lr=1e-3, fused=True),
    ]
    inputs = [((batch.to(device.device),), len(batch.positions)) for batch in batches]
    return training(model, "encode_for_catalogue", optimizers, inputs, device)


def our_model(shape: Shape, dropout: float = 0.1, head: str = "tied") -> Bert4Rec:
    """With its initial weights."""
    model = Bert4Rec(
        n_items=shape.n_items, embed_dim=shape.width, n_heads=HEADS, n_layers=LAYERS, ffn_dim=4 * shape.width,
        max_len=shape.max_len, dropout=dropout, head=head, device="cpu",
    )  # fmt: skip
    initialize(model, seed=1)
    return model


def plain(shape: Shape, batches: Sequence[Batch], device: Device, **options: bool) -> Callable[[], Seconds]:
    """A step of `Plain` with its `options`; with a linear head padded to the longest that there may be.

    The padding itself is not measured.
    """
    model = Plain(shape.n_items, shape.width, shape.max_len, n_layers=LAYERS, n_heads=HEADS, **options)
    model = model.to(device.device)
    width = shape.max_len if options.get("linear_head") else 0
    inputs = [
        (tuple(tensor.to(device.device) for tensor in padded(batch, width)), len(batch.positions)) for batch in batches
    ]
    return training(model, "encode", [torch.optim.AdamW(model.parameters(), lr=1e-3)], inputs, device)


def training(
    model: nn.Module, encoder: str, optimizers: Sequence[torch.optim.Optimizer],
    inputs: Sequence[tuple[tuple[Any, ...], int]], device: Device,
) -> Callable[[], Seconds]:  # fmt: skip
    """A contestant that trains `model` on `inputs`, of each its arguments and how many targets there are.

    `encoder` names the method with which a forward pass begins: what comes after it is the softmax.
    """
    clock, encode = Clock(device.device), getattr(model, encoder)

    def encoded(*arguments: Any) -> Any:
        found = encode(*arguments)
        clock.mark("encoder forward")
        return found

    setattr(model, encoder, encoded)

    def run() -> Seconds:
        clock.start()
        for arguments, n_targets in inputs:
            with torch.autocast(device.device.type, torch.bfloat16, enabled=device.precision == "bf16"):
                loss = model(*arguments)
            clock.mark("softmax")
            (loss / n_targets).backward()
            clock.mark("backward")
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            clock.mark("optimizer")
        return {part: seconds / len(inputs) for part, seconds in clock.seconds().items()}

    return run
