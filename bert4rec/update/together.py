"""Do the steps of an update: those of one process on rank zero, while the others wait, and each once."""

import json
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from bert4rec.runtime.errors import UserError
from bert4rec.runtime.files import atomic_write
from bert4rec.runtime.processes import rendezvous

LONGEST = timedelta(days=7)  # that other processes wait for a step of rank zero; if it ends, the launcher ends them


class Steps:
    """The steps of an update, done by rank zero alone; one whose file is there is not done again.

    Every process of the launch makes the same calls.
    """

    def __init__(self) -> None:
        self._store, self.rank, self.world_size = rendezvous()
        self._n = 0

    def first(self, work: Callable[[], Any]) -> Any:
        """Return what `work` returns on rank zero, which JSON can hold; all processes raise its `UserError`."""
        self._n += 1
        key = f"step-{self._n}"
        if self.rank:
            self._store.wait([key], LONGEST)
            told = json.loads(self._store.get(key))
            if "error" in told:
                error = UserError(told["error"])
                error.status, error.is_on_all = told["status"], True
                raise error
            return told["result"]
        try:
            result = work()
        except UserError as error:
            self._publish(key, {"error": str(error), "status": error.status})
            error.is_on_all = True
            raise
        self._publish(key, {"result": result})
        return result

    def once(self, file: Path, work: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """Return what `work` returns on rank zero, or what it returned before: it is kept in `file`."""

        def do() -> Any:
            if not file.is_file():
                atomic_write(file, json.dumps(work(), indent=1))
            return json.loads(file.read_text(encoding="utf-8"))

        result: dict[str, Any] = self.first(do)
        return result

    def _publish(self, key: str, what: Mapping[str, Any]) -> None:
        if self.world_size > 1:
            self._store.set(key, json.dumps(what))
