"""`python -m bert4rec COMMAND …`: what there is to do before a run, and with one that has ended."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from bert4rec.runtime.installation import exit_for_missing, require_python

try:
    require_python()
    from bert4rec.commands import check, evaluate, export, plan, recommend, report, similar
    from bert4rec.runtime.broken_pipe import ending_on_broken_pipe
    from bert4rec.runtime.errors import SettingsError, UserError
except ModuleNotFoundError as error:
    exit_for_missing(error)

COMMANDS = {
    "report": report,
    "evaluate": evaluate,
    "recommend": recommend,
    "similar": similar,
    "export": export,
    "plan": plan,
    "check": check,
}


class Parser(argparse.ArgumentParser):
    """A parser that knows whole names alone, and raises `SettingsError` in place of writing how it is used."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def print_help(self, file: Any = None) -> None:
        """As `print` does: argparse itself says nothing of a broken pipe."""
        print(self.format_help(), end="", file=file)

    def error(self, message: str) -> NoReturn:
        """Raise `message` as an error of the person who typed the command."""
        raise SettingsError(f"{message.removeprefix('argument ')}; {self.prog} --help")


def main(argv: Sequence[str]) -> int:
    """The exit status: 0 finished, 1 a plan that does not fit, 2 bad arguments or input, 130 stopped."""
    parser = Parser(prog="python -m bert4rec", epilog="python -m bert4rec COMMAND --help: the options of a command")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        options = commands.add_parser(name, help=command.SUMMARY)
        options.set_defaults(run=command.run)
        command.add_arguments(options)
    with ending_on_broken_pipe():
        try:
            arguments, others = parser.parse_known_args(argv or ["--help"])
            if "settings" in arguments:
                arguments.settings = others
            elif others:
                parser.error(f"unrecognized arguments: {' '.join(others)}")
            return int(arguments.run(arguments))
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            print("stopped", file=sys.stderr)
            return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
