"""The latency of an exported program: one history at a time, one thread.

    python -m benchmarks.serve [--items=100000] [--length=20] [--calls=2000]

The model has the shape of config.toml with random weights; the program leaves seen items out and finds ten. Printed are
the median and the 99th percentile of `program.pt2` by torch and of `model.onnx` by onnxruntime, in turn.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import torch

from benchmarks.recommend import random_network
from bert4rec.serving.program import Program, save_onnx, save_pt2

K = 10
WARM_UP = 100  # calls that are not counted


def main() -> None:
    """Print a line for each runtime."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--length", type=int, default=20)
    parser.add_argument("--calls", type=int, default=2000)
    options = parser.parse_args()
    program = Program(random_network(options.items), leaves_out_seen=True).eval()
    with tempfile.TemporaryDirectory() as place:
        save_pt2(Path(place, "program.pt2"), program)
        save_onnx(Path(place, "model.onnx"), program)
        torch.set_num_threads(1)
        by_torch = torch.export.load(Path(place, "program.pt2")).module()
        single = onnxruntime.SessionOptions()
        single.intra_op_num_threads = 1
        by_onnx = onnxruntime.InferenceSession(Path(place, "model.onnx"), single)
    histories = np.random.default_rng(1).integers(0, options.items, (WARM_UP + options.calls, 1, options.length))
    roads: dict[str, Callable[[np.ndarray], object]] = {
        "program.pt2": lambda history: by_torch(torch.from_numpy(history), torch.tensor(K)),
        "model.onnx": lambda history: by_onnx.run(None, {"items": history, "k": np.array(K)}),
    }
    seconds = {name: np.empty(len(histories)) for name in roads}
    with torch.inference_mode():
        for number, history in enumerate(histories):
            for name, call in roads.items():
                began = time.perf_counter()
                call(history)
                seconds[name][number] = time.perf_counter() - began
    for name, values in seconds.items():
        median, p99 = 1e3 * np.percentile(values[WARM_UP:], [50, 99])
        print(
            f"{name}: {options.items:,} items, a history of {options.length}, one thread: median {median:.2f} ms, "
            f"99th percentile {p99:.2f} ms"
        )


if __name__ == "__main__":
    main()
