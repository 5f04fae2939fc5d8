"""A real terminal for a program: what it writes there, and the keys that are pressed."""

import fcntl
import os
import pty
import signal
import struct
import termios
from collections.abc import Sequence
from pathlib import Path

CTRL_C = b"\x03"


def on_terminal(
    command: Sequence[str], *, folder: Path, interrupt_after: str = "", keys: bytes = CTRL_C, columns: int = 80
) -> tuple[str, int]:
    """What `command` writes in `folder` on a terminal of so many `columns`, and its exit status.

    The `keys` (default: Ctrl-C) are pressed as soon as the text `interrupt_after` has come.
    """
    child, terminal = pty.fork()
    if not child:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # which tests in the background ignore
        os.chdir(folder)
        os.environ.pop("COLUMNS", None)
        os.execvp(command[0], command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    written, is_pressed = b"", not interrupt_after
    try:
        while chunk := os.read(terminal, 65536):
            written += chunk
            if not is_pressed and interrupt_after in written.decode(errors="ignore"):
                is_pressed = os.write(terminal, keys) == len(keys)
    except OSError:  # the end, on Linux
        pass
    return written.decode(), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def screen(written: str) -> list[str]:
    """The lines that stand on a wide screen in the end."""
    lines = []
    for line in written.split("\r\n"):
        shown = ""
        for part in line.split("\r"):
            text = part.removeprefix("\x1b[K")
            shown = text if part != text else text + shown[len(text) :]
        lines.append(shown.rstrip())
    return lines
