"""Takes pictures of every page, wide and narrow, light and dark: python -m tests.web.screenshots ADDRESS DIRECTORY."""

from __future__ import annotations

import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.web.chromium import ARGUMENTS, PATH

PAGES = {
    "overview": "/",
    "queues": "/queues",
    "jobs": "/jobs?q=state:failed,dead,executing",
    "groups": "/groups",
    "dead": "/dead",
    "tasks": "/tasks",
    "workers": "/workers",
    "schedules": "/schedules",
    "limits": "/limits",
    "audit": "/audit",
    "health": "/health",
}


def take(address: str, directory: Path) -> None:
    """Write <page>-<width>-<scheme>.png for each page of the server at this address."""
    directory.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=PATH, args=ARGUMENTS)
        for width in (1280, 390):
            for scheme in ("light", "dark"):
                page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
                first = page.request.get(f"{address}/jobs?q=state:dead").text()
                pages = dict(PAGES)
                if "/jobs/" in first:
                    pages["job"] = "/jobs/" + first.split("/jobs/", 1)[1].split('"', 1)[0]
                groups = page.request.get(f"{address}/groups").text()
                if "/group?id=" in groups:
                    pages["group"] = "/group?id=" + groups.split("/group?id=", 1)[1].split('"', 1)[0]
                for name, path in pages.items():
                    page.goto(address + path)
                    page.wait_for_timeout(400)
                    page.screenshot(path=directory / f"{name}-{width}-{scheme}.png", full_page=True)
                page.close()
        browser.close()


if __name__ == "__main__":
    take(sys.argv[1].rstrip("/"), Path(sys.argv[2]))
