"""A home with its daemon at work in this process: real sockets, a real disk, and no relay in reach unless one is named."""

import asyncio
import http.client
import itertools
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from holdfast.cli.check import inspect
from holdfast.device import directory, operations
from holdfast.device.client import Client
from holdfast.device.daemon import Daemon
from holdfast.device.device import Device, at_work
from holdfast.device.home import Home, Membership
from holdfast.device.ipc_service import Service
from holdfast.device.operations import Address, Facts
from holdfast.protocol import keys
from holdfast.store import files
from holdfast.store.engine import Transaction
from holdfast.store.world import Clock, wall_clock
from holdfast.wire.client import Member, Mesh, Subscriber, Topic
from holdfast.wire.network import SystemNetwork
from tests.device.desk import Book, Desk
from tests.people import MESH, Person
from tests.relay.running import ANSWER_S, Answered

NOWHERE = "http://127.0.0.1:9"  # nobody listens on this port

T = TypeVar("T")


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a socket in the file system."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=ANSWER_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(ANSWER_S)
        self.sock.connect(self._path)


def asked(
    connection: http.client.HTTPConnection, method: str, path: str, body: object, headers: Mapping[str, str]
) -> Answered:
    raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    try:
        connection.request(method, path, raw, dict(headers))
        response = connection.getresponse()
        lowered = {name.lower(): value for name, value in response.getheaders()}
        return Answered(response.status, lowered, response.read())
    finally:
        connection.close()


BEGIN_POLL_S = 0.005


class House(Desk):
    """A daemon that answers on its sockets; what is asked of its database goes through its own writer."""

    def __init__(self, device: Device) -> None:
        self.me, self.bob, self.carol = Person("me"), Person("bob"), Person("carol")
        self.facts = Facts(mesh=MESH, member=self.me.member)
        self.book = Book(self.me, self.bob, self.carol)
        self.device = device
        self.path = device.home.database
        self._bytes = itertools.count()
        self._positions = itertools.count(1)
        self.service: Service
        self.loop: asyncio.AbstractEventLoop

    @property
    def now(self) -> int:  # type: ignore[override]  # time goes by here
        return wall_clock()

    def do(self, request: Callable[[Transaction], T]) -> T:
        done = self.device.do(request)
        self.loop.call_soon_threadsafe(self.service.daemon.wake)
        return done

    def look(self, query: Callable[[Transaction], T]) -> T:
        return self.device.look(query)

    def client(self) -> Client:
        return Client(home=self.device.home.path)

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> Answered:
        """Ask over the Unix socket."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return asked(UnixConnection(self.service.socket), method, path, body, named)

    def ask_port(self, method: str, path: str, body: object = None, **headers: str) -> Answered:
        """Ask over the loopback port."""
        assert self.service.url is not None
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        address = self.service.url.removeprefix("http://")
        return asked(http.client.HTTPConnection(address, timeout=ANSWER_S), method, path, body, named)

    @property
    def token(self) -> str:
        return (self.device.home.path / "local-token").read_text().strip()


def furnish(home: Home, relay: str = NOWHERE) -> None:
    """Make a home that is in a mesh with Bob and Carol and a topic `news`, without anybody's asking a relay."""
    me, others = Person("me"), (Person("bob"), Person("carol"))
    home.path.mkdir(mode=0o700)
    files.write_new(home.path / "member.key", keys.nsec(me.secret).encode() + b"\n")
    with at_work(home) as device:
        device.do(lambda tx: _found(tx, device))
        device.do(lambda tx: directory.replace(tx, mesh_of(me, *others)))
    home.keep(
        Membership(
            relay=relay,
            relay_pubkey=Person("relay").key,
            mesh=MESH,
            mesh_name="friends",
            member=me.member,
            member_name=me.name,
            client_message_id="founding",
        )
    )


def _found(transaction: Transaction, device: Device) -> None:
    address = Address(destination_kind="admin", destination_ref=MESH, mesh=MESH, client_message_id="founding")
    now, nothing = device.clock(), bytes(32)
    sequence = operations.append_next(transaction, now, device.random, nothing, b"{}", address)
    operations.mark_delivered(transaction, now, nothing, sequence)


def mesh_of(*people: Person) -> Mesh:
    members = tuple(
        Member(member=one.member, pubkey=one.key, name=one.name, role="member", status="active") for one in people
    )
    subscribers = tuple(Subscriber(member=one.member, has_key=True) for one in people)
    news = Topic(topic="news", key_epoch=1, created_by=people[0].member, subscribers=subscribers, left=())
    return Mesh(mesh=MESH, name="friends", members=members, topics=(news,))


@contextmanager
def at_home(home: Home, *, port: int | None = None, clock: Clock = wall_clock, **options: Any) -> Iterator[House]:
    """The daemon of a furnished home, while the block lasts; afterwards its database keeps every rule."""
    with at_work(home, threaded=True, clock=clock) as device:
        house = House(device)
        stop, ready = threading.Event(), threading.Event()
        trouble: list[BaseException] = []
        thread = threading.Thread(target=_run, args=(house, port, options, ready, stop, trouble), daemon=True)
        thread.start()
        assert ready.wait(ANSWER_S)
        try:
            if not trouble:
                yield house
        finally:
            stop.set()
            if not trouble:
                house.loop.call_soon_threadsafe(lambda: None)
            thread.join(ANSWER_S)
        assert trouble == []
        assert not thread.is_alive()
    assert inspect(home.database) == ("device", [])


def _run(
    house: House,
    port: int | None,
    options: dict[str, Any],
    ready: threading.Event,
    stop: threading.Event,
    trouble: list[BaseException],
) -> None:
    async def live() -> None:
        house.loop = asyncio.get_running_loop()
        house.service = Service(Daemon(house.device, **options), port=port)
        try:
            await house.service.start(SystemNetwork())
            while not house.service.daemon.sender.has_begun:  # or it would take back what a test claims
                await asyncio.sleep(BEGIN_POLL_S)
            ready.set()
            await house.loop.run_in_executor(None, stop.wait)
        finally:
            await house.service.close()

    try:
        asyncio.run(live())
    except BaseException as error:
        trouble.append(error)
    finally:
        ready.set()


@contextmanager
def new_house(path: Path, **options: Any) -> Iterator[House]:
    """A furnished home with its daemon."""
    home = Home(path)
    furnish(home)
    with at_home(home, **options) as house:
        yield house
