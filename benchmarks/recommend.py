"""Recommendations for many histories, from a file to a file as `python -m bert4rec recommend` makes them.

    python -m benchmarks.recommend [--histories=1000000] [--items=100000] [--length=20] [--top=10]

One process with all cores. The model has the shape of config.toml with random weights; lengths are drawn from one to
twice the mean, items uniformly. Read are JSON lines, written is Parquet. The peak is the process's resident memory,
torch and the model included.
"""

import argparse
import json
import random
import resource
import tempfile
import time
from collections.abc import Iterator
from itertools import tee
from pathlib import Path

import pyarrow as pa
import torch

from bert4rec.commands.history_files import read_histories, writer
from bert4rec.config.load import load_config
from bert4rec.config.resolve import Facts, resolve_model
from bert4rec.models.tables import BIAS_COLUMNS
from bert4rec.models.transformer import Encoder, EncoderSettings
from bert4rec.serving.histories import ItemIds
from bert4rec.serving.network import Network
from bert4rec.serving.recommender import Recommender
from bert4rec.sources.interactions import Interactions


def main() -> None:
    """Print one line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--histories", type=int, default=1_000_000)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--length", type=int, default=20, help="mean length of a history")
    parser.add_argument("--top", type=int, default=10)
    options = parser.parse_args()
    ids = ItemIds(pa.array(f"item-{number}" for number in range(options.items)))
    recommender = Recommender(random_network(options.items), ids)
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "histories.jsonl"), Path(folder, "recommendations.parquet")
        with source.open("w") as file:
            file.writelines(_lines(options.histories, options.items, options.length))
        began = time.monotonic()
        with writer(target) as write:
            read, parts = tee(read_histories(str(source), _no_rows))
            histories = ([history for _, history in part] for part in read)
            for found, part in zip(recommender.recommend_in_parts(histories, options.top), parts, strict=True):
                write([(user, best) for (user, _), best in zip(part, found, strict=True)])
        seconds = time.monotonic() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(
        f"{options.histories:,} histories, {options.items:,} items, {torch.get_num_threads()} threads: "
        f"{seconds:.1f} s, {options.histories / seconds:,.0f} histories/s, peak {peak:,.0f} MB"
    )


def random_network(n_items: int) -> Network:
    """Of the shape of config.toml, with random weights."""
    torch.manual_seed(1)
    shape = resolve_model(load_config("config.toml"), Facts(n_items)).model
    encoder_keys = {"embed_dim", "n_heads", "n_layers", "ffn_dim", "max_len", "dropout"}
    encoder = Encoder(EncoderSettings(**shape.model_dump(include=encoder_keys)), device="cpu")
    rows = torch.randn(n_items + 2, shape.embed_dim + BIAS_COLUMNS)
    rows[:, shape.embed_dim + 1 :] = 0
    return Network(encoder.requires_grad_(False), rows, mask=torch.randn(shape.embed_dim)).eval()


def _no_rows(path: str) -> Interactions:
    raise AssertionError(f"{path} holds JSON lines")


def _lines(n: int, n_items: int, length: int) -> Iterator[str]:
    draw = random.Random(1)
    for user in range(n):
        items = [f"item-{draw.randrange(n_items)}" for _ in range(draw.randint(1, 2 * length - 1))]
        yield json.dumps({"user": user, "items": items}) + "\n"


if __name__ == "__main__":
    main()
