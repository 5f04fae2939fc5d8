"""The report of a finished run, read again."""

import json
from pathlib import Path
from typing import Any

from bert4rec.checkpoint.run_folder import REPORT
from bert4rec.runtime.errors import DataError


def read_report(run: Path) -> dict[str, Any]:
    """What the `report.json` of the folder `run` says. Raises `DataError` where there is none, or a broken one."""
    try:
        report = json.loads((run / REPORT).read_text(encoding="utf-8"))
        if not isinstance(report, dict) or "dataset" not in report:
            raise ValueError("it does not name its dataset")
    except FileNotFoundError:
        raise DataError(f"{run}: no finished run (it has no {REPORT}); name the folder of one") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{run / REPORT}: cannot be read: {error}") from None
    return report
