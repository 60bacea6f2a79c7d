"""Fixtures of the tests in a browser: Chromium, and a page whose console must stay silent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Dialog, Page, Request, sync_playwright

from tests.web.chromium import ARGUMENTS, PATH
from tests.web.conftest import Serve

in_browser = [
    pytest.mark.long,
    # Chromium is a program of the system, which no package of PyPI brings; .ci/run installs it where it can.
    pytest.mark.skipif(PATH is None, reason="no Chromium: apt-get install chromium"),
    pytest.mark.timeout(300),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=PATH, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def said() -> Iterator[list[str]]:
    """What the console said, and what failed to load, on all pages of the test: at its end, nothing.

    A policy that was broken is reported there too.
    """
    found: list[str] = []
    yield found
    assert found == []


def listen(context: BrowserContext, said: list[str]) -> None:
    """Write down what goes wrong on the pages of a context."""
    context.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    context.on("weberror", lambda error: said.append(str(error.error)))
    context.on("dialog", lambda dialog: hear(dialog, said))
    context.on("requestfailed", lambda request: said.extend(failed(request)))


def hear(dialog: Dialog, said: list[str]) -> None:
    said.append(f"a dialog: {dialog.message}")
    dialog.dismiss()


def failed(request: Request) -> list[str]:
    # A page that is left ends what it was asking for.
    return [] if request.failure == "net::ERR_ABORTED" else [f"{request.url}: {request.failure}"]


@pytest.fixture
def page(browser: Browser, serve: Serve, said: list[str]) -> Iterator[Page]:
    context = browser.new_context(base_url=serve(), viewport={"width": 1280, "height": 900})
    listen(context, said)
    page = context.new_page()
    page.set_default_timeout(20_000)
    yield page
    context.close()
