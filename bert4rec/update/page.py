"""Write the page of a models folder from what the folder holds."""

from pathlib import Path

from bert4rec.checkpoint.models_folder import find_versions, read_aliases, read_updates
from bert4rec.report.models_page import write_models_page


def write_page(models: Path) -> None:
    """Write the page of the models folder anew."""
    versions = [{"time": version.name, **version.about} for version in find_versions(models)]
    write_models_page(models, read_updates(models), read_aliases(models), versions)
