"""The console in a real browser: every page without barriers or complaints, kept up to date, and used by keyboard alone."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.console.browser import PATIENCE_MS
from tests.console.test_pages import hrefs, pages_of, shown
from tests.console.town import HOSTILE_NAME, Town, Visitor, link

AXE = Path(sys.prefix) / "node_clients" / "node_modules" / "axe-core" / "axe.min.js"
SERIOUS = ("serious", "critical")
LOOKED_AT = {"include": [["html"]], "exclude": [["tbody tr:nth-child(n+3)"]]}  # the rows of a list are alike


class Watched:
    """A page whose every complaint is kept: of scripts, of the policy, of what did not load."""

    def __init__(self, context: BrowserContext) -> None:
        self.page = context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.complaints: list[str] = []
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")


@pytest.fixture(scope="module")
def context(browser: Browser) -> Iterator[BrowserContext]:
    opened = browser.new_context(viewport={"width": 1200, "height": 800}, reduced_motion="reduce", bypass_csp=False)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def relay_page(context: BrowserContext, seeded: Town) -> Watched:
    """A page that is signed in to the relay's console, as a person gets there."""
    watched = Watched(context)
    watched.page.goto(link("--data", seeded.relay.data))
    expect(watched.page.get_by_role("heading", name="Overview", level=1)).to_be_visible()
    return watched


@pytest.fixture(scope="module")
def daemon_page(context: BrowserContext, seeded: Town) -> Watched:
    watched = Watched(context)
    watched.page.goto(link(home=seeded.ann.home))
    expect(watched.page.get_by_role("heading", name="Overview", level=1)).to_be_visible()
    return watched


def base(page: Page) -> str:
    return page.url.partition("/console")[0] + "/console"


def barriers(page: Page) -> list[str]:
    """What axe finds of weight; it is run as a tool of the browser, outside the page's own policy."""
    found = page.evaluate(f"async () => {{ {AXE.read_text()}; return await axe.run({json.dumps(LOOKED_AT)}); }}")
    return [f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in found["violations"] if one["impact"] in SERIOUS]


def _kind(url: str, path: str) -> tuple[str, int, str]:
    """Pages that are made in one way: lists by their name, and what they lead to."""
    parts = path.partition("?")[0].split("/")
    return url, len(parts), parts[1]


def test_no_page_has_a_barrier_or_a_complaint(
    seeded: Town, operator: Visitor, owner: Visitor, relay_page: Watched, daemon_page: Watched
) -> None:
    found = []
    kinds = {_kind(visitor.url, path): (visitor, path) for visitor, path in pages_of(seeded, operator, owner)}
    assert len(kinds) > 20
    for visitor, path in kinds.values():
        watched = relay_page if visitor is operator else daemon_page
        watched.page.goto(base(watched.page) + path)
        found += [f"{path}: {one}" for one in barriers(watched.page)]
    assert found == []
    assert relay_page.complaints + daemon_page.complaints == []


@pytest.mark.parametrize("path", ["/", "/messages", "/audit"])
def test_the_dark_side_and_a_phone_have_no_barrier_either(relay_page: Watched, path: str) -> None:
    page = relay_page.page
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 360, "height": 740})
    try:
        page.goto(base(page) + path)
        assert barriers(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= 360  # only tables scroll, in their own place
    finally:
        page.emulate_media(color_scheme="light")
        page.set_viewport_size({"width": 1200, "height": 800})


def test_an_open_action_has_no_barrier(
    operator: Visitor, owner: Visitor, relay_page: Watched, daemon_page: Watched
) -> None:
    message = hrefs(shown(operator, "/messages?state=waiting"), "/messages/")[0]
    dead = hrefs(shown(owner, "/outbox?show=dead"), "/outbox/")[0]
    for watched, path in ((relay_page, message), (daemon_page, dead), (daemon_page, "/outbox?show=dead")):
        watched.page.goto(base(watched.page) + path)
        for summary in watched.page.locator("summary").all():
            summary.click()
        assert barriers(watched.page) == []


def test_what_happens_shows_by_itself(seeded: Town, relay_page: Watched, daemon_page: Watched) -> None:
    for watched in (relay_page, daemon_page):
        with watched.page.expect_response(lambda answer: "/live?since=" in answer.url):
            watched.page.goto(base(watched.page) + "/")
    seq = relay_page.page.locator("#seq")
    before = seq.inner_text()
    relay_page.page.evaluate("document.body.dataset.same = 'yes'")
    with seeded.ann.client() as client:
        client.send(HOSTILE_NAME, "and now this", client_message_id="live-1")
    expect(daemon_page.page.get_by_role("link", name="live-1").first).to_be_visible()
    expect(seq).not_to_have_text(before)
    assert relay_page.page.evaluate("document.body.dataset.same") == "yes"  # nobody loaded the page anew


def test_a_page_that_hears_of_no_changes_says_so_until_it_does(context: BrowserContext, daemon_page: Watched) -> None:
    page = context.new_page()
    page.route("**/live?since=*", lambda route: route.fulfill(status=401))  # as after the daemon was started anew
    page.goto(base(daemon_page.page) + "/")
    stale = page.get_by_role("alert")
    expect(stale).to_contain_text("not kept up to date")
    assert barriers(page) == []
    page.unroute_all()
    expect(stale).to_be_hidden()
    page.close()


def test_charts_are_drawn(relay_page: Watched) -> None:
    relay_page.page.goto(base(relay_page.page) + "/")
    expect(relay_page.page.locator(".plot canvas")).to_be_visible()
    expect(relay_page.page.locator(".plot .u-legend")).to_contain_text("accepted")


def test_a_filter_changes_the_list_and_the_address_and_back_undoes_it(relay_page: Watched, operator: Visitor) -> None:
    page = relay_page.page
    page.goto(base(page) + "/messages")
    first = page.locator("#list tbody a").first.inner_text()
    page.get_by_label("Kind").select_option("receipt")
    expect(page.locator("#list tbody a").first).not_to_have_text(first)
    expect(page).to_have_url(base(page) + "/messages?kind=receipt&order=newest")
    page.go_back()
    expect(page.locator("#list tbody a").first).to_have_text(first)
    page.goto(base(page) + "/messages?kind=receipt")  # the address alone shows the same
    expect(page.get_by_label("Kind")).to_have_value("receipt")


def focus(page: Page, text: str, steps: int = 120) -> None:
    """Go on with Tab until something with this text has the focus."""
    for _ in range(steps):
        page.keyboard.press("Tab")
        if page.evaluate("(document.activeElement.innerText || document.activeElement.name || '').trim()") == text:
            return
    raise AssertionError(f"no Tab leads to {text}")


def test_a_message_is_taken_down_by_keyboard_alone(relay_page: Watched, operator: Visitor) -> None:
    page = relay_page.page
    page.goto(base(page) + hrefs(shown(operator, "/messages?state=waiting&order=oldest"), "/messages/")[0])
    focus(page, "Skip to the content")
    focus(page, "Take down…")
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    expect(page.get_by_label("Reason")).to_be_hidden()
    page.keyboard.press("Enter")
    focus(page, "reason")
    page.keyboard.type("by hand")
    focus(page, "Yes, take it down")
    page.keyboard.press("Enter")
    expect(page.get_by_role("status")).to_contain_text("Taken down: closed for 1 recipient.")
    expect(page.locator(".timeline")).to_contain_text("by hand")


def test_a_dead_letter_is_mended_and_sent_by_keyboard_alone(daemon_page: Watched) -> None:
    page = daemon_page.page
    page.goto(base(page) + "/outbox?show=dead&order=oldest")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.name") == "to"
    focus(page, page.locator("#list tbody a").first.inner_text())
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_contain_text("Sequence")
    focus(page, "Send something else instead…")
    page.keyboard.press("Enter")
    focus(page, "message")
    page.keyboard.press("ControlOrMeta+A")
    page.keyboard.type("quite another text")
    focus(page, "Show what changes")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="What would change")).to_be_visible()
    expect(page.locator("td.new").filter(has_text="quite another text")).to_be_visible()
    expect(page.get_by_role("button", name="Yes, send it like this")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("status").first).to_contain_text("It goes on as")


def test_all_rows_are_chosen_at_once_and_sent_again(daemon_page: Watched) -> None:
    page = daemon_page.page
    page.goto(base(page) + "/outbox?show=dead")
    page.get_by_label("Choose all on this page").check()
    count = page.locator("tbody input[type=checkbox]:checked").count()
    assert count > 1
    page.get_by_text("Send again…").click()
    page.get_by_label("Messages a second").fill("100")
    page.get_by_role("button", name="Yes, send them again").click()
    expect(page.locator("#redrive")).to_contain_text(f"Sent again: {count} of {count}")


def test_somebody_signs_out(context: BrowserContext, seeded: Town) -> None:
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(link("--data", seeded.relay.data, "--read-only"))
    page.get_by_role("button", name="Sign out").click()
    expect(page.locator("body")).to_have_text("You are signed out.")
    page.goto(seeded.relay_url + "/console/")
    expect(page.locator("body")).to_contain_text("Nobody is signed in here.")
    page.close()


def test_nothing_was_complained_about(relay_page: Watched, daemon_page: Watched) -> None:
    assert json.dumps(relay_page.complaints + daemon_page.complaints) == "[]"
