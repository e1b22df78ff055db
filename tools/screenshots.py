"""Pictures of the console for people who read about it: a seeded relay and home, a browser, and small PNG files.

python tools/screenshots.py                  the few of docs/images
python tools/screenshots.py DIRECTORY        every page there is, to look at
"""

import sys
import tempfile
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.console.browser import find_browser  # noqa: E402 - behind the path
from tests.console.town import Cast, Town, Visitor, link, town  # noqa: E402 - likewise

DESK, PHONE = (1180, 760), (390, 780)
KEPT = frozenset(
    {
        *("relay-overview", "relay-message", "daemon-overview-dark"),
        *("daemon-dead-letters", "daemon-conflict", "relay-overview-phone"),
    }
)
"""What the documentation shows."""

CAST = Cast(
    ben="ben",
    first_id="invoice-2026-118",
    session="0198c7d2-session",
    note="packing list",
    text="Boat leaves at nine.\nBring the charts.",
)

RELAY_PAGES = {
    "overview": "/",
    "messages": "/messages",
    "queues": "/queues",
    "mesh": "",
    "history": "/history",
    "feed": "/feed",
    "audit": "/audit",
}
DAEMON_PAGES = {
    "overview": "/",
    "outbox": "/outbox",
    "dead-letters": "/outbox?show=dead",
    "inbox": "/inbox",
    "trace": "/trace?id=invoice-2026-118",
    "documents": "/documents",
    "conflict": "",
    "agents": "/agents",
    "health": "/health",
}


def main() -> None:
    is_all = len(sys.argv) > 1
    target = Path(sys.argv[1]) if is_all else ROOT / "docs" / "images"
    target.mkdir(parents=True, exist_ok=True)
    executable = find_browser()
    if executable is None:
        sys.exit("no Chromium on this machine: install one, or name it in HOLDFAST_BROWSER")
    with (
        tempfile.TemporaryDirectory(prefix="hf-") as directory,
        town(Path(directory), CAST) as seeded,
        sync_playwright() as driver,
    ):
        browser = driver.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        _relay(browser, seeded, target)
        _daemon(browser, seeded, target)
        browser.close()
    for made in () if is_all else target.glob("*.png"):
        if made.stem not in KEPT:
            made.unlink()


def _relay(browser: Browser, seeded: Town, target: Path) -> None:
    pages = dict(RELAY_PAGES)
    visitor = Visitor(seeded.relay_url).enter(link("--data", seeded.relay.data))
    listed = visitor.ask("GET", "/meshes").body.decode()
    pages["mesh"] = "/meshes/" + listed.partition('href="/console/meshes/')[2].partition('"')[0]
    found = visitor.ask("GET", f"/messages?q={quote(CAST.first_id)}").headers["location"]
    pages["message"] = found.removeprefix("/console")
    _shoot(browser, link("--data", seeded.relay.data), "relay", pages, target)


def _daemon(browser: Browser, seeded: Town, target: Path) -> None:
    pages = dict(DAEMON_PAGES)
    opened = link(home=seeded.ann.home)
    visitor = Visitor(opened.partition("/console")[0]).enter(opened)
    listed = visitor.ask("GET", "/documents?conflicts=true").body.decode()
    pages["conflict"] = "/documents/" + listed.partition('href="/console/documents/')[2].partition('"')[0]
    listed = visitor.ask("GET", "/outbox?show=dead").body.decode()
    pages["dead-letter"] = "/outbox/" + listed.partition('href="/console/outbox/')[2].partition('"')[0]
    _shoot(browser, link(home=seeded.ann.home), "daemon", pages, target)


def _shoot(browser: Browser, opened: str, kind: str, pages: dict[str, str], target: Path) -> None:
    base = opened.partition("/enter/")[0]
    context = browser.new_context(viewport={"width": DESK[0], "height": DESK[1]}, reduced_motion="reduce")
    page = context.new_page()
    page.goto(opened)
    page.wait_for_url(f"{base}/")
    schemes: list[Literal["light", "dark"]] = ["light", "dark"]
    for name, path in pages.items():
        for scheme in schemes if name == "overview" else schemes[:1]:
            page.emulate_media(color_scheme=scheme)
            page.goto(base + path)
            page.wait_for_timeout(600)  # a chart is drawn after its page
            suffix = "-dark" if scheme == "dark" else ""
            page.screenshot(path=target / f"{kind}-{name}{suffix}.png")
    page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    for name in ("overview", "messages" if kind == "relay" else "dead-letters"):
        page.emulate_media(color_scheme="light")
        page.goto(base + pages[name])
        page.wait_for_timeout(600)
        page.screenshot(path=target / f"{kind}-{name}-phone.png")
    context.close()


if __name__ == "__main__":
    main()
