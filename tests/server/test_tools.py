"""An assistant uses the tools, over HTTP and over standard input and output."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from bert4rec import load
from tests.fixture_types import Patch
from tests.server.conftest import Serve

pytest.importorskip("mcp")
pytestmark = pytest.mark.usefixtures("alone", "quick")


async def use(where: Any) -> tuple[list[str], list[Any]]:
    """The names of the tools, and what some calls answer: content or the text of an error."""
    from mcp.client import Client

    answers = list[Any]()
    async with Client(where) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        for name, arguments in (
            ("search_items", {"query": "2", "limit": 3}), ("recommend", {"items": [1, 2], "k": 3}),
            ("recommend", {"items": [], "k": 3}), ("similar_items", {"item": 1, "k": 3}), ("recommend", {}),
            ("similar_items", {"item": 999}), ("recommend", {"items": [1], "where": "("}),
        ):  # fmt: skip
            answer = await client.call_tool(name, arguments)
            answers.append(answer.content[0].text if answer.is_error else answer.structured_content)
    return names, answers


def check(shop: Path, names: list[str], answers: list[Any]) -> None:
    model = load(shop)
    assert names == ["recommend", "similar_items", "search_items"]
    found, listed, popular, similar, *wrong = answers
    assert all("2" in str(one["item"]) for one in found["items"])
    expected = model.recommend([[1, 2], []], 3)
    assert [one["item"] for one in listed["items"]] == [one.item for one in expected[0]]
    assert listed["note"] == ""
    assert [one["item"] for one in popular["items"]] == [one.item for one in expected[1]]
    assert popular["note"]
    assert [one["item"] for one in similar["items"]] == [one.item for one in model.similar([1], 3)[0]]
    assert all(isinstance(one, str) and "\n" not in one for one in wrong)


def test_tools_in_this_process(shop: Path, serve: Serve, monkeypatch: Patch) -> None:
    from bert4rec.server.tools import make_tools

    client = serve(shop, with_tools=True)
    parts = client.app.app.state.parts  # type: ignore[attr-defined]
    check(shop, *asyncio.run(use(make_tools(lambda: parts))))
    headers = {"Accept": "application/json, text/event-stream"}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    answer = client.post("/mcp", json=body, headers=headers)
    assert answer.status_code in (200, 400)  # by the version of the protocol that a client names
    assert serve(shop).post("/mcp", json=body, headers=headers).status_code == 404


@pytest.mark.long
def test_tools_over_standard_input_and_output(shop: Path) -> None:
    from mcp.client.stdio import StdioServerParameters, stdio_client

    given = ["-m", "bert4rec", "serve", str(shop), "--mcp=stdio"]
    check(shop, *asyncio.run(use(stdio_client(StdioServerParameters(command=sys.executable, args=given)))))
