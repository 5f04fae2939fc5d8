"""Types of NumPy arrays, named by their elements; and arrays in files, read by threads."""

import threading
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Bools: TypeAlias = NDArray[np.bool_]
Integers: TypeAlias = NDArray[np.integer]
Int32s: TypeAlias = NDArray[np.int32]
Int64s: TypeAlias = NDArray[np.int64]
Float32s: TypeAlias = NDArray[np.float32]
Float64s: TypeAlias = NDArray[np.float64]

_HEADERS = threading.Lock()


def load_array(path: Path, *, is_mapped: bool = False) -> Array:
    """Return the array in a file, or map it; for tasks in threads.

    NumPy reads the header of a file as Python. Of two threads of Python 3.11 that do so at once, one may raise
    `SystemError`, "AST constructor recursion depth mismatch" (python/cpython#106905).
    """
    with _HEADERS:
        array: Array = np.load(path, mmap_mode="r")
    return array if is_mapped else np.array(array)
