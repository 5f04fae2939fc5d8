"""Check the plain language: `python -m scripts.check_language` names each docstring, name or sentence to change."""

import ast
import sys
from collections.abc import Iterable, Iterator
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
Cutter Survey Verb Tally able guesses Recognized Unread blame dealt is_ahead standings Contestant known_part _obey _tell
_try _Shown Distinct of_share of_all of_users of_rank of_row of_vectors of_one_shard _of_log _of_head _of_data
"""
SAVED_NAMES = ("of_user", "of_item")  # modules of a model, whose weights are saved by these names

PHRASES = (  # riddles that a plain sentence has no need of
    "whoever", "nobody", "in the place of", "in place of", "beside other work", "where there is none", "told of",
    "a word too many", "in vain", "aloud", "for want of", "as they are understood", "leaks nothing", "fulfils it",
    "has words after", "is there already", "is not paired", "tells nothing", "is no history", "is no kind of event",
    "are invented", "leave it out", "cannot be told", "left of the disk", "shared out among the cores", "the whole way",
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
        if first == ["Hold"] and isinstance(node, ast.ClassDef | ast.Module):
            yield f'{path}:{line}: the docstring of {name} begins with "Hold"; say what it is'
        if not isinstance(node, ast.Module) and name in REPLACED.split():
            yield f"{path}:{line}: {name} was replaced by a plain name; see its history"


def variables(path: Path) -> Iterator[str]:
    """Yield a line for each variable and parameter of the module at `path` with the name `of` or `of_…`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            name = node.id if isinstance(node, ast.Name) else node.attr
        else:
            name = node.arg if isinstance(node, ast.arg) else ""
        if name.lstrip("_").partition("_")[0] == "of" and name not in SAVED_NAMES:
            yield f"{path}:{node.lineno}: {name}; name the variable for what it holds"


def constants(path: Path) -> Iterator[tuple[str, int, bool]]:
    """Yield the name, the line and the place of each constant of the module at `path`: whether code stands before it.

    A type variable is none, and a constant made from a function or a class of its module may stand behind it.
    """
    local: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            local.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
            used = {name.id for name in ast.walk(node.value) if isinstance(name, ast.Name)}
            names = [
                name.id for name in ast.walk(node) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
            ]
            for name in names:
                if (name.isupper() or name == "logger") and "TypeVar" not in used:
                    yield name, node.lineno, bool(local) and not used & local
            if used & local:
                local |= {*names}


def misplaced_constants(paths: Iterable[Path]) -> Iterator[str]:
    """Yield a line for each constant in the middle of a module, and for each name that means two things."""
    places: dict[str, list[str]] = {}
    for path in paths:
        for name, line, is_late in constants(path):
            if is_late:
                yield f"{path}:{line}: move {name} above the functions"
            if name != "logger":
                places.setdefault(name, []).append(f"{path}:{line}")
    for name, lines in places.items():
        if len(lines) > 1:
            yield f"{' and '.join(lines)}: {name} is defined twice; one name, one value"


if __name__ == "__main__":
    modules = sorted(PACKAGE.rglob("*.py"))
    found = [line for path in modules for line in (*problems(path), *variables(path))]
    found += misplaced_constants(modules)
    texts = [*PAGES, *(path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".j2"))]
    found += [line for path in sorted(texts) for line in unplain(path)]
    sys.exit("\n".join(found) or 0)
