"""`python -m bert4rec COMMAND …`: what there is to do before a run, and with one that has ended."""

import sys
from collections.abc import Sequence

from bert4rec.runtime.installation import exit_for_missing, require_python

try:
    require_python()
    from bert4rec.commands.plan import show_plan
    from bert4rec.commands.report import show_report
    from bert4rec.runtime.broken_pipe import ending_on_broken_pipe
    from bert4rec.runtime.errors import UserError
except ModuleNotFoundError as error:
    exit_for_missing(error)

USAGE = """usage: python -m bert4rec COMMAND

report [RUN]   the test metrics of a run folder, and what to type next (default: the newest finished run under runs/)
plan …         who would hold what on a cluster that need not be there, and whether it fits (plan --help)
check FOLDER   whether a dataset folder is whole and leaks nothing, proven row by row (check --help)"""


def main(argv: Sequence[str]) -> int:
    """The exit status: 0 finished, 1 a plan that does not fit, 2 bad arguments or input."""
    with ending_on_broken_pipe():
        return _run(argv)


def _run(argv: Sequence[str]) -> int:
    if not argv or argv[0] in ("--help", "-h"):
        print(USAGE)
        return 0
    try:
        command, *arguments = argv
        if command == "plan":
            return show_plan(arguments)
        if command == "check":
            from bert4rec.commands.check import show_check  # here: it imports Arrow, which the others need not wait for

            return show_check(arguments)
        if command != "report" or len(arguments) > 1:
            raise UserError(f'"{" ".join(argv)}": no such command; python -m bert4rec --help lists them')
        return show_report(arguments)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
