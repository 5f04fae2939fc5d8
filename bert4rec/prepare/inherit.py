"""Take the settings of a dataset that a new one extends, so that nothing has to be typed twice."""

from collections.abc import Collection, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

from bert4rec.config.load import Overrides, load_settings
from bert4rec.config.recognition import NAMED_IN, fetched_kind
from bert4rec.config.sources import GENERATED
from bert4rec.config.stored import dataset_folder
from bert4rec.config.tables import Config, Preprocessing
from bert4rec.dataset.format import READING
from bert4rec.dataset.reader import read_metadata
from bert4rec.runtime.errors import DataError

DEFAULTS = Config()
FIELD_COLUMNS = {f"{field}_column": field for field in ("user", "item", "time", "rating", "order", "event", "title")}
READ_BY = ("data.separator", "data.has_header", "preprocessing.max_bad_rows", "preprocessing.max_guests")
SPLIT_AT = "preprocessing.split_at"
OF_ONE_LOG = "preprocessing.time_until"  # where the older log ends is where the rows begin that the newer one adds


def reading_of(config: Config) -> dict[str, Any]:
    """Return the settings that say how the input is read, "table.key" → value, where they are not the defaults."""
    return {name: attrgetter(name)(config) for name in READ_BY if _is_set(config, name)}


def with_inherited(file: str | None, overrides: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `overrides` with the settings of the dataset that they, or the settings `file`, extend; else as they are.

    What is typed wins, and what is not the default in the file. Raises `DataError` for a missing dataset, and for a
    split that contradicts it.
    """
    config = load_settings(file, overrides)
    if not config.data.extends:
        return overrides
    try:
        folder = dataset_folder(config.data.extends)
        metadata = read_metadata(folder)
    except DataError as error:
        raise DataError(f"data.extends = {error}") from None
    inherited = {f"preprocessing.{key}": value for key, value in metadata["preprocessing"].items()}
    inherited |= _inherited_data(config, metadata, overrides) | metadata.get(READING, {})
    chosen = {*overrides, OF_ONE_LOG, *(name for name in inherited if _is_set(config, name))}
    _refuse_other_split(config, folder, metadata, chosen)
    typed = overrides.typed if isinstance(overrides, Overrides) else {}
    values = {name: inherited[name] for name in inherited if name not in chosen} | {**overrides}
    return Overrides(values | {"data.extends": str(folder)}, typed)


def _inherited_data(config: Config, metadata: Mapping[str, Any], typed: Collection[str]) -> dict[str, Any]:
    """Return source, table and columns of the dataset with this `metadata`; {} if the new one has another source."""
    source, columns = metadata["source"], metadata.get("columns", {})
    is_other = config.data.source != source and (config.data.source not in GENERATED or "data.source" in typed)
    if source in GENERATED or is_other:
        return {}
    settings = {f"data.{name}": columns.get(field, "") for name, field in FIELD_COLUMNS.items() if columns}
    if config.data.titles_path:
        settings.pop("data.title_column", "")
    if not (config.data.table or config.data.query or {"data.table", "data.query"} & {*typed}):
        names = NAMED_IN.get(fetched_kind(config.data.path), ())
        settings |= {f"data.{name}": metadata["created_from"].get(name, "") for name in names}
    return {"data.source": source, **settings}


def _is_set(config: Config, name: str) -> bool:
    value = attrgetter(name)
    return bool(value(config) != value(DEFAULTS))


def _refuse_other_split(config: Config, folder: Path, metadata: Mapping[str, Any], chosen: Collection[str]) -> None:
    """Raise `DataError` for a split whose test targets runs of the dataset at `folder` have trained on."""
    old, new = Preprocessing.from_saved(metadata["preprocessing"]), config.preprocessing
    for key, is_contrary in (
        ("split", new.split not in (old.split, "none")), ("test_users", old.test_users != "all" == new.test_users)
    ):  # fmt: skip
        if f"preprocessing.{key}" in chosen and is_contrary:
            raise DataError(
                f"preprocessing.{key} = {getattr(new, key)}: data.extends = {folder} has {getattr(old, key)}, so its "
                "runs have trained on rows that would be held out now; remove one of the two"
            )
    if old.split == "time" and isinstance(old.split_at, str) and SPLIT_AT not in chosen and new.split != "none":
        raise DataError(
            f"data.extends: {folder} is split at {old.split_at}, and nothing that comes later would be trained on; "
            f"name the new instant, or a share of the rows: --{SPLIT_AT}=0.1"
        )
