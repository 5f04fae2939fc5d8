"""Hold the plain language of the package: `python -m scripts.check_language` names each docstring or name to change."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "bert4rec"
STARTS = ("Of", "By", "As", "In", "For", "Where", "Those", "What")  # a docstring begins with a verb or a noun
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
# Names that were replaced by the field's words, and must not come back as definitions.
REPLACED = """
ask asking as_they_are with_mask represent score_own with_one floats_kept floats_per_score tables_of who_sees_whom
dated placed turn merge showing spread own_group frozen while_asking since_previous kind_of_gap Route _take_back
Counting Findings agreed agreement facts_of Consensus Between averaged take_best start_from bring Transfer lasting
keep_as_best has_waited preserved Taken REACH headline listed skew abilities keeps_its_arithmetic everyone
group_beside on_all is_first tell wording counted clock seal put_in_place write_whole locked say_that_it_stopped Spool
Cutter Survey Verb Tally able guesses Recognized Unread blame dealt is_ahead standings Contestant
"""


def problems(path: Path) -> Iterator[str]:
    """Yield a line for each docstring and definition of the module at `path` that is not plain."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, DOCUMENTED):
            continue
        name, line = getattr(node, "name", path.stem), getattr(node, "lineno", 1)
        first = (ast.get_docstring(node) or " ").split(maxsplit=1)[:1]
        if first and first[0].strip("*`.,:") in STARTS:
            yield f'{path}:{line}: the docstring of {name} begins with "{first[0]}"; begin with a verb'
        if not isinstance(node, ast.Module) and name in REPLACED.split():
            yield f"{path}:{line}: {name} was replaced by a plain name; see its history"


if __name__ == "__main__":
    found = [line for path in sorted(PACKAGE.rglob("*.py")) for line in problems(path)]
    sys.exit("\n".join(found) or 0)
