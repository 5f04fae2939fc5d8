"""Arrays in files, read by threads."""

import ast
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from bert4rec.runtime.arrays import load_array
from tests.fixture_types import Patch


@pytest.mark.parametrize("is_mapped", [True, False])
def test_threads_do_not_read_headers_at_once(tmp_path: Path, monkeypatch: Patch, is_mapped: bool) -> None:
    """Python 3.11 may fail if two threads make syntax trees at once, as NumPy does for each header."""
    array, read, n_at_once, most = np.arange(7), ast.literal_eval, 0, 0
    np.save(tmp_path / "array.npy", array)

    def slowly(text: str) -> object:
        nonlocal n_at_once, most
        n_at_once += 1
        most = max(most, n_at_once)
        time.sleep(0.01)
        n_at_once -= 1
        return read(text)

    monkeypatch.setattr(ast, "literal_eval", slowly)
    found: list[object] = []
    threads = [
        threading.Thread(target=lambda: found.append(load_array(tmp_path / "array.npy", is_mapped=is_mapped)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert len(found) == 8
    assert all(np.array_equal(one, array) for one in found)  # type: ignore[arg-type]
    assert all(isinstance(one, np.memmap) == is_mapped for one in found)
