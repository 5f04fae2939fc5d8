"""`bert4rec COMMAND …`, or `python -m bert4rec COMMAND …`: run the package from a terminal."""

import argparse
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from bert4rec.runtime.startup import exit_for_missing, require_python

try:
    require_python()
    from bert4rec import __version__
    from bert4rec.runtime.console import visible
    from bert4rec.runtime.errors import SettingsError, UserError, did_you_mean
    from bert4rec.runtime.signals import ending_on_broken_pipe, log_interrupted, stop_with_launchers
except ModuleNotFoundError as error:
    exit_for_missing(error)

# Command → its help; the module of that name in bert4rec/commands/ is imported only when it is chosen.
FIRST_HOUR = {
    "prepare": "a log of interactions → a dataset: bert4rec prepare log.csv",
    "train": "a dataset → a trained model with its report: bert4rec train data/log",
    "report": "what the model is worth: bert4rec report",
    "recommend": "the next items of a user: bert4rec recommend runs/log --user c-17",
}
COMMANDS = FIRST_HOUR | {
    "similar": "the items most similar to an item",
    "evaluate": "measure a trained model again, on its own or another dataset",
    "compare": "runs side by side: settings, metrics, paired differences, cost",
    "export": "a trained model for other programs: safetensors, item vectors, torch.export, ONNX",
    "serve": "answer requests over HTTP, with a page to try it",
    "update": "a model that stays current: made of a run, updated every night with new rows",
    "models": "the versions of such a model: list, show, go back, remove old ones",
    "extend": "a new run for a dataset with new items, which keeps what a run has learnt",
    "describe": "what a dataset holds, and what stands out in its log",
    "check": "verify every file, count and split of a dataset",
    "plan": "what a training needs on any cluster, and whether it fits; with --rows, what a preparation needs",
    "doctor": "whether this machine can train: packages, devices, network, memory, plan",
}
OTHER_NAMES = {"prepare": "preprocess preprocessing", "train": "fit", "recommend": "predict"}  # in other programs
OTHER_OPTIONS = {"--top": "--k --n --topk --top-k --limit", "--output": "--out", "--histories": "--history --input"}
OUTLIVES_READERS = ("train",)  # commands that do not end when their output pipe is closed


class Parser(argparse.ArgumentParser):
    """A parser that accepts only whole option names, and raises `SettingsError` instead of printing its usage."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def print_help(self, file: Any = None) -> None:
        """Print the help with `print`, because argparse hides a broken pipe."""
        with ending_on_broken_pipe():
            print(self.format_help(), end="", file=file)

    def error(self, message: str) -> NoReturn:
        """Raise `SettingsError` with `message`."""
        raise SettingsError(f"{message.removeprefix('argument ')}; {self.prog} --help")

    def refuse(self, word: str) -> NoReturn:
        """Raise `SettingsError` for an unknown option or an unexpected argument."""
        name = word.partition("=")[0]
        if not name.startswith("-"):
            self.error(f'unexpected argument "{word}"')
        raise SettingsError(f"{name}: no such option{self._suggestion(name) or ';'} {self.prog} --help")

    def refuse_misspelt(self, words: Sequence[str]) -> None:
        """Raise `SettingsError` for the first of `words` that is no option or setting, but similar to an option."""
        from bert4rec.config.help import SHORT_OPTIONS

        short = self.get_default("short") or SHORT_OPTIONS
        for word in words:
            name = word.partition("=")[0]
            is_setting = "." in name or name.removeprefix("--") in (*short, "config")
            is_known = is_setting or name in self._option_string_actions
            if name.startswith("--") and not is_known and self._suggestion(name):
                self.refuse(word)

    def _suggestion(self, name: str) -> str:
        from bert4rec.config.help import nearest_values

        return did_you_mean(nearest_values(name, [*self._option_string_actions], OTHER_OPTIONS))

    def refuse_named(self, words: Sequence[str]) -> None:
        """Raise `SettingsError` for the first of `words` that is an option with the name of a positional argument."""
        for action in self._get_positional_actions():
            for name in {action.dest, str(action.metavar).lower()} - {*self._option_string_actions}:
                if any(word.partition("=")[0] == f"--{name}" for word in words):
                    order = " ".join(f"{other.metavar}" for other in self._get_positional_actions())
                    raise SettingsError(f"--{name}: write the {action.metavar} without a name: {self.prog} {order}")


class HelpAll(argparse.Action):
    """Print the help with all settings, and end the process."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Print the help."""
        from bert4rec.config.help import settings_help

        parser.formatter_class, parser.epilog = argparse.RawDescriptionHelpFormatter, settings_help()
        parser.print_help()
        parser.exit()


def main(argv: Sequence[str] | None = None, prog: str = "") -> int:
    """Run a command line (default: that of this process), and return its exit status; `prog` is its name in help.

    The status is 0 for finished, 1 for a plan that does not fit or an interrupted run, 2 for bad arguments or input,
    130 for stopped. A run that a signal has ended has the status of that signal.
    """
    name, *words = (sys.argv[1:] if argv is None else argv) or ["--help"]
    stop_with_launchers()
    with nullcontext() if name in OUTLIVES_READERS else ending_on_broken_pipe():
        try:
            return _run(name, words, prog or f"{_program()} {name}")
        except ModuleNotFoundError as error:
            exit_for_missing(error)
        except UserError as error:
            print(f"error: {visible(str(error), keep='')}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            log_interrupted("stopped")
            return 130


def _run(name: str, words: Sequence[str], prog: str) -> int:
    if name not in COMMANDS:
        _answer(name)
    command = import_module(f"bert4rec.commands.{name}")
    parser = Parser(prog=prog)
    parser.set_defaults(prog=prog)
    command.add_arguments(parser)
    takes_settings = parser.get_default("settings") is not None
    if takes_settings:
        parser.add_argument("--help-all", action=HelpAll, nargs=0, help="show all settings and exit")
    else:
        parser.refuse_named(words)
    parser.refuse_misspelt(words)  # argparse would say first which option is missing
    arguments, unknown = parser.parse_known_args(words)
    if takes_settings:
        arguments.settings = unknown
    elif unknown:
        parser.refuse(unknown[0])
    return int(command.run(arguments))


def _answer(word: str) -> NoReturn:
    """Print the help or the version, or suggest the nearest command."""
    lines = [f"  {name:<10} {summary}" for name, summary in COMMANDS.items()]
    lines = ["the first hour:", *lines[: len(FIRST_HOUR)], "", "then:", *lines[len(FIRST_HOUR) :]]
    parser = Parser(
        prog=_program(), usage="%(prog)s COMMAND …", formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join([*lines, "", f"{_program()} COMMAND --help: the options of a command"]),
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"bert4rec {__version__}")
    if word.startswith("-"):
        parser.parse_known_args([word])  # ends the process for --help and --version
        parser.refuse(word)
    from bert4rec.config.help import nearest_values

    nearest = did_you_mean(nearest_values(word, [*COMMANDS], OTHER_NAMES))
    raise SettingsError(f"{word}: no such command{nearest or ';'} {parser.prog} --help")


def _program() -> str:
    """Return the name under which this process was started."""
    return "python -m bert4rec" if Path(sys.argv[0]).parts[-2:] == ("bert4rec", "__main__.py") else "bert4rec"


if __name__ == "__main__":
    sys.exit(main())
