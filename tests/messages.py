"""Collect all sentences of the program in one file for reviewers: `python -m tests.messages` writes messages.txt.

A sentence is a string of at least three words in the package, without docstrings; braces hold what is filled in.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "bert4rec"
SNAPSHOT = Path(__file__).with_name("messages.txt")


def messages() -> str:
    """Return the sentences of all modules, those of each module below its path."""
    sections = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if found := [*sentences(ast.parse(path.read_text(encoding="utf-8")))]:
            sections.append("\n".join([f"# {path.relative_to(PACKAGE.parent).as_posix()}", *found]))
    return "\n\n".join(sections) + "\n"


def sentences(node: ast.AST) -> Iterator[str]:
    """Yield the sentences below `node` in the order of the code."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
            continue  # a docstring
        text = template(child)
        if len(text.split()) >= 3:
            yield repr(text)[1:-1]
        if isinstance(child, ast.JoinedStr):  # its constants are part of the text above
            for value in child.values:
                if isinstance(value, ast.FormattedValue):
                    yield from sentences(value)
        elif not text:
            yield from sentences(child)


def template(node: ast.AST) -> str:
    """Return the text of a string, with code in braces; "" for other code."""
    if isinstance(node, ast.JoinedStr):
        return "".join(
            value.value if isinstance(value, ast.Constant) else f"{{{ast.unparse(value.value)}}}"
            for value in node.values
        )
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


if __name__ == "__main__":
    SNAPSHOT.write_text(messages(), encoding="utf-8")
