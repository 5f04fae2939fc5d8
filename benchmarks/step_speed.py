"""Where the time of a training step goes: three shapes on this process, in turn, beside a large matrix product.

    python -m benchmarks.step_speed [--shape=ml-1m] [--rounds=8] [--profile]

ml-1m: 128 windows of 20 to 200 items, 3,416 items, width 64. short: 128 windows of 8 items in the mean, 50,000 items,
width 64. large: 8 windows of 8 to 16 items, 500,000 items, width 128. All with two blocks, two heads and the exact
softmax; AdamW, and Adam for the item table. `--profile` adds the operations that take the most.
"""

import argparse
import resource
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from bert4rec.dataset.schema import FIRST_ITEM_ID, table_rows
from bert4rec.feed.batch import Batch
from bert4rec.feed.masking import Masking
from bert4rec.models.bert4rec import Bert4Rec
from bert4rec.models.tables.table import is_of_table
from bert4rec.sharding.initialization import initialize


class Shape(NamedTuple):
    """What a step is made of; `lengths` of uniform numbers."""

    n_items: int
    width: int
    n_windows: int
    max_len: int
    lengths: Callable[[Tensor], Tensor]


SHAPES = {
    "ml-1m": Shape(3416, 64, 128, 200, lambda share: 20 * 10**share),
    "short": Shape(50_000, 64, 128, 50, lambda share: 1 - 7 * share.log()),
    "large": Shape(500_000, 128, 8, 16, lambda share: 8 * 2**share),
}


def main() -> None:
    """Print a line a shape."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    square = torch.randn(2048, 2048)
    seconds = min(_seconds(lambda: square @ square) for _ in range(5))
    print(f"{torch.get_num_threads()} threads, {2 * 2048**3 / seconds / 1e9:.0f} GFLOP/s in a product of 2,048 x 2,048")
    for name in [options.shape] if options.shape else SHAPES:
        step, batches = _training(SHAPES[name])
        _report(name, step, batches, options.rounds)
        if options.profile:
            _profile(step, batches)


def _report(name: str, step: Callable[[Batch], None], batches: list[Batch], rounds: int) -> None:
    for batch in batches:
        step(batch)
    before = resource.getrusage(resource.RUSAGE_SELF)
    times = [_seconds(lambda batch=batch: step(batch)) for _ in range(rounds) for batch in batches]
    after = resource.getrusage(resource.RUSAGE_SELF)
    rate = sum(len(batch.lengths) for batch in batches) / len(batches) / statistics.median(times)
    print(
        f"{name:6} {1000 * statistics.median(times):7.1f} ms a step in the median, {1000 * min(times):.1f} at least, "
        f"{rate:.0f} sequences/s, {(after.ru_minflt - before.ru_minflt) // len(times):,} page faults a step, "
        f"{1000 * (after.ru_stime - before.ru_stime) / len(times):.0f} ms in the kernel"
    )


def _profile(step: Callable[[Batch], None], batches: list[Batch]) -> None:
    with profile(activities=[ProfilerActivity.CPU]) as found:
        for batch in batches:
            step(batch)
    events = sorted(found.key_averages(), key=lambda event: -event.self_cpu_time_total)
    for event in events[:20]:
        spent = event.self_cpu_time_total / 1000 / len(batches)
        print(f"    {event.key[:60]:60} {spent:7.2f} ms a step, {event.count / len(batches):.0f} calls")


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _training(shape: Shape) -> tuple[Callable[[Batch], None], list[Batch]]:
    model = Bert4Rec(
        n_items=shape.n_items, embed_dim=shape.width, n_heads=2, n_layers=2, ffn_dim=4 * shape.width,
        max_len=shape.max_len, dropout=0.1, head="tied", output_bias=True, device="cpu",
    )  # fmt: skip
    initialize(model, seed=1)
    named = list(model.named_parameters())
    optimizers = [
        torch.optim.AdamW([weight for name, weight in named if not is_of_table(name)], lr=1e-3, fused=True),
        torch.optim.Adam([weight for name, weight in named if is_of_table(name)], lr=1e-3, fused=True),
    ]

    def step(batch: Batch) -> None:
        for optimizer in optimizers:
            optimizer.zero_grad()
        (model(batch) / len(batch.positions)).backward()
        for optimizer in optimizers:
            optimizer.step()

    return step, [_batch(shape, seed) for seed in range(4)]


def _batch(shape: Shape, seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    drawn = shape.lengths(torch.rand(shape.n_windows, generator=generator))
    lengths = drawn.long().clamp(max=shape.max_len).sort().values
    n_rows = table_rows(shape.n_items)
    items = torch.randint(FIRST_ITEM_ID, n_rows, (int(lengths.sum()),), generator=generator)
    masking = Masking(
        seed, n_rows, mask_prob=0.2, last_item_mask_prob=0.1, mask_token_share=1.0, random_token_share=0.0
    )
    return masking(items, lengths, torch.arange(shape.n_windows), 0)


if __name__ == "__main__":
    main()
