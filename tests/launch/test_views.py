"""What a training looks like in a cell, and as lines."""

import sys
from types import ModuleType
from typing import Any

import pytest

from bert4rec.launch.views import CellView, LogView, is_notebook, make_view


class Handle:
    """One output of a cell."""

    def __init__(self, page: str) -> None:
        self.pages = [page]

    def update(self, page: str) -> None:
        self.pages.append(page)


@pytest.fixture
def handles(monkeypatch: pytest.MonkeyPatch) -> list[Handle]:
    """Of the outputs of a notebook: this process is its kernel."""
    found: list[Handle] = []

    def display(page: str, *, display_id: bool) -> Handle:
        assert display_id
        found.append(Handle(page))
        return found[-1]

    package, of_display = ModuleType("IPython"), ModuleType("IPython.display")
    package.get_ipython = type("ZMQInteractiveShell", (), {})  # type: ignore[attr-defined]
    of_display.HTML, of_display.display = str, display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", of_display)
    return found


def test_a_cell_has_one_output_that_changes(handles: list[Handle]) -> None:
    assert is_notebook()
    view = make_view()
    assert isinstance(view, CellView)
    view.line("epoch 2  <b>")
    view.line("")
    view.progress(1, 4, "loss 1.5")
    (handle,) = handles
    assert len(handle.pages) == 3
    assert handle.pages[-1] == (
        '<progress value="1" max="4" style="width: 20em"></progress> 25 % loss 1.5'
        '<pre style="white-space: pre-wrap">epoch 2  &lt;b&gt;</pre>'
    )
    for number in range(20):
        view.line(f"line {number}")
    assert handle.pages[-1].endswith("line 18\nline 19</pre>")
    assert "line 7" not in handle.pages[-1]


def test_elsewhere_it_is_logged(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    shell: Any = ModuleType("IPython")
    shell.get_ipython = lambda: None
    monkeypatch.setitem(sys.modules, "IPython", shell)
    assert not is_notebook()
    view = make_view()
    assert isinstance(view, LogView)
    view.line("run folder: x")
    view.progress(1000, 2000, "loss 1.5")
    assert capsys.readouterr().out == "run folder: x\n1,000/2,000  loss 1.5\n"
