"""Every road to recommendations finds the same items: the evaluation's scores, the command, Python, programs.

    python -m benchmarks.same_recommendations RUN [--users=6040]

For the whole histories of a run's users the ten best items are taken from the scores that the evaluation ranks by, and
compared with what `bert4rec recommend --all` writes, `load` recommends (of the run and of its model package), and the
exported programs find (torch.export, ONNX). Then HR@10 is computed from the command's file for the histories before the
test targets, and compared with the report's. Printed: lists that differ and the largest difference of scores, a road a
line. Exit status 1: something differs.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pyarrow.parquet as pq
import torch
from torch import Tensor

from bert4rec import load
from bert4rec.__main__ import main as bert4rec
from bert4rec.checkpoint.stored_tensors import MODEL_PREFIX
from bert4rec.dataset.histories import Rows
from bert4rec.dataset.reader import open_dataset
from bert4rec.evaluation.prior import PriorScorer
from bert4rec.evaluation.scorers import ModelScorer, Scorer
from bert4rec.models.ranking_model import model_class
from bert4rec.models.tables import saved_name
from bert4rec.serving.export import export
from bert4rec.serving.load import Source, find_source
from bert4rec.serving.users import UserHistories

K = 10
BATCH = 32  # users whose scores of the whole catalogue are in memory at once
TOLERANCE = 1e-4  # of scores

Found = tuple[np.ndarray, np.ndarray]
"""Indices of items [U, K] and their scores."""


def main() -> int:
    """Print a line for each road; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run_folder", metavar="RUN", type=Path)
    parser.add_argument("--users", type=int, default=6040, help="at most so many")
    options = parser.parse_args()
    source = find_source(options.run_folder)
    recommender = load(options.run_folder)
    users = UserHistories(source.dataset, recommender.ids)
    histories = [items for part in users.all() for _, items in part][: options.users]
    indices = [recommender.ids.indices(items) for items in histories]
    print(f"{options.run_folder}: {len(histories):,} users, {len(recommender.ids):,} items", flush=True)
    wanted = _by_evaluation(source, indices)
    with tempfile.TemporaryDirectory() as place:
        exported = Path(place, "export")
        formats = ["safetensors", "pt2", "onnx"]
        export(source, exported, formats, k=K, leaves_out_seen=source.leaves_out_seen)
        roads = {
            "recommend --all": lambda: _by_command(options.run_folder, place, recommender.ids, len(histories)),
            "load(RUN)": lambda: _by_python(recommender, histories),
            "load(PACKAGE)": lambda: _by_python(load(exported), histories),
            "program.pt2": lambda: _by_program(exported, indices),
            "model.onnx": lambda: _by_onnx(exported, indices),
        }
        agree = [_compare(name, road(), wanted) for name, road in roads.items()]
        agree.append(_compare_hits(options.run_folder, source, recommender.ids, place))
    return 0 if all(agree) else 1


def _compare(name: str, found: Found, wanted: Found) -> bool:
    n_different = int((found[0] != wanted[0]).any(1).sum())
    difference = float(np.abs(found[1] - wanted[1]).max())
    print(
        f"  {name:16} {n_different} of {len(wanted[0]):,} lists differ, scores by at most {difference:.1e}", flush=True
    )
    return n_different == 0 and difference <= TOLERANCE


def _by_evaluation(source: Source, indices: Sequence[np.ndarray]) -> Found:
    """The best of all scores by which targets are ranked, without seen items; ties go to the lower id."""
    model, stored = source.trained.model, source.tensors()
    shape = {name: model[name] for name in source.trained.kind.settings}
    network = model_class(model["kind"])(n_items=source.trained.n_items, device="cpu", **shape)
    network.load_state_dict({name: stored.read(MODEL_PREFIX + saved_name(name)) for name in network.state_dict()})
    scorer: Scorer = ModelScorer(network, device=torch.device("cpu"), max_len=model["max_len"])
    if prior := source.prior:
        scorer = PriorScorer(scorer, prior)
    items = torch.arange(scorer.n_items)
    found = []
    with torch.no_grad():
        vectors = scorer.items(items)
        for part in _cut(indices):
            rows = Rows(np.concatenate(part).astype(np.int32), np.array([*map(len, part)]))
            known, _ = scorer.encode(rows, torch.zeros(len(part), 1, dtype=torch.int64))
            scores = scorer.scores(known, vectors, 0, len(vectors))
            if source.leaves_out_seen:
                for row, seen in enumerate(part):
                    scores[row, torch.from_numpy(seen)] = -torch.inf
            best = scores.sort(dim=1, descending=True, stable=True)
            found.append((best.indices[:, :K].numpy(), best.values[:, :K].numpy()))
    return _together(found)


def _by_command(run: Path, place: str, ids: Any, n_users: int) -> Found:
    output = Path(place, "all.parquet")
    assert bert4rec(["recommend", str(run), "--all", f"--top={K}", f"--output={output}"]) == 0
    return _read_file(output, ids, n_users)


def _read_file(output: Path, ids: Any, n_users: int) -> Found:
    table = pq.read_table(output).slice(0, K * n_users)
    assert table["rank"].to_pylist() == [*range(1, K + 1)] * n_users
    return ids.indices(table["item"].to_pylist()).reshape(-1, K), table["score"].to_numpy().reshape(-1, K)


def _by_python(recommender: Any, histories: Sequence[Sequence[Any]]) -> Found:
    rows = recommender.recommend(histories, K)
    items = [recommender.ids.indices([one.item for one in row]) for row in rows]
    return np.stack(items), np.array([[one.score for one in row] for row in rows])


def _by_program(folder: Path, indices: Sequence[np.ndarray]) -> Found:
    program = torch.export.load(folder / "program.pt2").module()
    with torch.inference_mode():
        return _together(
            [tuple(part.numpy() for part in program(_matrix(part), torch.tensor(K))) for part in _cut(indices)]
        )


def _by_onnx(folder: Path, indices: Sequence[np.ndarray]) -> Found:
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    return _together(
        [tuple(session.run(None, {"items": _matrix(part).numpy(), "k": np.array(K)})) for part in _cut(indices)]
    )


def _compare_hits(run: Path, source: Source, ids: Any, place: str) -> bool:
    """HR@10 from the command's file for the histories before the test targets, beside the report's."""
    split = open_dataset(source.dataset).splits["test"]
    rows = split.read(np.arange(len(split)))
    assert rows.targets is not None
    path, output = Path(place, "histories.jsonl"), Path(place, "tested.parquet")
    with path.open("w") as file:
        for items in np.split(rows.items, rows.lengths.cumsum()[:-1]):
            file.write(json.dumps(ids.of(items.tolist())) + "\n")
    assert bert4rec(["recommend", str(run), f"--histories={path}", f"--output={output}"]) == 0
    found, _ = _read_file(output, ids, len(split))
    hits = float((found == rows.targets[:, None]).any(1).mean())
    reported = json.loads((run / "report.json").read_text())["test"]["full"]["HR@10"]
    print(f"  HR@10 from the file {hits!r}, in report.json {reported!r}")
    return hits == reported


def _matrix(histories: Sequence[np.ndarray]) -> Tensor:
    filled = torch.full((len(histories), max(map(len, histories))), -1)
    for row, items in enumerate(histories):
        filled[row, : len(items)] = torch.from_numpy(items)
    return filled


def _together(parts: Sequence[Any]) -> Found:
    items, scores = zip(*parts, strict=True)
    return np.concatenate(items), np.concatenate(scores)


def _cut(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for first in range(0, len(values), BATCH):
        yield values[first : first + BATCH]


if __name__ == "__main__":
    sys.exit(main())
