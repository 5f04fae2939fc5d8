"""A checkpoint as a folder for other programs: a model package, item vectors, programs."""

import json
import logging
from collections.abc import Collection
from pathlib import Path
from typing import Any

from bert4rec.checkpoint.package import CARD, FORMAT, ITEMS, SETTINGS, VERSION, WEIGHTS
from bert4rec.checkpoint.run_folder import REPORT
from bert4rec.checkpoint.stored_tensors import MODEL
from bert4rec.export.card import card
from bert4rec.export.program import ONNX, PT2, Program, require_onnx, save_onnx, save_pt2
from bert4rec.export.vectors import write_vectors
from bert4rec.export.weights import write_safetensors
from bert4rec.inference.item_ids import ItemIds
from bert4rec.inference.load import network_of
from bert4rec.inference.network import Network
from bert4rec.inference.source import Source
from bert4rec.report.results_folder import ResultsFolder
from bert4rec.runtime import manifest
from bert4rec.runtime.errors import DataError

RECIPES = ("preprocessing", "training", "evaluation")  # tables of settings that a package repeats: none names a place

logger = logging.getLogger(__name__)


def export(source: Source, folder: Path, formats: Collection[str], *, k: int, leaves_out_seen: bool) -> Path:
    """Write `folder`, whole or not at all, with what the `formats` need and what explains it; where it is in the end.

    The programs do not find items of the history itself if `leaves_out_seen`; the examples of the card ask for `k`.
    Tables are read and written a block at a time, but for the programs, which take the table's size in memory. Raises
    `DataError` where `folder` is there, or cannot be written.
    """
    if not source.trained.takes_histories:
        raise DataError(
            f"{source.trained.folder}: a matrix factorisation takes no histories and cannot be exported; expected: a "
            "model of another kind"
        )
    if folder.exists():
        raise DataError(f"{folder}: exists already; name another folder with --output=FOLDER, or remove it")
    if "onnx" in formats:
        require_onnx()  # before the work that would be lost
    try:
        with ResultsFolder(folder) as results:
            _write(source, results.unfinished, formats, k=k, leaves_out_seen=leaves_out_seen)
            names = sorted(path.name for path in results.unfinished.iterdir())
            manifest.seal(results.unfinished, manifest.describe(results.unfinished, names))
            return results.finish()
    except OSError as error:
        raise DataError(f"{folder}: cannot be written: {error.strerror or error}") from None
    except RuntimeError as error:
        if "inline_container" not in str(error):  # what torch says when a write has failed, whatever the reason
            raise
        raise DataError(f"{folder}: cannot be written: not all of {PT2} could be, is the disk full?") from None


def _write(source: Source, folder: Path, formats: Collection[str], *, k: int, leaves_out_seen: bool) -> None:
    ids, stored = ItemIds.read(source.dataset), source.tensors()
    ids.write_lines(folder / ITEMS)
    settings = _settings(source, ids, leaves_out_seen=leaves_out_seen)
    (folder / SETTINGS).write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
    text = card(settings, formats, k=min(k, len(ids)), example=ids.of(range(min(2, len(ids)))), report=_report(source))
    (folder / CARD).write_text(text, encoding="utf-8")
    if "safetensors" in formats:
        names = {name: name.removeprefix(MODEL) for name in stored if name.startswith(MODEL)}
        write_safetensors(folder / WEIGHTS, stored, names)
        logger.info(f"{WEIGHTS}: {len(names)} tensors")
    if "vectors" in formats:
        write_vectors(folder, stored, ids, source.trained.model["embed_dim"])
        logger.info(f"vectors: {len(ids):,} items")
    if {"pt2", "onnx"} & {*formats}:
        network = network_of(source)
        assert isinstance(network, Network), "export() has refused others"
        program = Program(network, leaves_out_seen=leaves_out_seen).eval()
        for name, file, save in (("pt2", PT2, save_pt2), ("onnx", ONNX, save_onnx)):
            if name in formats:
                save(folder / file, program)
                logger.info(f"{file}: histories and k → the k best items")


def _settings(source: Source, ids: ItemIds, *, leaves_out_seen: bool) -> dict[str, Any]:
    trained = source.trained
    recipes = {table: trained.metadata["config"][table] for table in RECIPES}
    return {
        "format": FORMAT,
        "format_version": VERSION,
        "is_causal": source.is_causal,
        "item_ids": "numbers" if ids.are_numbers else "text",
        "leaves_out_seen": leaves_out_seen,
        "source": source.about_data["source"],
        **{key: trained.metadata[key] for key in ("n_items", "items", "fingerprint")},
        "config": {"model": trained.model, **recipes},
    }


def _report(source: Source) -> dict[str, Any]:
    """Return the report of the run if it is about these weights, else {}."""
    trained = source.trained
    if trained.run is None or not trained.is_reported or not (trained.run / REPORT).is_file():
        return {}
    report: dict[str, Any] = json.loads((trained.run / REPORT).read_text(encoding="utf-8"))
    return report
