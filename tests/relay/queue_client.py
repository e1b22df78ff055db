"""Members at their queues, over real sockets: frame by frame, as impolite as the test wants."""

import itertools
import json
import os
import socket as sockets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from holdfast.protocol.connection_auth import sign_connection_auth
from holdfast.protocol.event import Event, encode
from holdfast.protocol.history import Entry, Kind
from holdfast.relay.database import open_to_read
from holdfast.store import history
from tests.people import MESH, Person
from tests.relay import store
from tests.relay.running import ANSWER_S, Answered, RunningRelay

TOGETHER = 100  # events in one request
SOON_S = (3.0, 15.0, 60.0)  # the first for a machine that is not busy


T = TypeVar("T")


@dataclass
class Message:
    """What came from a queue."""

    seq: int
    about: dict[str, Any]
    event: dict[str, Any]

    @property
    def was_stored(self) -> bool:
        return bool(self.about["was_stored"])

    @property
    def id(self) -> str:
        return str(self.event["id"])


@dataclass
class QueueClient:
    """One connection of a member."""

    socket: ClientConnection
    challenge: str
    url: str
    sub: str = "q"
    status: dict[str, Any] = field(default_factory=dict)
    unanswered: int = 0  # acknowledgements

    def say(self, *frame: Any) -> None:
        self.unanswered += frame[2:3] == ("ACK",)
        self.socket.send(json.dumps(frame))

    def hear(self) -> Any:
        frame = json.loads(self.socket.recv(ANSWER_S))
        self.unanswered -= frame[2:3] == ["ACKED"]
        return frame

    def authenticate(self, secret: bytes, **changed: Any) -> Any:
        """Answer the challenge, or something else in its place; returns the OK."""
        url, challenge = changed.get("url", self.url), changed.get("challenge", self.challenge)
        event = sign_connection_auth(secret, url, challenge, int(time.time()) + changed.get("at", 0), os.urandom(32))
        return self.authenticate_with(json.loads(encode(event)))

    def authenticate_with(self, event: Any) -> Any:
        self.say("AUTH", event)
        return self.hear()

    def ask(self, mesh: str = MESH, **asked: Any) -> Any:
        """Ask for the queue; returns the first frame of the answer."""
        self.say("QUEUE", self.sub, {"mesh": mesh, **asked})
        return self.hear()

    def open(self, mesh: str = MESH, **asked: Any) -> dict[str, Any]:
        """Open the queue; returns what STATUS says."""
        frame = self.ask(mesh, **asked)
        assert frame[:3] == ["QUEUE", self.sub, "STATUS"], frame
        self.status = frame[3]
        return self.status

    def message(self) -> Message:
        """The next frame, which must be a message."""
        frame = self.hear()
        assert frame[:3] == ["QUEUE", self.sub, "MSG"], frame
        return Message(*frame[3:])

    def messages(self, count: int) -> list[Message]:
        return [self.message() for _ in range(count)]

    def live(self) -> int:
        """The next frame, which must be LIVE; returns its position."""
        frame = self.hear()
        assert frame[:3] == ["QUEUE", self.sub, "LIVE"], frame
        return int(frame[3])

    def until_live(self, acknowledge: bool = False) -> list[Message]:
        """Everything up to LIVE."""
        got: list[Message] = []
        while True:
            frame = self.hear()
            if frame[2] == "LIVE":
                return got
            if frame[2] == "ACKED":
                continue
            assert frame[:3] == ["QUEUE", self.sub, "MSG"], frame
            got.append(Message(*frame[3:]))
            if acknowledge:
                self.say("QUEUE", self.sub, "ACK", [got[-1].seq])

    def acknowledge(self, seqs: Sequence[int]) -> list[int]:
        """Say that these are on disk; returns what the relay closed, once it says so."""
        self.say("QUEUE", self.sub, "ACK", list(seqs))
        while True:
            frame = self.hear()
            if frame[2] == "ACKED" and not self.unanswered:
                return list(frame[3])
            assert frame[2] in ("MSG", "LIVE", "ACKED"), frame

    def close(self, sub: str) -> None:
        """End a stream; hears that it is over."""
        self.say("CLOSE", sub)
        assert self.hear() == ["CLOSED", sub, "closed"]

    def refused(self) -> str:
        """The next frame, which must be an ERR; returns the refusal's code."""
        frame = self.hear()
        assert frame[:3] == ["QUEUE", self.sub, "ERR"], frame
        return str(frame[3]).split(": ")[1]

    def nothing_came(self) -> None:
        """What the relay answers to nonsense comes next, and nothing before it."""
        self.socket.send("nonsense")
        assert self.hear()[0] == "NOTICE"

    def cut(self) -> None:
        """Vanish, as a cable does that is pulled: no close, no goodbye."""
        self.socket.socket.shutdown(sockets.SHUT_RDWR)

    def closed(self) -> tuple[int, str]:
        """How the relay ends the connection, whatever it says before."""
        try:
            while True:
                self.socket.recv(ANSWER_S)
        except ConnectionClosed as closed:
            last = closed.rcvd
        assert last is not None, "it was cut off"
        return last.code, last.reason


@contextmanager
def connected(relay: RunningRelay, person: Person | None = None, sub: str = "q") -> Iterator[QueueClient]:
    """A connection, authenticated as somebody if one is named."""
    with relay.websocket() as socket:
        client = QueueClient(socket, relay.challenges[socket], relay.url, sub)
        if person is not None:
            assert client.authenticate(person.secret)[2] is True
        yield client


@contextmanager
def following(relay: RunningRelay, person: Person, **asked: Any) -> Iterator[QueueClient]:
    """A connection that has opened its member's queue."""
    with connected(relay, person) as client:
        client.open(person.mesh, **asked)
        yield client


_numbers = itertools.count()


class Friends:
    """A mesh of its own on a relay that others use, too: alice, its admin, with bob and carol."""

    def __init__(self, relay: RunningRelay) -> None:
        number = next(_numbers)
        self.relay = relay
        self.mesh = f"mesh-{os.getpid()}-{number}"
        self.alice, self.bob, self.carol = (
            Person(f"{name}-{number}", now_s=int(time.time()), mesh=self.mesh) for name in ("alice", "bob", "carol")
        )
        self.taken(self.alice.found_mesh())
        for person in (self.bob, self.carol):
            secret = os.urandom(32)
            self.taken(self.alice.invite(secret), person.join(secret))

    def publish(self, *events: Event) -> list[dict[str, Any]]:
        """An answer to each."""
        answers: list[dict[str, Any]] = []
        for start in range(0, len(events), TOGETHER):
            body = b"[" + b",".join(encode(event) for event in events[start : start + TOGETHER]) + b"]"
            answers += self.relay.ask("POST", "/v1/messages", body).document["answers"]
        return answers

    def taken(self, *events: Event) -> list[dict[str, Any]]:
        """The answers to what is new and taken."""
        answers = self.publish(*events)
        assert {answer["status"] for answer in answers} == {201}, answers
        return answers

    def refused(self, event: Event) -> str:
        """The code of the refusal."""
        (answer,) = self.publish(event)
        return str(answer["code"])

    def send(
        self,
        count: int = 1,
        body: bytes = b"hello",
        *,
        sender: Person | None = None,
        to: Person | None = None,
        **more: Any,
    ) -> list[Event]:
        """Messages, from alice to bob if nobody else is named."""
        events = [(sender or self.alice).message(to or self.bob, body, **more) for _ in range(count)]
        self.taken(*events)
        return events

    def make_topic(self, topic: str = "news") -> None:
        """A topic that all three read and post to."""
        everybody = (self.alice, self.bob, self.carol)
        self.taken(self.alice.create_topic(topic), *(person.subscribe(topic) for person in everybody))
        self.taken(self.alice.grant(topic, 1, everybody), self.alice.advance(topic, 0))

    def get(self, person: Person, path: str) -> Answered:
        """Ask something about the mesh."""
        return self.relay.signed(person.secret, "GET", f"/v1/meshes/{self.mesh}{path}")

    def entries(self, *kinds: Kind) -> list[Entry]:
        """What the history says of this mesh."""
        with closing(open_to_read(store.where(self.relay.data / "relay.db"))) as engine:
            found = [entry for entry in history.walk(engine) if entry.mesh == self.mesh]
        return [entry for entry in found if not kinds or entry.kind in kinds]

    def drain(self, person: Person, **asked: Any) -> list[Message]:
        """Connect, take all there is, acknowledge it, leave."""
        with following(self.relay, person, **asked) as client:
            got = client.until_live(acknowledge=True)
            client.acknowledge([message.seq for message in got])
            return got

    def moderate(self, message_id: str, reason: str = "spam") -> Answered:
        path, body = f"/v1/messages/{message_id}/moderation", json.dumps({"reason": reason}).encode()
        return self.relay.signed(self.relay.operator(), "POST", path, body)


def soon(seconds: float = SOON_S[0]) -> int:
    """A time that comes while a test waits."""
    return int((time.time() + seconds) * 1_000_000)


def in_time(scene: Callable[[int], T]) -> tuple[int, T]:
    """A time that comes soon, and what a scene gives that must be over before; one that took longer is played again."""
    for seconds in SOON_S:
        at = soon(seconds)
        try:
            given = scene(at)
        except AssertionError:
            if soon(0) < at:
                raise
        else:
            if soon(0) < at:
                return at, given
    raise AssertionError("this machine is too slow for it")


def tags_of(event: Event) -> dict[str, str]:
    return {tag[0]: tag[1] for tag in event.tags}


def ids(found: Sequence[Message] | Sequence[Event]) -> list[str]:
    return [one.id for one in found]


def eventually(happens: Callable[[], bool]) -> None:
    """Wait for what must come."""
    deadline = time.monotonic() + ANSWER_S
    while not happens():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.02)
