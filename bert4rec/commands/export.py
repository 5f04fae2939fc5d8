"""`bert4rec export RUN`: export a trained model for other programs."""

import argparse
from pathlib import Path

from bert4rec.checkpoint.package import FORMATS, USUAL_FORMATS
from bert4rec.commands.recommend import add_model_arguments, add_seen_argument
from bert4rec.config.help import nearest_values
from bert4rec.config.kinds import SEEN
from bert4rec.config.stored import dataset_folder
from bert4rec.runtime.console import log_to_terminal
from bert4rec.runtime.errors import SettingsError, did_you_mean
from bert4rec.runtime.startup import importing

COUNTED_FORMATS = ("safetensors",)  # of a model that only counts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the run, the formats and the folder."""
    parser.description = (
        "Writes a folder for other programs. With safetensors it is a model package: load() and the commands accept it "
        "like a run, and do not need TorchRec for it. Runs in one process. Tables are read and written in blocks of "
        "rows, except for pt2 and onnx, which need the table in memory."
    )
    add_model_arguments(parser, top="k in the example of README.md; programs (pt2, onnx) take any k")
    usual, counted = ",".join(USUAL_FORMATS), ",".join(COUNTED_FORMATS)
    parser.add_argument(
        "--format", metavar="NAME,NAME,…",
        help="safetensors: all weights; vectors: of the items, as Parquet and npy; pt2: a program for torch alone; "
        f"onnx: one for onnxruntime (default: {usual}; {counted} for a model that only counts)",
    )  # fmt: skip
    parser.add_argument("-o", "--output", metavar="FOLDER", type=Path, help="a new folder (default: RUN/export)")
    add_seen_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write the folder, and return the exit status 0. Raises `UserError`."""
    formats = None if arguments.format is None else _formats(arguments.format)
    if arguments.top < 1:
        raise SettingsError(f"--top={arguments.top}: must be at least 1")
    with importing():
        from bert4rec.serving.export import export
        from bert4rec.serving.load import find_source

    log_to_terminal(stream="stderr")
    source = find_source(arguments.run_folder, arguments.dataset and dataset_folder(arguments.dataset))
    formats = formats or [*(USUAL_FORMATS if source.trained.kind.is_trained else COUNTED_FORMATS)]
    folder = arguments.output or arguments.run_folder / "export"
    leaves_out_seen = source.leaves_out_seen if arguments.seen is None else SEEN[arguments.seen]
    folder = export(source, folder, formats, k=arguments.top, leaves_out_seen=leaves_out_seen)
    print(f"exported to {folder}; how to use it: {folder / 'README.md'}")
    return 0


def _formats(text: str) -> list[str]:
    names = text.split(",")
    if unknown := next((name for name in names if name not in FORMATS), None):
        nearest = did_you_mean(nearest_values(unknown, [*FORMATS], {}))
        raise SettingsError(f"--format={text}: no format {unknown}{nearest or '; there are ' + ', '.join(FORMATS)}")
    return names
