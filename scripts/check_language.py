"""Hold the plain language: `python -m scripts.check_language` names each docstring, name or sentence to change."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "bert4rec"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "config.toml", *(ROOT / "docs").glob("*.md")]
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

PHRASES = (  # riddles that a plain sentence has no need of
    "whoever", "nobody", "in the place of", "in place of", "beside other work", "where there is none", "told of",
    "a word too many", "in vain", "aloud", "for want of",
)  # fmt: skip


def unplain(path: Path) -> Iterator[str]:
    """Yield a line for each sentence of the file at `path` that has one of `PHRASES`."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        yield from (f'{path}:{number}: "{phrase}"; say it plainly' for phrase in PHRASES if phrase in line.lower())


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
    texts = [*PAGES, *(path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".j2"))]
    found += [line for path in sorted(texts) for line in unplain(path)]
    sys.exit("\n".join(found) or 0)
