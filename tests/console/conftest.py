"""A seeded relay, a daemon and a browser for each file that looks at pages: some of them change what others would look for."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.console.browser import NAMES, PATIENCE_MS, VARIABLE, find_browser
from tests.console.town import Town, Visitor, link, town


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    with town(tmp_path_factory.mktemp("console")) as found:
        yield found


@pytest.fixture(scope="module")
def operator(seeded: Town) -> Visitor:
    """Somebody who is signed in to the relay's console."""
    return Visitor(seeded.relay_url).enter(link("--data", seeded.relay.data))


@pytest.fixture(scope="module")
def owner(seeded: Town) -> Visitor:
    """Somebody who is signed in to the daemon's console."""
    opened = link(home=seeded.ann.home)
    return Visitor(opened.partition("/console")[0]).enter(opened)


@pytest.fixture(scope="module")  # it has an event loop of its own in this thread, which nobody else may meet
def browser(seeded: Town) -> Iterator[Browser]:
    executable = find_browser()
    if executable is None:
        pytest.skip(f"NO BROWSER: the console's pages are not tested. Install {NAMES[0]}, or name one in {VARIABLE}.")
    expect.set_options(timeout=PATIENCE_MS)  # its own five seconds are soon over on a busy machine
    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield opened
        opened.close()
