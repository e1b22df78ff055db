"""A webhook: what agents tell, sent to an address with Standard Webhooks' signature.

Where an address leads is looked up here, once per attempt, and the connection goes to the very address that was judged: a
name that means something else a moment later changes nothing. Redirects are not followed.
"""

import asyncio
import base64
import hmac
import ipaddress
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import TypeVar

import httpx2 as httpx
import msgspec

from holdfast.hook.agent_settings import Webhook
from holdfast.hook.followers import Undeliverable
from holdfast.protocol.agent_event import AgentEvent
from holdfast.protocol.schedule import SECOND
from holdfast.store.world import Clock
from holdfast.wire.network import Listener, Network
from holdfast.wire.transport import NetworkTransport

REFUSALS_MAX = 20  # of one event by an address that understands and does not want it
FOR_LATER = frozenset({408, 409, 425, 429})  # of the codes that say that the request is wrong, those that may pass
GONE = 410

# Addresses of IPv6 in which others of one's own network may stand, and of which the standard library does not say so.
_OWN = tuple(map(ipaddress.IPv6Network, ("::/96", "::ffff:0:0:0/96", "64:ff9b:1::/48")))

P = TypeVar("P", bound=asyncio.Protocol)
Resolve = Callable[[str, int], Awaitable[list[str]]]
"""The addresses of a name."""


class Private(OSError):
    """The host's address is private."""


class NotTaken(Exception):
    """The webhook answered with another status than 2xx."""


async def system_addresses(host: str, port: int) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def is_public(address: str) -> bool:
    """Whether an IP address is public: reachable from everywhere, and in no private network."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour or (found.teredo[1] if found.teredo else None)
        is_translated = found in ipaddress.ip_network("64:ff9b::/96")
        if inner is not None or is_translated:
            return is_public(str(inner or ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)))
        if found.is_site_local or any(found in network for network in _OWN):
            return False
    return found.is_global and not found.is_multicast


class PublicNetwork:
    """A network that leads to public addresses only."""

    def __init__(self, network: Network, resolve: Resolve) -> None:
        self._network = network
        self._resolve = resolve

    async def connect(self, factory: Callable[[], P], host: str, port: int) -> tuple[asyncio.Transport, P]:
        addresses = await self._resolve(host, port)
        private = [address for address in addresses if not is_public(address)]
        if private or not addresses:
            raise Private(f"{host} is {', '.join(private) or 'nowhere'}, and allow_private is not set")
        for address in addresses[:-1]:
            with suppress(OSError):  # not every machine reaches every kind of address
                return await self._network.connect(factory, address, port)
        return await self._network.connect(factory, addresses[-1], port)

    async def listen(self, factory: Callable[[], asyncio.Protocol], host: str, port: int) -> Listener:
        return await self._network.listen(factory, host, port)

    async def listen_unix(self, factory: Callable[[], asyncio.Protocol], path: str) -> Listener:
        return await self._network.listen_unix(factory, path)


def signature(key: bytes, event_id: str, at: int, body: bytes) -> str:
    """The `webhook-signature` header of a body; `at` is in seconds."""
    signed = b"%s.%d.%s" % (event_id.encode(), at, body)
    return "v1," + base64.b64encode(hmac.digest(key, signed, "sha256")).decode()


class WebhookSender:
    """Delivers reports to one webhook until it is closed."""

    def __init__(self, webhook: Webhook, network: Network, clock: Clock, resolve: Resolve = system_addresses) -> None:
        self._webhook = webhook
        self._clock = clock
        self._client = httpx.AsyncClient(
            transport=NetworkTransport(network if webhook.allow_private else PublicNetwork(network, resolve)),
            timeout=webhook.timeout_s,
            follow_redirects=False,
            trust_env=False,
        )
        self._refused: tuple[str, int] = ("", 0)  # which event, how often
        self._is_gone = False

    async def deliver(self, event: AgentEvent) -> None:
        """Send a report; raises unless the webhook accepts it."""
        if self._is_gone:
            raise NotTaken("410: nothing is sent there until the daemon starts anew")
        body, at = _body(event), self._clock() // SECOND
        headers = {
            "content-type": "application/json",
            "user-agent": "holdfast",
            "webhook-id": event.id,
            "webhook-timestamp": str(at),
            "webhook-signature": signature(self._webhook.key, event.id, at, body),
        }
        async with self._client.stream("POST", self._webhook.url, content=body, headers=headers) as answer:
            self._judge(event, answer.status_code)  # what it says is of no interest, and may have no end

    async def close(self) -> None:
        await self._client.aclose()

    def _judge(self, event: AgentEvent, status: int) -> None:
        if 200 <= status < 300:
            return
        self._is_gone = status == GONE
        if 400 <= status < 500 and status not in FOR_LATER and status != GONE:
            count = self._refused[1] + 1 if self._refused[0] == event.id else 1
            self._refused = event.id, count
            if count >= REFUSALS_MAX:
                raise Undeliverable(f"{status}, {count} times")
        raise NotTaken(str(status))


def _body(event: AgentEvent) -> bytes:
    told = msgspec.to_builtins(event)
    return msgspec.json.encode({"type": f"agent.{event.kind}", "timestamp": _moment(event.at), "data": told})


def _moment(at: int) -> str:
    """Microseconds since 1970 as Standard Webhooks wants them."""
    return datetime.fromtimestamp(at / SECOND, UTC).isoformat().replace("+00:00", "Z")
