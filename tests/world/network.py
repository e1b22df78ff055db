"""A network in memory that loses, delays, repeats and cuts, as its machines' links are at the moment.

Within a connection bytes keep their order, as on every network that our programs use; between connections nothing does.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tests.wire.plain import PlainNetwork, PlainTransport
from tests.world.hearing import Hearing
from tests.world.loop import Life, WorldLoop

LATENCY_S = (0.000_5, 0.004)  # of a link in good order
NEAR_S = (0.000_01, 0.000_05)  # inside one machine
BUFFER_BYTES_MAX = 65_536  # on the way before the writer is asked to wait
SAID_BYTES_MAX = 200_000  # of what is remembered of a connection, to say it again
APART_S = 0.000_001  # between two packets of a connection
REFUSED_S = 0.002
PEER = ("127.0.0.1", 40_000)  # everybody is near: whoever is near may found a mesh

P = TypeVar("P", bound=asyncio.Protocol)


@dataclass
class Link:
    """How it is between two machines."""

    late_s: float = 0.0  # added to every packet
    down_until_s: float = 0.0  # nothing passes before, and is sent again after


@dataclass
class _Place:
    life: Life
    machine: str
    factory: Callable[[], asyncio.Protocol]


@dataclass
class Connection:
    """Two ends, and what the one that called has said."""

    number: int
    place: tuple[str, int]
    link: frozenset[str]
    near: "End"
    far: "End"
    said: bytearray = field(default_factory=bytearray)
    is_repeat: bool = False
    hearing: Hearing | None = None


class Internet:
    """All connections of a world."""

    def __init__(self, loop: WorldLoop, luck: random.Random, told: Callable[..., None]) -> None:
        self.loop = loop
        self.luck = luck
        self.told = told
        self.places: dict[tuple[str, int], _Place] = {}
        self.links: dict[frozenset[str], Link] = {}
        self.open: dict[int, Connection] = {}
        self.listen_in: Callable[[str], Hearing | None] = lambda machine: None
        self.past: list[Connection] = []  # that may be said again
        self.answer_to_lose = 0  # the next answer to so many events, or more, reaches nobody; 0 is none
        self._count = 0

    def of(self, machine: str, life: Life) -> "MachineNetwork":
        """The network as a process of a machine has it."""
        return MachineNetwork(self, machine, life)

    def link(self, one: str, other: str) -> Link:
        return self.links.setdefault(frozenset((one, other)), Link())

    def delay(self, link: frozenset[str]) -> float:
        """Until a packet that leaves now arrives."""
        if len(link) < 2:
            return self.luck.uniform(*NEAR_S)
        state = self.links.setdefault(link, Link())
        return max(0.0, state.down_until_s - self.loop.time()) + state.late_s + self.luck.uniform(*LATENCY_S)

    def connect(
        self, life: Life, machine: str, place: tuple[str, int], protocol: Any, *, repeats: bool = False
    ) -> "End":
        """A connection, made at once; waiting for it is the caller's."""
        there = self.places.get(place)
        if there is None or not there.life.is_alive:
            raise ConnectionRefusedError(f"nobody listens at {place[0]}:{place[1]}")
        self._count += 1
        link = frozenset((machine, there.machine))
        # The far side begins in the context of its own process.
        far_protocol = there.life.context.copy().run(there.factory)
        near, far = End(self, life, protocol, PEER), End(self, there.life, far_protocol, place)
        connection = Connection(self._count, place, link, near, far, is_repeat=repeats)
        connection.hearing = self.listen_in(there.machine)
        near.join(connection, far)
        far.join(connection, near)
        self.open[connection.number] = connection
        there.life.context.copy().run(far_protocol.connection_made, far)
        return near

    def gone(self, connection: Connection) -> None:
        """Both ends are closed."""
        if self.open.pop(connection.number, None) is not None and connection.said and not connection.is_repeat:
            self.past.append(connection)
            del self.past[:-20]

    def cut(self, connection: Connection, *, keeps: tuple[bool, bool]) -> None:
        """Break a connection; of what is on its way to the far and to the near end, only what is kept arrives."""
        for end, keep in zip((connection.far, connection.near), keeps, strict=True):
            end.break_off(keep=keep)

    def loses(self, answered: int) -> bool:
        """Whether an answer to so many events is the one that is to be lost."""
        is_lost = 0 < self.answer_to_lose <= answered
        if is_lost:
            self.answer_to_lose = 0
        return is_lost

    def repeat(self, connection: Connection) -> None:
        """Say once more what was said on a connection, as a network may that lost no packet but believes so; nobody hears the answer."""
        nobody = Life("nobody")
        try:
            end = self.connect(nobody, "nowhere", connection.place, asyncio.Protocol(), repeats=True)
        except ConnectionRefusedError:
            return
        end.write(bytes(connection.said))
        self.loop.call_later(30.0, end.close)

    def lose(self, life: Life, *, silent_s: float) -> None:
        """A process is gone: its places are free, and its peers hear of it after a while."""
        self.places = {place: there for place, there in self.places.items() if there.life is not life}
        for connection in list(self.open.values()):
            for end in (connection.near, connection.far):
                if end.life is life:
                    end.die()
                    self.loop.call_later(silent_s + self.delay(connection.link), end.other.break_off)


class MachineNetwork(PlainNetwork):
    """What a program is given to listen and connect."""

    def __init__(self, internet: Internet, machine: str, life: Life) -> None:
        self._internet = internet
        self._machine = machine
        self._life = life

    async def listen(self, factory: Callable[[], asyncio.Protocol], host: str, port: int) -> "Listening":
        if self._life.is_alive:
            self._internet.places[host, port] = _Place(self._life, self._machine, factory)
        return Listening(self._internet, self._life, host, port)

    async def connect(self, factory: Callable[[], P], host: str, port: int) -> tuple[asyncio.Transport, P]:
        internet = self._internet
        there = internet.places.get((host, port))
        link = frozenset((self._machine, there.machine)) if there is not None else frozenset((self._machine,))
        await asyncio.sleep(internet.delay(link) if there is not None else REFUSED_S)
        if not self._life.is_alive:
            raise ConnectionAbortedError("the process is gone")
        protocol = factory()
        end = internet.connect(self._life, self._machine, (host, port), protocol)
        protocol.connection_made(end)
        return end, protocol


class Listening:
    """A place where connections come in."""

    def __init__(self, internet: Internet, life: Life, host: str, port: int) -> None:
        self._internet = internet
        self._life = life
        self.host = host
        self.port = port

    def close(self) -> None:
        place = self._internet.places.get((self.host, self.port))
        if place is not None and place.life is self._life:
            del self._internet.places[self.host, self.port]


class End(PlainTransport):
    """One end of a connection. What is written travels for a while, in order."""

    other: "End"
    connection: Connection

    def __init__(self, internet: Internet, life: Life, protocol: asyncio.BaseProtocol, name: tuple[str, int]) -> None:
        super().__init__(protocol, name)
        self._internet = internet
        self.life = life
        self._arrives_at = 0.0  # the last packet that was sent to this end
        self._on_its_way = 0  # bytes that were sent to this end
        self._trip = 0  # packets of earlier trips are lost
        self._is_lost = False
        self._asked_to_wait = False

    def join(self, connection: Connection, other: "End") -> None:
        self.connection = connection
        self.other = other

    def write(self, data: Any) -> None:
        if not data or self._has_ended or self._is_lost or not self.life.is_alive:
            return
        if self is self.connection.near and len(self.connection.said) < SAID_BYTES_MAX:
            self.connection.said += data
        hearing = self.connection.hearing if self is self.connection.far else None
        if hearing is not None and self._internet.loses(hearing.said(bytes(data))):
            self._internet.cut(self.connection, keeps=(True, False))
            return
        self.other._travel(bytes(data))
        if self.other._on_its_way > BUFFER_BYTES_MAX and not self._asked_to_wait:
            self._asked_to_wait = True
            self._protocol.pause_writing()

    def write_eof(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            if self.life.is_alive and not self._is_lost:
                self.other._travel(b"")

    def get_write_buffer_size(self) -> int:
        return self.other._on_its_way if self._asked_to_wait else 0

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return 0, BUFFER_BYTES_MAX

    def close(self) -> None:
        self.write_eof()
        self._end(None)

    def abort(self) -> None:
        self.close()

    def break_off(self, keep: bool = False) -> None:
        """The connection breaks for this end; what is on its way arrives before that, or never."""
        if not keep:
            self._trip += 1
            self._arrived.clear()
            self._end(ConnectionResetError("the connection was cut"))
        else:
            late = max(0.0, self._arrives_at - self._internet.loop.time())
            self._internet.loop.call_later(late + REFUSED_S, self.break_off)

    def die(self) -> None:
        """The process of this end is gone; it hears nothing more."""
        self._trip += 1
        self._is_closing = self._is_lost = self._has_ended = True
        if self.other._is_lost:
            self._internet.gone(self.connection)

    def _end(self, error: Exception | None) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._internet.loop.call_soon(self._lost, error, context=self.life.context)

    def _lost(self, error: Exception | None) -> None:
        if self._is_lost:
            return
        self._is_lost = True
        if self.other._is_lost:
            self._internet.gone(self.connection)
        self._protocol.connection_lost(error)

    def _travel(self, data: bytes) -> None:
        loop = self._internet.loop
        soonest = self._arrives_at + APART_S  # timers of one moment may come in any order
        self._arrives_at = max(soonest, loop.time() + self._internet.delay(self.connection.link))
        self._on_its_way += len(data)
        loop.call_at(self._arrives_at, self._arrive, data, self._trip, context=self.life.context)

    def _arrive(self, data: bytes, trip: int) -> None:
        self._on_its_way -= len(data)
        if self.other._asked_to_wait and self._on_its_way <= BUFFER_BYTES_MAX // 2:
            self.other._asked_to_wait = False
            if self.other.life.is_alive and not self.other._is_lost:
                self.other.life.context.copy().run(self.other._protocol.resume_writing)
        if trip == self._trip and self.life.is_alive:
            self._internet.told("packet", self.connection.number, self is self.connection.far, len(data))
            self._arrived.append(data)
            self._deliver()

    def _deliver_soon(self) -> None:
        self._internet.loop.call_soon(self._deliver, context=self.life.context)

    def _deliver(self) -> None:
        while self._arrived and self._reading and not self._is_closing and self.life.is_alive:
            data = self._arrived.pop(0)
            if data and self is self.connection.far and self.connection.hearing is not None:
                self.connection.hearing.asked(data)
            self._hand_over(data)
