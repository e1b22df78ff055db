"""A relay's console without a process: the same application, and a browser whose requests are called instead of sent."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast.console.audit import Report
from holdfast.console.relay_console import RelayConsole
from holdfast.console.signing_in import Role
from holdfast.export.exporter import Exporter
from holdfast.relay.database import open_relay
from holdfast.relay.identity import Identity
from holdfast.relay.relay import Relay
from holdfast.relay.server import Application
from holdfast.relay.settings import Settings
from holdfast.store.sqlite import MEMORY
from tests.console.routes import bytes_of


class Window:
    """A browser's requests, called instead of sent."""

    def __init__(self, app: Application) -> None:
        self.app = app
        self.cookie = ""

    def ask(
        self, method: str, path: str, body: bytes = b"", *, query: str = "", **headers: str
    ) -> tuple[int, dict[str, str], str]:
        given = {
            "host": "127.0.0.1:7447",
            "cookie": self.cookie,
            **{name.replace("_", "-"): one for name, one in headers.items()},
        }
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(name.encode(), one.encode()) for name, one in given.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 7447),
        }
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        asyncio.run(self.app(scope, receive, send))
        told = {name.decode(): one.decode() for name, one in sent[0]["headers"]}
        return sent[0]["status"], told, b"".join(one["body"] for one in sent[1:]).decode()


@contextmanager
def public_console(folder: Path, report: Report) -> Iterator[tuple[Window, RelayConsole]]:
    """The console of a relay that others reach over https, with a lake."""
    engine = open_relay(MEMORY)
    identity = Identity.load(folder, bytes_of)
    relay = Relay(engine, Settings(public_url="https://relay.example"), identity, inline=True)
    app = Application(relay, Exporter(MEMORY, "none"))
    yield Window(app), RelayConsole(relay, app, report=report)
    engine.close()


def entered(window: Window, pages: RelayConsole, host: str) -> str:
    """Open a link; what the cookie says."""
    status, told, _ = window.ask("GET", pages.console.link(Role.OPERATOR, "ann"), host=host)
    assert status == 200
    window.cookie = told["set-cookie"].partition(";")[0]
    return told["set-cookie"]
