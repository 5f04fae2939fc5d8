"""Start the real scripts as processes: alone, by torchrun, by torchx."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bert4rec.config.tables import Config

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
ALONE = [sys.executable, "train.py"]
TORCHRUN = [str(BIN / "torchrun"), "--standalone", "--nproc_per_node=2", "train.py"]
TORCHX = [str(BIN / "torchx"), "run", "-s", "local_cwd", "dist.ddp", "-j", "1x2", "--script", "train.py", "--"]


def environment(**variables: str) -> dict[str, str]:
    """Return the variables of a process, without GPUs: the figures of the tests are those of CPUs."""
    return os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}", "CUDA_VISIBLE_DEVICES": ""} | variables


def start(command: Sequence[str], folder: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        command, cwd=folder, env=environment(**variables), capture_output=True, text=True, timeout=1100, check=False
    )


def settings_file(config: Config, folder: Path) -> str:
    """Write the settings into `folder` and return the option that names the file."""
    file = folder / "settings.toml"
    file.write_text(config.to_toml())
    return f"--config={file}"


def report_of(folder: Path) -> dict[str, Any]:
    """Return what two equal trainings have in common."""
    report = json.loads((folder / "report.json").read_text())
    return {name: report[name] for name in ("validation", "test")} | {
        name: report["training"][name] for name in ("epochs", "steps", "best_epoch", "stopped_by")
    }


class Launched:
    """A running command, with its lines and the times at which they came."""

    def __init__(
        self, command: Sequence[str], popen: Callable[..., "subprocess.Popen[str]"] | None = None, **variables: str
    ) -> None:
        if popen is None:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=environment(**variables), text=True, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        else:
            self.process = popen(command, cwd=ROOT, env=environment(**variables))
        self.lines: list[tuple[float, str]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend((time.time(), line.rstrip("\n")) for line in self.process.stdout)

    @property
    def output(self) -> str:
        """Return all lines so far."""
        return "".join(f"{line}\n" for _, line in list(self.lines))

    @property
    def errors(self) -> list[str]:
        """Return the program's own error lines so far; torchrun repeats them in its summary."""
        return [line for _, line in list(self.lines) if line.startswith("error: ")]

    def wait_for(self, words: str, seconds: float = 900.0) -> float:
        """Return when a line with these words came."""
        return wait_for_either([self], words, seconds)

    def ranks(self) -> list[int]:
        """Return the training processes of a torchrun."""
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        children = [pid for task in tasks for pid in (task / "children").read_text().split()]
        return [int(pid) for pid in children if b"train.py" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    def end(self, seconds: float = 180.0) -> int:
        """Return the exit status; terminate a process that is still running after so many `seconds`."""
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.terminate()
            raise AssertionError(f"still running after {seconds:g} s:\n{self.output}") from None
        self._reader.join()
        return status


def wait_for_either(launched: Sequence[Launched], words: str, seconds: float = 900.0) -> float:
    """Return when one of them printed a line with these words."""
    deadline = time.time() + seconds
    while time.time() < deadline:
        is_last = all(each.process.poll() is not None and not each._reader.is_alive() for each in launched)
        if times := [when for each in launched for when, line in list(each.lines) if words in line]:
            return times[0]
        if is_last:
            break
        time.sleep(0.02)
    raise AssertionError(f"no line with {words!r}:\n" + "\n".join(each.output for each in launched))
