"""Recommendations by rules beside those without: seconds for 1,024 histories and 100,000 items, in alternating rounds.

    python -m benchmarks.rules [--rounds=9]

The model is a SASRec with its initial weights, 64 wide, on one core; half of the items are in stock, and they have 200
categories. Printed are the medians over the rounds, and those of the ratios in the same round.
"""

import argparse
import statistics
import time

import numpy as np
import pyarrow as pa
import torch

from bert4rec.models.transformer import Encoder, EncoderSettings
from bert4rec.serving.histories import ItemIds
from bert4rec.serving.network import Network
from bert4rec.serving.recommender import NO_RULES, Recommender

ITEMS, HISTORIES, LENGTH = 100_000, 1024, 20
RULES = {
    "none": {},
    "--where=in_stock": {"where": "in_stock"},
    "--at-most=2 --per=category": {"at_most": 2, "per": "category"},
    "both": {"where": "in_stock", "at_most": 2, "per": "category"},
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    torch.set_num_threads(1)
    draw = np.random.default_rng(1)
    settings = EncoderSettings(embed_dim=64, n_heads=2, n_layers=2, ffn_dim=256, max_len=50, dropout=0.0)
    encoder = Encoder(settings, is_causal=True, device="cpu")
    columns = {
        "in_stock": pa.array(draw.random(ITEMS) < 0.5),
        "category": pa.array([f"c{number}" for number in draw.integers(0, 200, ITEMS)]),
    }
    ids = ItemIds(pa.array(range(ITEMS)), None, draw.integers(0, 9, ITEMS), columns)
    model = Recommender(Network(encoder, torch.randn(ITEMS, 64)), ids)
    histories = draw.integers(0, ITEMS, (HISTORIES, LENGTH)).tolist()
    seconds: dict[str, list[float]] = {name: [] for name in RULES}
    for _ in range(parser.parse_args().rounds):
        for name, rules in RULES.items():
            began = time.perf_counter()
            model.recommend(histories, 10, rules=model.rules(**rules) if rules else NO_RULES)
            seconds[name].append(time.perf_counter() - began)
    print("| rules | seconds | of none |\n|---|---:|---:|")
    for name, times in seconds.items():
        ratios = [one / none for one, none in zip(times, seconds["none"], strict=True)]
        print(f"| {name} | {statistics.median(times):.2f} | {statistics.median(ratios):.2f} |")


if __name__ == "__main__":
    main()
