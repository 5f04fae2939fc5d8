"""The card of an exported model: its `README.md`, for a person and for the Hugging Face hub."""

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any


def card(
    settings: Mapping[str, Any], formats: Collection[str], *, k: int, example: Sequence[Any], report: Mapping[str, Any]
) -> str:
    """Return the text for a package with these `settings` and `formats`.

    `k` and `example`, a history of items by their own ids, are those of the examples; `report`: of the run that the
    package is from, {} for none.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    model, figures = settings["config"]["model"], report.get("test", {}).get("full")
    return environment.get_template("card.md.j2").render(
        settings, model=model, times=model.get("times", "none"), formats=formats, k=k, figures=figures,
        example=example, history=json.dumps(example, ensure_ascii=False),
    )  # fmt: skip
