"""Which statements of the package that are entered on a GPU alone have run; torch is not imported here.

A statement is entered on a GPU alone if an `if` or an early `return` before it asks for a GPU, or if it calls
`torch.cuda`. Both branches of `a if is_cuda else b` are in one statement and are not told apart.
"""

import ast
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

FOLDER = "STAND_IN_LINES"  # variable with the folder in which each process notes the lines that it has run
ROOT = Path(__file__).parents[2]
OF_HOSTS_TOO = {"device_count", "is_available", "is_initialized"}  # torch.cuda's functions that a CPU build answers
SIGNS = {"on_gpu", "is_cuda", "has_own_gpu"}  # names and attributes that are true for a GPU

Statements = dict[int, int]
"""Each line of the statements → the first line of its statement."""


def statements_of_gpus(source: str) -> Statements:
    """Return the statements of a module that are entered on a GPU alone."""
    found: Statements = {}
    for node in ast.walk(ast.parse(source)):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                for statement in _gpu_statements(block):
                    is_simple = not hasattr(statement, "body")
                    end = (statement.end_lineno if is_simple else None) or statement.lineno
                    found |= dict.fromkeys(range(statement.lineno, end + 1), statement.lineno)
    return found


def _gpu_statements(block: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for number, statement in enumerate(block):
        if isinstance(statement, ast.If):
            if _asks(statement.test, is_for=True):
                yield from _within(statement.body)
            if _asks(statement.test, is_for=False):
                yield from _within(statement.orelse)
                if isinstance(statement.body[-1], ast.Return | ast.Raise):
                    yield from _within(block[number + 1 :])
        elif isinstance(statement, ast.Expr | ast.Assign) and _calls_cuda(statement.value):
            yield statement


def _within(block: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    yield from (node for each in block for node in ast.walk(each) if isinstance(node, ast.stmt))


def _asks(test: ast.expr, *, is_for: bool) -> bool:
    """Return whether a GPU is needed for the `test` to be true, or false if not `is_for`."""
    match test:
        case ast.BoolOp(op=op, values=values):
            return isinstance(op, ast.And if is_for else ast.Or) and any(_asks(v, is_for=is_for) for v in values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _asks(operand, is_for=not is_for)
        case ast.Compare(left=ast.Attribute(attr="type"), ops=[op], comparators=[ast.Constant("cuda" | "cpu" as name)]):
            return isinstance(op, ast.Eq if is_for == (name == "cuda") else ast.NotEq)
        case ast.Compare(left=ast.Attribute(attr="_stream"), ops=[op], comparators=[ast.Constant(None)]):
            return isinstance(op, ast.IsNot if is_for else ast.Is)
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Call(func=ast.Name(id=name)):
            return is_for and name in SIGNS
        case ast.Call() | ast.Compare(left=ast.Call(), ops=[ast.Eq() | ast.Gt()]):
            call = test.left if isinstance(test, ast.Compare) else test
            return is_for and ast.unparse(call).startswith("torch.cuda.")
    return False


def _calls_cuda(value: ast.expr) -> bool:
    text = ast.unparse(value)
    return isinstance(value, ast.Call) and text.startswith("torch.cuda.") and value.func.attr not in OF_HOSTS_TOO  # type: ignore[attr-defined]


def all_statements() -> dict[str, Statements]:
    """Return the statements that are entered on a GPU alone, by file."""
    files = {str(path): statements_of_gpus(path.read_text()) for path in sorted(ROOT.glob("bert4rec/**/*.py"))}
    return {path: statements for path, statements in files.items() if statements}


def trace() -> None:
    """Note from now on the lines that this process runs, in the folder of the variable `FOLDER`; without it nothing."""
    if FOLDER not in os.environ:
        return
    wanted, notes = all_statements(), Path(os.environ[FOLDER], str(os.getpid()))

    def local(frame: FrameType, event: str, _: Any) -> Any:
        path, line = frame.f_code.co_filename, frame.f_lineno
        if event == "line" and line in wanted[path]:
            wanted[path].pop(line, None)
            with notes.open("a") as file:  # at once, since the processes of a test are killed
                print(f"{path}:{line}", file=file)
        return local

    def trace_call(frame: FrameType, *_: Any) -> Any:
        code = frame.f_code
        lines = wanted.get(code.co_filename)
        return local if lines and any(line in lines for _, _, line in code.co_lines()) else None

    threading.settrace(trace_call)
    sys.settrace(trace_call)


def summary(folder: Path) -> Iterator[str]:
    """Yield how many of the statements have run by the notes in a `folder`, then those that have not."""
    lines = {line for file in folder.iterdir() for line in file.read_text().split()}
    every = all_statements()
    firsts = {f"{path}:{first}" for path, statements in every.items() for first in statements.values()}
    ran = {f"{path}:{first}" for path, own in every.items() for line, first in own.items() if f"{path}:{line}" in lines}
    yield f"{len(ran)} of {len(firsts)} statements that are entered on a GPU alone have run"
    for place in sorted(firsts - ran):
        yield f"  not {Path(place).relative_to(ROOT)}"
