"""Takes the pictures of the dashboard that the README shows, as a script: they lie in
infra/dashboard. The batches, workers and keys in them are made up.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

TESTS = Path(__file__).parents[1]
for folder in ("api", "integration", "services", "dashboard"):
    sys.path.insert(0, str(TESTS / folder))

from browser import NARROW, chromium, window  # noqa: E402
from house import House  # noqa: E402
from scenery import TENANT, Scenery, beat_all, furnish  # noqa: E402

from gristmill.api.access import Scope  # noqa: E402

if TYPE_CHECKING:
    from playwright.sync_api import Browser

FOLDER = TESTS.parent / "infra" / "dashboard"
MAX_BYTES = 150_000


def take_all(browser: Browser, house: House, scenery: Scenery, folder: Path) -> list[Path]:
    """Light, dark and narrow; the paths of the pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    beat_all(house)
    taken = []
    for scheme in ("light", "dark"):
        pages = {"batches": "/batches", "batch": scenery.running, "fleet": "/fleet"}
        size = {"width": 1180, "height": 720}
        taken += _take(browser, house, pages, folder, scheme, size, "")
    narrow = {"batches": "/batches", "batch": scenery.running}
    taken += _take(browser, house, narrow, folder, "dark", NARROW, "-narrow")
    return taken


def _take(
    browser: Browser,
    house: House,
    pages: dict[str, str],
    folder: Path,
    scheme: str,
    size: dict[str, int],
    suffix: str,
) -> list[Path]:
    taken = []
    options = {"color_scheme": scheme, "viewport": size, "reduced_motion": "reduce"}
    with window(browser, house, key=house.key(TENANT, tuple(Scope)), **options) as opened:
        for name, path in pages.items():
            page = opened.open(path)
            page.wait_for_load_state("networkidle")
            taken.append(folder / f"{name}-{scheme}{suffix}.png")
            page.screenshot(path=taken[-1])
    return taken


if __name__ == "__main__":
    with House.opened(webhook_allowed_networks="127.0.0.0/8") as house, chromium() as browser:
        for path in take_all(browser, house, furnish(house), FOLDER):
            print(path.relative_to(TESTS.parent), path.stat().st_size)
