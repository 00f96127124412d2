"""A real browser for the pages of a report, where there is one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

__all__ = ["Opened", "axe_violations", "browser", "opened"]

NAMES = ("chromium", "chromium-browser", "google-chrome")
QUIET = (  # a browser that minds the page alone
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def _chromium() -> str:
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"no Chromium here (looked for {', '.join(NAMES)}, and in $CHROMIUM)")
    return found


def _axe() -> str:
    """The script of axe-core: $AXE_CORE, or where .ci/run puts it."""
    default = Path(__file__).parents[4] / "build/axe/node_modules/axe-core/axe.min.js"
    path = Path(os.environ.get("AXE_CORE") or default)
    if not path.is_file():
        pytest.skip(f"axe-core is not installed (looked for {path}, and in $AXE_CORE)")
    return path.read_text(encoding="utf-8")


def axe_violations(opened: Opened) -> list[str]:
    """What axe-core finds on a page, which has to be opened with `scripts`."""
    opened.evaluate(_axe())
    found = opened.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    return [f"{v['id']}: {node['html'][:200]}" for v in found["violations"] for node in v["nodes"]]


@dataclass
class Opened:
    """A page in a browser, with everything it said and asked for."""

    page: Any
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def texts(self, selector: str) -> list[str]:
        return self.page.locator(selector).all_inner_texts()

    def evaluate(self, script: str) -> Any:
        return self.page.evaluate(script)

    def wait_for_count(self, selector: str, count: int) -> None:
        """Wait until a selector matches `count` elements: a browser reports a new fragment of the
        address (hashchange) after the click has returned."""
        sync_api = pytest.importorskip("playwright.sync_api")
        sync_api.expect(self.page.locator(selector)).to_have_count(count)


@contextmanager
def browser(*more: str) -> Iterator[Any]:
    """A browser with more options; skips the test, with the reason, where there is none."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = _chromium()
    with sync_api.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=chromium, args=[*QUIET, *more])
        try:
            yield found
        finally:
            found.close()


@contextmanager
def opened(
    browser: Any,
    file: Path,
    width: int = 1280,
    height: int = 900,
    scheme: str = "light",
    scripts: bool = False,
) -> Iterator[Opened]:
    """Opens a page from disk, in a fresh profile; `scripts` lets a test add some to it."""
    page = browser.new_page(
        viewport={"width": width, "height": height}, color_scheme=scheme, bypass_csp=scripts
    )
    found = Opened(page)
    page.on("console", lambda message: found.said.append(message.text))
    page.on("pageerror", lambda error: found.said.append(str(error)))
    page.on("request", lambda request: found.asked.append(request.url))
    page.goto(file.resolve().as_uri())
    try:
        yield found
    finally:
        page.close()
