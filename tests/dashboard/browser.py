"""Chromium without a screen: who opens the pages, logs in, and asks axe what is wrong with them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from house import House

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

AXE = (Path(__file__).parent / "axe" / "axe.min.js").read_text(encoding="utf-8")
NAMES = ("chromium", "chromium-browser", "google-chrome")
NARROW = {"width": 320, "height": 640}
WIDE = {"width": 1200, "height": 800}


@contextmanager
def chromium() -> Iterator[Browser]:
    """Skips the test where there is none (apt-get install chromium)."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright (pip install)")
    with api.sync_playwright() as playwright:
        # Without a sandbox, since tests may run as root, where it cannot be had.
        options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=program, args=options)
        try:
            yield browser
        finally:
            browser.close()


class Window:
    """One window. `complaints` are what the console says, of refused scripts and styles too."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.context = context
        self.page: Page = context.new_page()
        self.complaints: list[str] = []
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self._url = f"{url}/dashboard"

    def _hear(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def open(self, path: str) -> Page:
        self.page.goto(f"{self._url}{path}")
        return self.page

    def log_in(self, key: str) -> Page:
        page = self.open("/login")
        page.get_by_label("API key").fill(key)
        page.get_by_role("button", name="Log in").click()
        page.wait_for_url("**/batches")
        return page

    def violations(self) -> list[str]:
        """What axe finds on the page as it is, in words."""
        self.page.evaluate(AXE)
        found = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{one['id']}: {one['help']}: {node['html'][:200]} {node['failureSummary']}"
            for one in found["violations"]
            for node in one["nodes"]
        ]

    def small_targets(self) -> list[str]:
        """What a finger misses: less than 24 pixels, and no word of a sentence (WCAG 2.5.8)."""
        found: list[str] = self.page.evaluate(
            """[...document.querySelectorAll("a, button, select, summary, label > input")]
                .map(one => one.closest("label") ?? one)
                .filter(one => one.checkVisibility() && getComputedStyle(one).display != "inline")
                .map(one => [one.getBoundingClientRect(), one.textContent.trim()])
                .filter(([box]) => box.width < 24 || box.height < 24)
                .map(([box, text]) => `small: ${text} ${box.width} x ${box.height}`)"""
        )
        return found

    def overflow(self) -> int:
        """By how many pixels the page is wider than the window."""
        width: int = self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        return width


@contextmanager
def window(
    browser: Browser, house: House, *, key: str | None = None, **options: Any
) -> Iterator[Window]:
    """Logged in, if a key is given."""
    options.setdefault("viewport", WIDE)
    context = browser.new_context(**options)
    context.set_default_timeout(60_000)
    try:
        opened = Window(context, house.service.url)
        if key is not None:
            opened.log_in(key)
        yield opened
    finally:
        context.close()
