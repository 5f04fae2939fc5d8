"""Rows that lie in a file, a database, a lake and a workbook, and the dataset that is made of each."""

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from bert4rec.config.load import load_config
from bert4rec.prepare.engine import prepare
from tests.folders import contents

SETTINGS = {"preprocessing.n_eval_negatives": 1, "preprocessing.validation_users": "all", "model.max_len": 6}
ROWS = [(f"u{n % 7}", n % 11, str(datetime(2024, 1, 1) + timedelta(hours=n)), n / 2) for n in range(90)]
COLUMNS = ["customer", "sku", "at", "stars"]


def made(folder: Path, **data: str | bool) -> dict[str, Any]:
    """What the dataset holds that is made from `data`."""
    settings = {f"data.{name}": value for name, value in data.items()}
    return contents(Path(prepare(load_config(None, SETTINGS | settings | {"data.dataset_dir": str(folder)}))))
