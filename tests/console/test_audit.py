"""The audit page with a lake behind it, and a console behind a proxy: the same application, without a process."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.lake_report import lake_report
from holdfast.console.audit import KEPT_S, Audit, LakeUnavailable
from holdfast.console.relay_console import RelayConsole
from holdfast.protocol.schedule import SECOND
from tests.console.window import Window, entered, public_console

HOUR = 1_800_000_000 * SECOND
REPORT: dict[str, Any] = {
    "batch": 3,
    "at": HOUR,
    "scope": "relay and 1 device",
    "uncompared": [],
    "balance": {"recipients": 10, "delivered": 9, "open": 1},
    "balance_holds": True,
    "violations": 1,
    "devices": ["d"],
    "findings": [{"kind": "sequence_gap", "key": "<b>k</b>", "detail": "<i>d</i>", "is_violation": True}],
    "latency": [{"hour": HOUR, "count": 9, "p50": 0.01, "p90": 0.2, "p99": 1.5}],
}
CERTIFICATES = [{"number": 3, "hash": "ab" * 32, "pubkey": "cd" * 32}]


@pytest.fixture
def public(tmp_path: Path) -> Iterator[tuple[Window, RelayConsole]]:
    async def report() -> dict[str, Any]:
        return {"report": REPORT, "certificates": CERTIFICATES}

    with public_console(tmp_path, report) as opened:
        yield opened


def test_what_the_lake_proves_is_shown(public: tuple[Window, RelayConsole]) -> None:
    window, pages = public
    entered(window, pages, "127.0.0.1:7447")
    status, _, page = window.ask("GET", "/console/audit")
    assert status == 200
    for word in (
        "1 rule is broken",
        "sequence_gap",
        "&lt;b&gt;k&lt;/b&gt;",
        "&lt;i&gt;d&lt;/i&gt;",
        "abababababab",
        "10 ms",
        "relay and 1 device",
    ):
        assert word in page
    status, _, found = window.ask("GET", "/console/audit/latency")
    assert (status, '"p99":[1.5]' in found) == (200, True)


def test_a_lake_that_is_catching_up_is_not_said_to_be_proved(tmp_path: Path) -> None:
    async def report() -> dict[str, Any]:
        found = {**REPORT, "violations": 0, "findings": [], "uncompared": ["relay:<b>"]}
        return {"report": found, "certificates": CERTIFICATES}

    with public_console(tmp_path, report) as (window, pages):
        entered(window, pages, "127.0.0.1:7447")
        page = window.ask("GET", "/console/audit")[2]
    assert "Not compared yet with what is there now: relay:&lt;b&gt;." in page
    assert "accounted for" not in page


def test_a_page_of_an_earlier_run_shows_another_version_though_nothing_was_done_since(tmp_path: Path) -> None:
    async def report() -> dict[str, Any]:
        return {"report": REPORT, "certificates": CERTIFICATES}

    shown = []
    for _ in range(2):
        with public_console(tmp_path, report) as (window, pages):
            entered(window, pages, "127.0.0.1:7447")
            page = window.ask("GET", "/console/")[2]
            shown.append(page.partition("/console/live?since=")[2].partition('"')[0].partition("."))
    (run, _, number), (next_run, _, next_number) = shown
    assert number == next_number != ""
    assert run != next_run


def test_a_cookie_of_the_public_address_travels_encrypted_only(public: tuple[Window, RelayConsole]) -> None:
    window, pages = public
    assert "; Secure" not in entered(window, pages, "127.0.0.1:7447")
    assert "; Secure" in entered(window, pages, "relay.example")


def test_a_form_comes_through_a_proxy(public: tuple[Window, RelayConsole]) -> None:
    window, pages = public
    entered(window, pages, "relay.example")
    page = window.ask("GET", "/console/messages")[2]
    token = page.partition('name="csrf" value="')[2].partition('"')[0]
    body = f"csrf={token}".encode()
    assert window.ask("POST", "/console/leave", body, origin="https://evil.example")[0] == 403
    assert window.ask("POST", "/console/leave", body, origin="https://relay.example")[0] == 200
    assert window.ask("GET", "/console/")[0] == 401


def test_the_head_of_a_live_stream_holds_nothing(public: tuple[Window, RelayConsole]) -> None:
    window, pages = public
    entered(window, pages, "127.0.0.1:7447")
    assert window.ask("HEAD", "/console/live")[0] == 405
    assert window.ask("GET", "/console/live", query="since=yesterday")[0] == 400
    assert pages.console.live.open_count == 0


def test_the_lake_is_asked_once_however_many_look() -> None:
    asked, now = [], HOUR

    async def report() -> dict[str, Any]:
        asked.append(now)
        if len(asked) > 1:
            raise LakeUnavailable("it is gone")
        return {"report": REPORT}

    async def look() -> None:
        nonlocal now
        audit = Audit(report, lambda: now)
        await asyncio.gather(*(audit.read() for _ in range(5)))
        assert len(asked) == 1
        now += KEPT_S * SECOND + 1
        for _ in range(2):
            with pytest.raises(LakeUnavailable, match="it is gone"):
                await audit.read()
        assert len(asked) == 2

    asyncio.run(look())


def test_a_lake_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(LakeUnavailable, match="There is no lake at"):
        asyncio.run(lake_report(tmp_path / "lake"))
