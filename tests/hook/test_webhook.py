"""Webhooks: signed as Standard Webhooks wants it, sent to where they may go, and never to where they may not."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import httpx2 as httpx
import msgspec
import pytest

from holdfast.hook import agent_sessions, agent_settings, database
from holdfast.hook.agent_service import AgentService
from holdfast.hook.agent_settings import AgentSettings, Webhook
from holdfast.hook.followers import Undeliverable
from holdfast.hook.settings import Unreadable
from holdfast.hook.store import Store
from holdfast.hook.webhook import (
    REFUSALS_MAX,
    NotTaken,
    Private,
    PublicNetwork,
    WebhookSender,
    is_public,
    signature,
)
from holdfast.protocol.agent_event import AgentEvent, AgentKind
from holdfast.store.world import wall_clock
from holdfast.wire.network import SystemNetwork

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
EVENT = AgentEvent(id="e1", kind=AgentKind.PROMPT, agent="claude", session_id="s", at=1_700_000_000_000_000, text="hm")
NOW_S = 1_700_000_001
PATIENCE_S = 60.0

P = TypeVar("P", bound=asyncio.Protocol)


def test_the_signature_is_that_of_the_published_example() -> None:
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    found = signature(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert found == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


class Site(SystemNetwork):
    """A site that answers as it is told to, and the network that leads to it, whatever the address."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.asked: list[tuple[dict[str, str], bytes]] = []
        self.led_to: list[str] = []
        self.serving: list[Any] = []
        self.port = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Answer while the block lasts, and to the end what was asked in it."""
        server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield
            await asyncio.gather(*self.serving)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.serving.append(asyncio.current_task())
        with suppress(asyncio.IncompleteReadError, OSError):
            await self.answer(reader, writer)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (text.partition(": ") for text in head[1:]) if value}
        self.asked.append((headers, await reader.readexactly(int(headers["content-length"]))))
        status = self.statuses.pop(0) if self.statuses else 204
        moved = "Location: http://127.0.0.1:1/\r\n" if 300 <= status < 400 else ""
        writer.write(f"HTTP/1.1 {status} x\r\n{moved}Content-Length: 0\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()

    async def connect(self, factory: Callable[[], P], host: str, port: int) -> tuple[asyncio.Transport, P]:
        self.led_to.append(host)
        return await super().connect(factory, "127.0.0.1", self.port)


def webhook(**more: Any) -> Webhook:
    return Webhook(**{"name": "w", "url": "http://hooks.example/x", "secret": SECRET, "allow_private": True, **more})


def play(site: Site, hook: Webhook, scene: Callable[[WebhookSender], Any], *addresses: str) -> None:
    names = list(addresses)

    async def resolve(host: str, port: int) -> list[str]:
        return [names.pop(0)]

    async def run() -> None:
        sender = WebhookSender(hook, site, lambda: NOW_S * 1_000_000, resolve)
        async with site.open():
            await scene(sender)
            await sender.close()

    asyncio.run(run())


def test_a_delivery_carries_its_id_its_time_and_its_signature() -> None:
    site = Site()
    play(site, webhook(), lambda sender: sender.deliver(EVENT))
    ((headers, body),) = site.asked
    assert (headers["webhook-id"], headers["webhook-timestamp"]) == ("e1", str(NOW_S))
    assert headers["webhook-signature"] == signature(webhook().key, "e1", NOW_S, body)
    assert json.loads(body) == {
        "type": "agent.prompt",
        "timestamp": "2023-11-14T22:13:20Z",
        "data": msgspec.to_builtins(EVENT),
    }


@pytest.mark.parametrize("status", [302, 307, 404, 429, 500, 503])
def test_what_is_not_taken_is_to_be_sent_again_and_nowhere_else(status: int) -> None:
    site = Site(status)

    async def scene(sender: WebhookSender) -> None:
        with pytest.raises(NotTaken, match=str(status)):
            await sender.deliver(EVENT)
        await sender.deliver(EVENT)

    play(site, webhook(), scene)
    assert site.led_to == ["hooks.example", "hooks.example"]


def test_an_event_that_is_refused_again_and_again_is_given_up_but_never_for_a_server_that_is_down() -> None:
    site = Site(*[400] * REFUSALS_MAX, *[503] * (REFUSALS_MAX + 5))

    async def scene(sender: WebhookSender) -> None:
        for _ in range(REFUSALS_MAX - 1):
            with pytest.raises(NotTaken):
                await sender.deliver(EVENT)
        with pytest.raises(Undeliverable):
            await sender.deliver(EVENT)
        for _ in range(REFUSALS_MAX + 5):
            with pytest.raises(NotTaken):
                await sender.deliver(msgspec.structs.replace(EVENT, id="e2"))

    play(site, webhook(), scene)


def test_a_webhook_is_told_of_the_kinds_that_it_is_set_up_for_and_of_no_other(home: Path) -> None:
    """What is prompted and said may be none of its business."""
    path, site = home / "agents.json", Site()
    path.write_text(json.dumps({"webhooks": [msgspec.to_builtins(webhook(kinds=[AgentKind.ERROR]))]}))
    path.chmod(0o600)
    store = Store(database.opened(home / "hooks.db", wall_clock), threaded=False)
    service = AgentService(
        home,
        store,
        agent_settings.load(home),
        clock=wall_clock,
        network=site,
        environment={"HOME": str(home)},
        is_clock_right=lambda: True,
    )

    async def run() -> None:
        await store.do_soon(lambda tx: agent_sessions.follow(tx, "webhook:w"))
        for kind in (AgentKind.PROMPT, AgentKind.OUTPUT, AgentKind.ERROR, AgentKind.TURN_COMPLETED):
            report = msgspec.structs.replace(EVENT, id=kind.value, kind=kind)
            await store.do_soon(partial(agent_sessions.tell, told=report, now=wall_clock()))
        async with site.open(), asyncio.timeout(PATIENCE_S):
            running = asyncio.create_task(service.run())
            while store.look(agent_sessions.followers)[0]["position"] < 4:
                await asyncio.sleep(0.01)
            running.cancel()
            await asyncio.wait([running])

    asyncio.run(run())
    store.close()
    assert [json.loads(body)["type"] for _, body in site.asked] == ["agent.error"]


def test_an_address_that_is_gone_is_left_alone() -> None:
    site = Site(410)

    async def scene(sender: WebhookSender) -> None:
        for _ in range(3):
            with pytest.raises(NotTaken, match="410"):
                await sender.deliver(EVENT)

    play(site, webhook(), scene)
    assert len(site.asked) == 1


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.0.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "::1",
        "::",
        "fe80::1%eth0",
        "fd00::1",
        "::ffff:127.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "64:ff9b:1::7f00:1",
        "::127.0.0.1",
        "::ffff:0:127.0.0.1",
        "fec0::1",
    ],
)
def test_no_private_address_is_led_to_unless_that_is_allowed(address: str) -> None:
    assert not is_public(address)


def test_a_name_that_leads_home_is_not_followed() -> None:
    site = Site()
    public = webhook(url="https://hooks.example/x", allow_private=False)

    async def scene(sender: WebhookSender) -> None:
        with pytest.raises(httpx.ConnectError, match=r"hooks\.example is 127\.0\.0\.1, and allow_private is not set"):
            await sender.deliver(EVENT)

    play(site, public, scene, "127.0.0.1")
    assert site.led_to == []


def test_a_name_that_leads_elsewhere_a_moment_later_leads_to_where_it_was_judged() -> None:
    """What was judged is what is connected to, and every attempt is judged anew."""
    led_to: list[str] = []
    answers = [["93.184.215.14"], ["93.184.215.14", "10.0.0.1"], ["127.0.0.1"], []]

    class Recording(SystemNetwork):
        async def connect(self, factory: Callable[[], P], host: str, port: int) -> tuple[asyncio.Transport, P]:
            led_to.append(host)
            raise ConnectionRefusedError

    async def resolve(host: str, port: int) -> list[str]:
        return answers.pop(0)

    async def scene() -> None:
        network = PublicNetwork(Recording(), resolve)
        with pytest.raises(ConnectionRefusedError):
            await network.connect(asyncio.Protocol, "hooks.example", 443)
        for _ in range(3):
            with pytest.raises(Private):
                await network.connect(asyncio.Protocol, "hooks.example", 443)

    asyncio.run(scene())
    assert led_to == ["93.184.215.14"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "ftp://hooks.example"},
        {"url": "https://"},
        {"url": "https://hooks.example:99999/"},
        {"url": "https://hooks.example:x/"},
        {"url": "https://hooks.example:0/"},
        {"url": "https://hooks.example/\0"},
        {"url": "https://ann:secret@hooks.example/"},
        {"url": "http://hooks.example", "allow_private": False},
        {"secret": "whsec_c2hvcnQ="},
        {"secret": "whsec_not base64"},
        {"name": "../x"},
        {"more": 1},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any], tmp_path: Any) -> None:
    good = {"name": "w", "url": "http://hooks.example/x", "secret": SECRET, "allow_private": True}
    path = tmp_path / "agents.json"
    path.write_text(json.dumps({"webhooks": [good | wrong]}))
    path.chmod(0o600)  # that others can read it is refused for itself
    with pytest.raises(Unreadable) as refused:
        agent_settings.load(tmp_path)
    assert SECRET not in str(refused.value)
    path.write_text(json.dumps({"webhooks": [good]}))
    assert agent_settings.load(tmp_path).webhooks


def test_secrets_are_their_owners_alone(tmp_path: Any) -> None:
    path = tmp_path / "agents.json"
    path.write_text(json.dumps({"webhooks": [{"name": "w", "url": "https://hooks.example/x", "secret": SECRET}]}))
    path.chmod(0o640)
    with pytest.raises(Unreadable, match="chmod 600"):
        agent_settings.load(tmp_path)
    path.chmod(0o600)
    assert agent_settings.load(tmp_path).webhooks[0].key == webhook().key


def test_without_settings_nobody_is_told(tmp_path: Any) -> None:
    assert agent_settings.load(tmp_path) == AgentSettings()
