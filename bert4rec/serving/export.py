"""Export a checkpoint to a folder for other programs: a model package, item vectors, programs."""

import json
import logging
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from bert4rec.checkpoint.package import FORMAT, ITEM_LINES, MODEL_CARD, PRIOR, SETTINGS, VERSION, WEIGHTS
from bert4rec.checkpoint.run_folder import REPORT, Trained
from bert4rec.checkpoint.stored_tensors import MODEL_PREFIX, StoredTensors, safetensors_header
from bert4rec.config.kinds import KINDS
from bert4rec.evaluation.seen_items import BY_ITEM, SeenRule
from bert4rec.models.names import HEAD, HEAD_BIAS, TABLE
from bert4rec.models.prior import PRIOR_SOURCES
from bert4rec.report.results_folder import ResultsFolder
from bert4rec.report.templates import render
from bert4rec.runtime import files
from bert4rec.runtime.errors import DataError
from bert4rec.serving.histories import ItemIds
from bert4rec.serving.load import Source, counting_of, network_of
from bert4rec.serving.network import Network
from bert4rec.serving.package import read_ids
from bert4rec.serving.program import ONNX, PT2, Program, ProgramWithEvents, require_onnx, save_onnx, save_pt2

VECTORS_PARQUET, VECTORS_NPY = "vectors.parquet", "vectors.npy"
FILE_OF = {"safetensors": WEIGHTS, "vectors": VECTORS_NPY, "pt2": PT2, "onnx": ONNX}  # of a format
RECIPES = ("preprocessing", "training", "evaluation")  # settings tables of a package, which contain no paths
logger = logging.getLogger(__name__)


def write_safetensors(
    path: Path, tensors: Mapping[str, tuple[torch.dtype, Sequence[int]]], blocks: Iterable[Tensor]
) -> None:
    """Write `tensors` of these dtypes and shapes to a safetensors file; `blocks` are their rows, in order."""
    with path.open("wb") as file:
        file.write(safetensors_header(tensors)[0])
        file.writelines(map(bytes_of, blocks))


def bytes_of(block: Tensor) -> memoryview:
    """Return the bytes of a tensor."""
    return block.contiguous().flatten().view(torch.uint8).numpy().data


def write_vectors(folder: Path, stored: StoredTensors, ids: ItemIds, embed_dim: int) -> None:
    """Write `vectors.npy`, float32 [V, d + 1 with biases], and `vectors.parquet`: id, title, vector, bias of each item.

    The item of row i is line i of the list of ids. A score is the product of a row with a hidden state, to which a 1 is
    appended if there are biases.
    """
    is_wide = MODEL_PREFIX + HEAD not in stored and stored.shape(MODEL_PREFIX + TABLE)[1] > embed_dim
    width, first = embed_dim + (is_wide or MODEL_PREFIX + HEAD_BIAS in stored), 0
    schema = _table(torch.empty(0, width), ids, range(0), embed_dim).schema
    with (folder / VECTORS_NPY).open("wb") as file, pq.ParquetWriter(folder / VECTORS_PARQUET, schema) as table:
        header = {"descr": "<f4", "fortran_order": False, "shape": (len(ids), width)}
        np.lib.format.write_array_header_1_0(file, header)
        for block in _vectors(stored, embed_dim):
            file.write(bytes_of(block))
            table.write_table(_table(block, ids, range(first, first + len(block)), embed_dim))
            first += len(block)


def _vectors(stored: StoredTensors, embed_dim: int) -> Iterator[Tensor]:
    """Yield the vectors [n, d] that score items, with their biases as a last column, in the order of their indices."""
    if MODEL_PREFIX + HEAD in stored:  # replicated layers, not sharded
        biases = [stored.read(MODEL_PREFIX + HEAD_BIAS)[:, None]] if MODEL_PREFIX + HEAD_BIAS in stored else []
        yield torch.cat([stored.read(MODEL_PREFIX + HEAD), *biases], 1)
    else:
        yield from (block[:, : embed_dim + 1] for block in stored.blocks(MODEL_PREFIX + TABLE))


def _table(block: Tensor, ids: ItemIds, indices: range, embed_dim: int) -> pa.Table:
    rows = ids.slice(indices)
    columns = {"item": rows["item"]}
    if ids.have_titles:
        columns["title"] = rows["title"].cast(pa.large_string())
    columns["vector"] = pa.FixedSizeListArray.from_arrays(pa.array(block[:, :embed_dim].flatten().numpy()), embed_dim)
    if block.shape[1] > embed_dim:
        columns["bias"] = pa.array(block[:, -1].numpy())
    return pa.table(columns)


def export(source: Source, folder: Path, formats: Collection[str], *, k: int, leaves_out_seen: SeenRule) -> Path:
    """Write `folder`, all or nothing, with the files of the `formats` and a README, and return its final path.

    By the rule `leaves_out_seen`, the programs do not return items of the history itself; the examples of the README
    use `k`. Tables are read and written in blocks, but the programs need the whole table in memory. Raises `DataError`
    if `folder` exists or cannot be written.
    """
    _require_formats(source.trained, formats)
    if folder.exists():
        raise DataError(f"{folder}: exists already; name another folder with --output=FOLDER, or remove it")
    if "onnx" in formats:
        require_onnx()  # fail before the work, not after it
    try:
        with ResultsFolder(folder) as results:
            _write(source, results.unfinished, formats, k=k, leaves_out_seen=leaves_out_seen)
            names = sorted(path.name for path in results.unfinished.iterdir())
            files.write_manifest(results.unfinished, files.describe(results.unfinished, names))
            return results.finish()
    except OSError as error:
        raise DataError(f"{folder}: cannot be written: {error.strerror or error}") from None
    except RuntimeError as error:
        if "inline_container" not in str(error):  # torch reports any failed write with it
            raise
        raise DataError(f"{folder}: cannot be written: not all of {PT2} could be, is the disk full?") from None


def _require_formats(trained: Trained, formats: Collection[str]) -> None:
    """Raise `DataError` if the kind of the model has no such formats."""
    kind = trained.kind
    if kind.learns_pairs:
        raise DataError(
            f"{trained.folder}: a matrix factorisation cannot score histories and cannot be exported; expected: "
            "a model of another kind"
        )
    if kind.needs_features:
        raise DataError(
            f'{trained.folder}: model.kind = "{kind.name}" reads the features of items in its dataset, and cannot be '
            "exported; name its run, with that dataset, where a model package would be named"
        )
    if not kind.is_trained and (others := [name for name in formats if name != "safetensors"]):
        raise DataError(
            f'{trained.folder}: model.kind = "{kind.name}" only counts and has no {" or ".join(others)}; '
            "--format=safetensors exports it"
        )


def _write(source: Source, folder: Path, formats: Collection[str], *, k: int, leaves_out_seen: SeenRule) -> None:
    ids, trained = source.ids, source.trained
    ids.write_lines(folder / ITEM_LINES, with_again=leaves_out_seen == BY_ITEM)
    settings = _settings(source, ids, leaves_out_seen=leaves_out_seen)
    (folder / SETTINGS).write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
    (folder / MODEL_CARD).write_text(_card(source, settings, formats, ids, k=k), encoding="utf-8")
    if not trained.kind.is_trained:
        arrays = counting_of(source).count(trained.kind.name)
        counts = {
            name: torch.from_numpy(np.require(values, requirements=["C", "W"])) for name, values in arrays.items()
        }
        sizes = {name: (values.dtype, values.shape) for name, values in counts.items()}
        write_safetensors(folder / WEIGHTS, sizes, counts.values())
        return
    stored = source.tensors()
    if "safetensors" in formats:
        names = [name for name in stored if name.startswith(MODEL_PREFIX)]
        shapes = {name.removeprefix(MODEL_PREFIX): (stored.dtype(name), stored.shape(name)) for name in names}
        write_safetensors(folder / WEIGHTS, shapes, chain.from_iterable(map(stored.blocks, names)))
        logger.info(f"{WEIGHTS}: {len(names)} tensors")
        if trained.prior_weights:
            shutil.copyfile(trained.prior, folder / PRIOR)
    if "vectors" in formats:
        write_vectors(folder, stored, ids, trained.model["embed_dim"])
        logger.info(f"vectors: {len(ids):,} items")
    if {"pt2", "onnx"} & {*formats}:
        network = network_of(source)
        assert isinstance(network, Network), "export() refuses matrix factorisation"
        kind = ProgramWithEvents if network.kinds else Program
        leaves_out = ~ids.comes_again if leaves_out_seen == BY_ITEM else leaves_out_seen
        program = kind(network, leaves_out_seen=leaves_out, prior=source.prior).eval()
        for name, file, save in (("pt2", PT2, save_pt2), ("onnx", ONNX, save_onnx)):
            if name in formats:
                save(folder / file, program)
                logger.info(f"{file}: histories and k → the k best items")


def _settings(source: Source, ids: ItemIds, *, leaves_out_seen: SeenRule) -> dict[str, Any]:
    trained = source.trained
    recipes = {table: trained.metadata["config"][table] for table in RECIPES}
    return {
        "format": FORMAT,
        "format_version": VERSION,
        "is_causal": source.trained.kind.is_causal,
        "item_ids": "numbers" if ids.are_numbers else "text",
        "leaves_out_seen": leaves_out_seen,
        **({} if ids.recent_counts is None else {"fallback": ids.fallback}),
        "source": source.about_data["source"],
        **{key: trained.metadata[key] for key in ("n_items", "items", "fingerprint") if key in trained.metadata},
        **({"events": list(trained.kinds)} if trained.kinds else {}),
        **({"prior": trained.prior_weights} if trained.prior_weights else {}),
        "config": {"model": trained.model, **recipes},
    }


def _report(source: Source) -> dict[str, Any]:
    """Return the report of the run if it is about these weights, else {}."""
    trained = source.trained
    if trained.run is None or not trained.is_reported or not (trained.run / REPORT).is_file():
        return {}
    return json.loads((trained.run / REPORT).read_text(encoding="utf-8"))


def card_again(source: Source, folder: Path, *, k: int) -> str:
    """Return the README of a package in `folder` anew, by the items that it has now."""
    settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
    formats = [name for name, file in FILE_OF.items() if (folder / file).is_file()]
    return _card(source, settings, formats, read_ids(folder, settings), k=k)


def _card(source: Source, settings: Mapping[str, Any], formats: Collection[str], ids: ItemIds, *, k: int) -> str:
    shown = np.arange(len(ids)) if ids.forgotten is None else np.flatnonzero(~ids.forgotten)
    example, has_forgotten = ids.of(shown[:2].tolist()), ids.forgotten is not None
    return card(
        settings, formats, k=min(k, len(ids)), example=example, report=_report(source), has_forgotten=has_forgotten
    )


def card(
    settings: Mapping[str, Any], formats: Collection[str], *, k: int, example: Sequence[Any],
    report: Mapping[str, Any], has_forgotten: bool = False,
) -> str:  # fmt: skip
    """Return the README of a package with these `settings` and `formats`; some items may be forgotten.

    Its examples use `k` and the history `example` of original ids. `report` is that of the run, {} for none.
    """
    model, figures = settings["config"]["model"], report.get("test", {}).get("full")
    page = render(
        "card.md.j2", **{"events": (), "fallback": "", "prior": {}, **settings}, model=model, formats=formats,
        k=k, has_forgotten=has_forgotten,
        counts=not KINDS[model["kind"]].is_trained, times=model.get("times", "none"), figures=figures, example=example,
        n_last=max((PRIOR_SOURCES[name].n_last for name in settings.get("prior", ())), default=0),
        history=json.dumps(example, ensure_ascii=False),
    )  # fmt: skip
    return page + "\n"
