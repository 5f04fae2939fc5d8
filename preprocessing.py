"""Raw interactions → dataset folder: `python preprocessing.py [--config=FILE] [--download] [--table.key=value …]`."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from bert4rec.runtime.installation import exit_for_missing, require_python

try:
    require_python()
    from bert4rec.config.load import load_and_recognize, parse_command_line, usage, with_changes
    from bert4rec.config.tables import Config
    from bert4rec.prepare.pipeline import prepare
    from bert4rec.prepare.read.download import ARCHIVES, fetch_movielens
    from bert4rec.prepare.read.synthetic import GENERATORS
    from bert4rec.runtime.broken_pipe import ending_on_broken_pipe
    from bert4rec.runtime.console import close_bars, log_to_terminal
    from bert4rec.runtime.errors import UserError
except ModuleNotFoundError as error:
    exit_for_missing(error)

TRAIN = ["torchx", "run", "-s", "local_cwd", "dist.ddp", "-j", "1x2", "--script", "train.py"]
DOWNLOAD = "--download"
DOWNLOADED = "ml-1m"  # where no other set is named
REPLACE = "--data.replace"
RAW = Path("data/raw")  # where downloads go


def main(argv: Sequence[str]) -> int:
    """Run the command line `argv` and return the exit status: 0, or 2 for bad settings or input, 130 when stopped."""
    with ending_on_broken_pipe():
        return _run(argv)


def _run(argv: Sequence[str]) -> int:
    if "--help" in argv or "-h" in argv:
        sets = ", ".join(ARCHIVES)
        print(usage("preprocessing.py"))
        print(f"\n{DOWNLOAD}  fetch the set data.source ({sets}; default: {DOWNLOADED}) into {RAW}/ first")
        return 0
    log_to_terminal()
    settings = [word for word in argv if word != DOWNLOAD]
    try:
        config, recognized = load_and_recognize(*parse_command_line(settings))
        if DOWNLOAD in argv:
            config, settings = _download(config, settings)
        elif recognized:
            print(f"data.source = {recognized.source}: {recognized.reason}", flush=True)
            settings.append(f"--data.source={recognized.source}")
        prepare(config)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        close_bars()
        print("stopped: no dataset was written; a download continues where it stopped", file=sys.stderr)
        return 130
    settings = _for_training(settings)
    print(f"next: {shlex.join([*TRAIN, '--', *settings] if settings else TRAIN)}")
    return 0


def _for_training(settings: list[str]) -> list[str]:
    """Without the word that a dataset may be replaced: a run's `config.toml` should not say it again."""
    words, kept = iter(settings), []
    for word in words:
        if word == REPLACE:
            next(words, None)  # its value
        elif not word.startswith(f"{REPLACE}="):
            kept.append(word)
    return kept


def _download(config: Config, settings: list[str]) -> tuple[Config, list[str]]:
    """The settings with the path of the MovieLens set, which lies there then."""
    if config.data.source in GENERATORS:
        config = with_changes(config, "data", {"source": DOWNLOADED})
        settings = [*settings, f"--data.source={DOWNLOADED}"]
    path = fetch_movielens(config.data.source, RAW)
    return with_changes(config, "data", {"path": str(path)}), settings


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
