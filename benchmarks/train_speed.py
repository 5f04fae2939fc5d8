"""Training steps per second: this model beside the plain way of writing it, in one alternating run.

    python -m benchmarks.train_speed [--items=3416] [--rounds=5]

One process with all cores, batches of 128 windows of at most 200 items, width 64, two blocks, two heads, full softmax:
the papers' shape on MovieLens 1M. Lengths are drawn from 20 to 200, many short and few long, as that data's windows
are. Each round times the contestants in turn; the table gives medians over the rounds, of times and of ratios.

    masked logits   torch.nn.TransformerEncoder over padded sequences, scores at masked positions only
    all logits      the same, with scores at every position, most then ignored, as in TorchRec's example
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bert4rec.dataset.schema import FIRST_ITEM_ID, MASK_ID, PAD_ID, table_rows
from bert4rec.feed.batch import Batch
from bert4rec.feed.masking import Masking
from bert4rec.models.bert4rec import Bert4Rec
from bert4rec.sharding.initialization import initialize

BATCH, LENGTH, WIDTH, HEADS, LAYERS = 128, 200, 64, 2, 2
STEPS_PER_ROUND = 4


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=3416)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    n_rows = table_rows(options.items)
    batches = [_batch(n_rows, seed) for seed in range(STEPS_PER_ROUND)]
    contestants = {
        "bert4rec": _ours(n_rows),
        "masked logits": _plain(n_rows, only_masked=True),
        "all logits": _plain(n_rows, only_masked=False),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for step in contestants.values():
        step(batches[0])
    for _ in range(options.rounds):
        for name, step in contestants.items():
            began = time.perf_counter()
            for batch in batches:
                step(batch)
            seconds[name].append(time.perf_counter() - began)
    positions = sum(len(batch.places) for batch in batches) / len(batches) / BATCH
    print(f"{torch.get_num_threads()} threads, {options.items} items, mean length {positions:.0f} of {LENGTH}")
    for name, times in seconds.items():
        rate = STEPS_PER_ROUND * BATCH / statistics.median(times)
        ratio = statistics.median(t / ours for t, ours in zip(times, seconds["bert4rec"], strict=True))
        print(f"{name:15} {rate:8.0f} sequences/s   bert4rec is {ratio:.2f} times as fast")


def _batch(n_rows: int, seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    lengths = (20 * (LENGTH / 20) ** torch.rand(BATCH, generator=generator)).long()
    lengths = lengths.sort().values
    items = torch.randint(FIRST_ITEM_ID, n_rows, (int(lengths.sum()),), generator=generator)
    masking = Masking(
        seed, n_rows, mask_prob=0.2, last_item_mask_prob=0.1, mask_token_share=1.0, random_token_share=0.0
    )
    return masking(items, lengths, torch.arange(BATCH), 0)


def _training(model: nn.Module, loss: Callable[[Batch], Tensor]) -> Callable[[Batch], None]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(batch: Batch) -> None:
        optimizer.zero_grad()
        (loss(batch) / len(batch.positions)).backward()
        optimizer.step()

    return step


def _ours(n_rows: int) -> Callable[[Batch], None]:
    model = Bert4Rec(
        n_items=n_rows - FIRST_ITEM_ID, embed_dim=WIDTH, n_heads=HEADS, n_layers=LAYERS, ffn_dim=4 * WIDTH,
        max_len=LENGTH, dropout=0.1, head="tied", output_bias=True, device="cpu",
    )  # fmt: skip
    initialize(model, seed=1)
    return _training(model, model)


class Plain(nn.Module):
    """What one writes first: padded to the longest window, PyTorch's own encoder layers."""

    def __init__(self, n_rows: int, *, only_masked: bool) -> None:
        super().__init__()
        self.items = nn.Embedding(n_rows, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.only_masked = only_masked

    def forward(self, batch: Batch) -> Tensor:
        """The loss sum."""
        lengths = batch.lengths.tolist()
        shown = torch.cat([batch.items.ids, torch.tensor([MASK_ID])])[batch.places]
        items = nn.utils.rnn.pad_sequence(shown.split(lengths), batch_first=True, padding_value=PAD_ID)
        is_real = torch.arange(items.shape[1]) < batch.lengths[:, None]
        hidden = self.encoder(
            self.items(items) + self.positions.weight[: items.shape[1]], src_key_padding_mask=~is_real
        )
        targets = torch.full((len(batch.places),), -1).index_copy(0, batch.positions, batch.targets - FIRST_ITEM_ID)
        if self.only_masked:
            hidden, targets = hidden[is_real][batch.positions], targets[batch.positions]
        else:
            everywhere = torch.full(items.shape, -1)
            everywhere[is_real] = targets
            hidden, targets = hidden.flatten(0, 1), everywhere.flatten()
        scores = hidden @ self.items.weight[FIRST_ITEM_ID:].T
        return F.cross_entropy(scores, targets, ignore_index=-1, reduction="sum")


def _plain(n_rows: int, *, only_masked: bool) -> Callable[[Batch], None]:
    model = Plain(n_rows, only_masked=only_masked)
    return _training(model, model)


if __name__ == "__main__":
    main()
