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

`items.jsonl` has the items' own ids and their titles, a line an item: the item of index i is line i, counted from 0.
Histories count up to their last {most} items; {seen}.
{usage}"""

FILES = {
    "safetensors": [("model.safetensors", "all weights")],
    "vectors": [
        ("vectors.npy", "item vectors, float32 [items, width], by index"),
        ("vectors.parquet", "the same with the items' own ids"),
    ],
    "pt2": [("program.pt2", "histories → the {k} best items, for `torch.export.load`: torch alone runs it")],
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
WITH_TORCH = """
## With torch alone

```python
import json
import torch

program = torch.export.load("program.pt2").module()
ids = [json.loads(line)["id"] for line in open("items.jsonl", encoding="utf-8")]
indices = {{item: index for index, item in enumerate(ids)}}
items, scores = program(torch.tensor([[indices[item] for item in {history}]]){more})
print([ids[index] for index in items[0].tolist() if index >= 0])
```

Histories of several lengths are filled up with -1, at any place; where fewer items are found, -1 stands too.
"""
WITH_ONNX = """
## With onnxruntime

```python
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("model.onnx")
items, scores = session.run(None, {INPUTS})  # indices: lines of items.jsonl
```
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
    """The text for a package with these `settings` and `formats`.

    `example`: a history of items by their own ids, `report`: of the run that the package is from, {} for none.
    """
    files = [row for name in FILES if name in formats for row in FILES[name]]
    rows = [*files, ("items.jsonl", "ids and titles"), ("settings.json", "how the model was made")]
    model = settings["config"]["model"]
    parts = {"safetensors": LOADED, "pt2": WITH_TORCH, "vectors": SEARCHED}
    history = json.dumps(example, ensure_ascii=False)
    used = _with_times(model.get("times", "none"), history, len(example)) | {"history": history}
    usage = [text.format(**used, **model) for name, text in parts.items() if name in formats]
    return CARD.format(
        kind=model["kind"],
        n_items=settings["n_items"],
        source=settings["source"],
        figures=_figures(report),
        files="\n".join(f"| `{name}` | {text.format(k=k)} |" for name, text in rows),
        most=model["max_len"] - 1,
        seen="items of the history itself are left out" if settings["leaves_out_seen"] else "seen items may come again",
        usage="".join(usage) + (WITH_ONNX.replace("{INPUTS}", f"{{{used['inputs']}}}") if "onnx" in formats else ""),
    )


def _with_times(times: str, history: str, n_items: int) -> dict[str, str]:
    """What the examples say where a model knows `times`: seconds are those of the Epoch, the oldest first."""
    if times == "none":
        return {
            "names": "load", "timed_history": history, "more": "", "inputs": '"items": np.array([[0, 1, 2]])',
        }  # fmt: skip
    seconds = [1_700_000_000 + 60 * number for number in range(n_items)]
    at = ", torch.tensor([1_700_000_600])" if times == "target" else ""
    inputs = '"items": np.array([[0, 1, 2]]), "times": np.array([[5, 6, 9]])'
    return {
        "names": "TimedHistory, load",
        "timed_history": f"TimedHistory({history}, {seconds})",
        "more": f", torch.tensor([{seconds}]){at}",
        "inputs": inputs + (', "at": np.array([20])' if times == "target" else ""),
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
