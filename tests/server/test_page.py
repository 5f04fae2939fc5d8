"""The page in a real browser: by clicks, by the keyboard alone, on a phone."""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.test_processes import ask, served

api = pytest.importorskip("playwright.sync_api")
CHROMIUM = "/usr/bin/chromium"
OPTIONS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync",
           "--disable-component-update"]  # fmt: skip
pytestmark = [
    pytest.mark.long, pytest.mark.usefixtures("alone", "quick"),
    pytest.mark.skipif(not Path(CHROMIUM).exists(), reason="no browser here: apt-get install chromium"),
]  # fmt: skip


@pytest.fixture
def browser() -> Iterator[Any]:
    with api.sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)


def opened(browser: Any, address: str, **options: Any) -> tuple[Any, list[str]]:
    """The page when it shows a list, and what has gone wrong or elsewhere so far."""
    page, wrong = browser.new_page(**options), list[str]()
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text))
    page.on(
        "request", lambda request: None if request.url.startswith((address, "data:")) else wrong.append(request.url)
    )
    page.goto(f"{address}/")
    page.wait_for_selector("#list li")
    return page, wrong


def shown(page: Any, name: str) -> list[str]:
    """The items of a list of the page."""
    return [re.sub(r"\s.*", "", text.strip()) for text in page.locator(f"#{name} > li .name").all_inner_texts()]


def wait_for(page: Any, name: str, expected: list[str]) -> None:
    """Return when a list of the page has these items: the answer is on its way."""
    until = time.monotonic() + 10
    while (items := shown(page, name)) != expected:
        assert time.monotonic() < until, (items, expected)
        page.wait_for_timeout(20)


def listed(address: str, items: list[str], **options: Any) -> list[str]:
    body = {"queries": [{"items": [int(item) for item in items]}], "k": 10, **options}
    return [str(one["item"]) for one in ask(address, "/v1/recommend", body)["lists"][0]["items"]]


def test_by_clicks(shop: Path, browser: Any) -> None:
    with served(shop) as (address, _):
        page, wrong = opened(browser, address)
        wait_for(page, "list", listed(address, []))
        for query in ("7", "12", "3"):
            page.fill("#search", query)
            page.click(f"#found li:has-text('{query}') >> nth=0")
            page.wait_for_selector("#found", state="hidden")
        history = shown(page, "history")
        assert len(history) == 3
        wait_for(page, "list", listed(address, history))
        page.click("#history li:nth-child(3) button:has-text('↑')")
        history = [history[0], history[2], history[1]]
        wait_for(page, "history", history)
        wait_for(page, "list", listed(address, history))
        why = page.locator("#list > li:first-child button:has-text('why?')")
        best = shown(page, "list")[0]
        why.click()
        page.wait_for_selector(".why li")
        options = {"k": 1, "allow": [int(best)], "seen": "keep"}
        queries = [history, *(history[:place] + history[place + 1 :] for place in range(3))]
        body = {"queries": [{"items": [int(item) for item in query]} for query in queries], **options}
        whole, *without = [found["items"][0]["score"] for found in ask(address, "/v1/recommend", body)["lists"]]
        changes = dict(zip(history, (score - whole for score in without), strict=True))
        for row in page.locator(".why li").all():
            name, change = row.locator(".name").inner_text(), row.locator(".score").inner_text()
            assert float(change.replace("−", "-")) == pytest.approx(changes[name], abs=0.006)
        page.click("#history li:nth-child(1) button:has-text('×')")
        wait_for(page, "history", history[1:])
        page.click("#list > li:first-child button:has-text('+')")
        wait_for(page, "history", [*history[1:], listed(address, history[1:])[0]])
        page.click("#list > li:first-child button:has-text('≈')")
        page.wait_for_selector("#similar li")
        page.fill("#where", "train_count > 9")
        page.press("#where", "Enter")
        page.locator("#where").blur()
        wait_for(page, "list", listed(address, shown(page, "history"), where="train_count > 9"))
        page.fill("#where", "no_column = 1")
        page.locator("#where").blur()
        page.wait_for_selector("#problem:not([hidden])")
        assert "no_column" in page.inner_text("#problem")
        assert [one for one in wrong if "422" not in one] == []  # which the browser writes down


def test_the_history_of_a_user_and_what_came_next(shop: Path, browser: Any) -> None:
    with served(shop) as (address, _):
        page, wrong = opened(browser, address, viewport={"width": 390, "height": 800})
        whole = [str(one["item"]) for one in ask(address, "/v1/users/u1")["items"]]
        page.fill("#user", "u1")
        page.press("#user", "Enter")
        page.wait_for_selector("#history li")
        wait_for(page, "history", whole)
        page.fill("#cut", "2")
        page.locator("#cut").blur()
        page.wait_for_selector("#came li")
        wait_for(page, "history", whole[:-2])
        wait_for(page, "came", whole[-2:])
        wait_for(page, "list", listed(address, whole[:-2]))
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")  # nothing is cut off on a phone
        page.fill("#user", "nobody")
        page.press("#user", "Enter")
        page.wait_for_selector("#problem:not([hidden])")
        assert [one for one in wrong if "404" not in one] == []


def test_by_the_keyboard_alone(shop: Path, browser: Any) -> None:
    with served(shop) as (address, _):
        page, wrong = opened(browser, address, color_scheme="dark")
        page.keyboard.press("Tab")
        while page.evaluate("document.activeElement.id") != "search":
            page.keyboard.press("Tab")
        for query in ("7", "12"):
            page.keyboard.type(query)
            page.wait_for_selector("#found li")
            page.keyboard.press("ArrowDown")
            page.keyboard.press("Enter")
            page.wait_for_selector("#found", state="hidden")
        history = shown(page, "history")
        while page.evaluate("document.activeElement.dataset.key") != "down":
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        wait_for(page, "history", history[::-1])
        wait_for(page, "list", listed(address, history[::-1]))
        while page.evaluate("document.activeElement.dataset.key") != "delete":
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        wait_for(page, "history", shown(page, "history")[-1:])
        assert wrong == []


def test_the_key_is_asked_for(shop: Path, browser: Any, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("s3cret\n")
    with served(shop, f"--api-key-file={tmp_path / 'key'}") as (address, _):
        page = browser.new_page()
        page.goto(f"{address}/")
        page.wait_for_selector("#login:not([hidden])")
        page.fill("#key", "s3cret")
        page.press("#key", "Enter")
        page.wait_for_selector("#list li")
        assert "X-API-Key" in page.inner_text("#curl")
        assert "s3cret" not in page.inner_text("#curl")
