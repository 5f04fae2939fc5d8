"""The card of an exported model: its `README.md`, for a person and for the Hugging Face hub."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

CARD = """\
---
tags:
- sequential-recommendation
- {kind}
---

# A {kind} model of {n_items:,} items

Recommends the next items for a history of items. Trained on the dataset `{source}` by Bert4Rec on TorchRec.
{figures}
| file | content |
|---|---|
{files}

`items.jsonl` has a line an item: its own id, its title, and `train_count`, how often it stands in the training data.
The item of index i is line i, counted from 0.
Histories count up to their last {most} items; {seen}.
{usage}"""

FILES = {
    "safetensors": [("model.safetensors", "all weights")],
    "vectors": [
        ("vectors.npy", "item vectors, float32 [items, width], by index"),
        ("vectors.parquet", "the same with the items' own ids"),
    ],
    "pt2": [("program.pt2", "histories and k → the k best items, for `torch.export.load`: torch alone runs it")],
    "onnx": [("model.onnx", "the same for onnxruntime; numbers in model.onnx.data")],
}
LOADED = """
## In Python, with bert4rec installed

```python
from bert4rec import {names}

model = load("FOLDER")  # this folder
for item, title, score in model.recommend([{timed_history}], k=10)[0]:
    print(item, title, score)
```
"""
IDS = """\
k, history = {k}, {history}  # the oldest item first
lines = [json.loads(line) for line in open("items.jsonl", encoding="utf-8")]
ids = [line["id"] for line in lines]
indices = {{item: index for index, item in enumerate(ids)}}
popular = sorted(range(len(ids)), key=lambda index: -lines[index]["train_count"])
known = [[indices.get(item, -1) for item in history]]  # -1 for an unknown item
"""
SHOWN = """\
best = [index for index in items[0].tolist() if index >= 0] or popular[:k]  # the latter for an unknown user
print([ids[index] for index in best])
```
"""
WITH_TORCH = (
    """
## With torch alone

```python
import json
import torch

"""
    + IDS
    + """\
program = torch.export.load("program.pt2").module()
items, scores = program(torch.tensor(known, dtype=torch.int64), torch.tensor(k){more})
"""
    + SHOWN
)
WITH_ONNX = (
    """
## With onnxruntime

```python
import json
import numpy as np
import onnxruntime

"""
    + IDS
    + """\
session = onnxruntime.InferenceSession("model.onnx")
items, scores = session.run(None, {{{inputs}}})
"""
    + SHOWN
)
OF_PROGRAMS = """
Programs take several histories at once, filled up with -1, at any place. An index that is no line of `items.jsonl`
counts as -1. Where fewer than k items are found, -1 stands in their place; a history without a known item gets -1
alone.
"""
SEARCHED = """
## Vectors

The vectors of `vectors.npy` are what items are scored by: for similar items take the cosine of the first {embed_dim}
columns; a history's score of an item is the product of its state (`load(…).encode`) with the vector. Where there is
one more column, it is the item's bias: put a 1 behind the state.
"""


def card(
    settings: Mapping[str, Any], formats: Collection[str], *, k: int, example: Sequence[Any], report: Mapping[str, Any]
) -> str:
    """Return the text for a package with these `settings` and `formats`.

    `k` and `example`, a history of items by their own ids, are those of the examples; `report`: of the run that the
    package is from, {} for none.
    """
    files = [row for name in FILES if name in formats for row in FILES[name]]
    rows = [*files, ("items.jsonl", "ids, titles and counts"), ("settings.json", "how the model was made")]
    model = settings["config"]["model"]
    parts = {"safetensors": LOADED, "pt2": WITH_TORCH, "onnx": WITH_ONNX, "programs": OF_PROGRAMS, "vectors": SEARCHED}
    described = {*formats, *(["programs"] if {"pt2", "onnx"} & {*formats} else [])}
    history = json.dumps(example, ensure_ascii=False)
    used = _with_times(model.get("times", "none"), history, len(example)) | {"history": history, "k": str(k)}
    usage = [text.format(**used, **model) for name, text in parts.items() if name in described]
    return CARD.format(
        kind=model["kind"],
        n_items=settings["n_items"],
        source=settings["source"],
        figures=_figures(report),
        files="\n".join(f"| `{name}` | {text} |" for name, text in rows),
        most=model["max_len"] - 1,
        seen="items of the history itself are left out" if settings["leaves_out_seen"] else "seen items may come again",
        usage="".join(usage),
    )


def _with_times(times: str, history: str, n_items: int) -> dict[str, str]:
    """What the examples say where a model knows `times`: seconds are those of the Epoch, the oldest first."""
    inputs = '"items": np.array(known, np.int64), "k": np.array(k)'
    if times == "none":
        return {"names": "load", "timed_history": history, "more": "", "inputs": inputs}
    seconds = [1_700_000_000 + 60 * number for number in range(n_items)]
    at = ", torch.tensor([1_700_000_600])" if times == "target" else ""
    return {
        "names": "TimedHistory, load",
        "timed_history": f"TimedHistory({history}, {seconds})",
        "more": f", torch.tensor([{seconds}]){at}",
        "inputs": f'{inputs}, "times": np.array([{seconds}])'
        + (', "at": np.array([1_700_000_600])' if times == "target" else ""),
    }


def _figures(report: Mapping[str, Any]) -> str:
    """The most important ones, over the full catalogue."""
    full = report.get("test", {}).get("full")
    if not full:
        return ""
    return (
        f"\nTest over the full catalogue, {full['users']:,} users: HR@10 {full['HR@10']:.4f}, NDCG@10 "
        f"{full['NDCG@10']:.4f}.\n"
    )
