"""A device of a mesh without a relay: its home, what it knows of its mesh, and a relay's HTTP side as a test wants it."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import httpx2 as httpx
import msgspec

from holdfast.device import directory, operations, send, topic_keys
from holdfast.device.device import Device
from holdfast.device.directory import Directory
from holdfast.device.operations import Address, Facts
from holdfast.device.sealer import Sealer
from holdfast.device.sender import Sender
from holdfast.protocol import keys, payload
from holdfast.protocol.anchor import sign_anchor
from holdfast.protocol.payload import Payload
from holdfast.protocol.refusal import PROBLEM_TYPE, REFUSALS, Refusal, problem
from holdfast.store.engine import Transaction
from holdfast.wire.client import Member, MemberKey, Mesh, RelayClient, Topic
from tests.people import MESH, Person, secret_of

START = 1_800_000_000_000_000
RELAY = secret_of("relay")
LOG_ID = b"\x0a" * 16
WAIT_S = 120.0  # for what must happen
LOOK_S = 0.005

Step = Callable[[], "bool | Awaitable[None] | None"]
Answer = dict[str, Any]
Rule = Callable[[dict[str, str]], Answer | None]


class Clock:
    """Stands still until a test moves it."""

    def __init__(self, now: int = START) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


class PlainRelay:
    """Takes arrays of events as a relay does; `rule` may say something else of an event, by its tags."""

    def __init__(self, rule: Rule = lambda tags: None) -> None:
        self.rule = rule
        self.batches: list[list[dict[str, Any]]] = []
        self.taken: dict[str, str] = {}  # client_message_id: event id, in the order of the accept
        self._seqs: dict[str, int] = {}
        self.lose_answers = False  # after they were given
        self.is_away = False
        self.waits: Callable[[list[dict[str, str]]], Awaitable[None]] | None = None
        self.bodies: list[bytes] = []
        self.log_id = LOG_ID  # that it writes now

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        if self.is_away:
            raise httpx.ConnectError("nobody there")
        events = json.loads(request.content)
        if request.headers.get("holdfast-log") not in (None, self.log_id.hex()):
            return httpx.Response(
                409, json={"type": f"{PROBLEM_TYPE}other_log", "code": "other_log", "detail": "another"}
            )
        self.batches.append(events)
        self.bodies.append(request.content)
        if self.waits is not None:
            await self.waits([tags_of(event) for event in events])
        answers = self._answers(events)
        if self.lose_answers:
            raise httpx.ReadError("reset by peer")
        return httpx.Response(200, json={"answers": answers})

    @property
    def offered(self) -> list[str]:
        """The ids that were offered, in order."""
        return [tags_of(event)["client_message_id"] for batch in self.batches for event in batch]

    def _answers(self, events: list[dict[str, Any]]) -> list[Answer]:
        answers, held = [], set()
        for event in events:
            tags = tags_of(event)
            lane = (tags["destination_kind"], tags["destination_ref"])
            said = self.rule(tags) if lane not in held else no(Refusal.HELD_BACK)
            said = said or self._yes(tags["client_message_id"], event["id"])
            if said.get("temporary"):
                held.add(lane)
            answers.append(said)
        return answers

    def _yes(self, client_message_id: str, event_id: str) -> Answer:
        is_known = client_message_id in self.taken
        if is_known and self.taken[client_message_id] != event_id:
            return no(Refusal.IDEMPOTENCY_KEY_REUSED)
        self.taken.setdefault(client_message_id, event_id)
        seq = self._seqs.setdefault(client_message_id, len(self.taken))
        return yes(client_message_id, seq, duplicate=is_known)


@cache
def _anchor(secret: bytes) -> Answer:
    """The relay's signature under a position far ahead, which covers all before it."""
    built: Answer = msgspec.to_builtins(sign_anchor(secret, LOG_ID, 1_000_000, b"\x0b" * 32, bytes(32)))
    return built


def yes(client_message_id: str, seq: int, *, duplicate: bool = False, secret: bytes = RELAY) -> Answer:
    return {
        "status": 200 if duplicate else 201,
        "broker_message_id": f"01BROKER{seq}",
        "client_message_id": client_message_id,
        "history_id": seq,
        "log_id": LOG_ID.hex(),
        "duplicate": duplicate,
        "skipped": [],
        "anchor": _anchor(secret),
    }


def no(refusal: Refusal, **members: Any) -> Answer:
    return {**problem(refusal, "the detail"), "status": REFUSALS[refusal].http_status, **members}


def tags_of(event: dict[str, Any]) -> dict[str, str]:
    return {tag[0]: tag[1] for tag in event["tags"]}


class Place:
    """A device that knows a mesh, and the parts that send for it."""

    def __init__(self, device: Device, relay: PlainRelay) -> None:
        self.device = device
        self.relay = relay
        self.facts = Facts(mesh=MESH, member="member-ann")
        self.directory = Directory()
        self.stale = 0
        self.sealer = Sealer(device, MESH, lambda: self.directory)
        client = RelayClient("http://relay", device.secret, clock=device.clock, transport=httpx.MockTransport(relay))
        self.sender = Sender(device, client, self.sealer, keys.public_key(RELAY), keys_stale=self._stale)
        self.knows("bob", "cat")

    def _stale(self) -> None:
        self.stale += 1

    def knows(
        self,
        *names: str,
        topics: Iterable[tuple[str, int]] = (),
        keys_of: Mapping[str, str] | None = None,
        had: Mapping[str, str] | None = None,
    ) -> None:
        """See a mesh with these members (and this device's own); other keys than their first, and past ones, if given."""
        now = {name: (keys_of or {}).get(name, Person(name).key) for name in names} | {"ann": self.device.pubkey}
        members = [_member(f"member-{name}", name, key, (had or {}).get(name)) for name, key in now.items()]
        shown = tuple(
            Topic(topic=topic, key_epoch=epoch, created_by="member-bob", subscribers=(), left=())
            for topic, epoch in topics
        )
        mesh = Mesh(mesh=MESH, name="friends", members=tuple(members), topics=shown)
        self.directory = self.device.do(lambda tx: directory.replace(tx, mesh))

    def has_key(self, topic: str, epoch: int, key: bytes) -> None:
        self.device.do(lambda tx: topic_keys.keep_granted(tx, self.device.clock(), topic, epoch, key))

    def send(self, to: str, message: str = "hello", **more: Any) -> str:
        """Have a message accepted; returns its id."""
        request = send.Send(to=to, message=message, **more)
        device = self.device
        answer = device.do(lambda tx: send.send(tx, self.facts, self.directory, device.clock(), device.random, request))
        assert answer.refusal is None, answer
        return str(answer.body["client_message_id"])

    def fill(self, to: Sequence[str], rows: int, body: bytes = b"hello") -> None:
        """Have many messages accepted at once, to each of these in turn."""
        content, device = payload.encode(Payload(body=body)), self.device

        def append(transaction: Transaction) -> None:
            for number in range(rows):
                ref = f"member-{to[number % len(to)]}"
                address = Address(destination_kind="dm", destination_ref=ref, mesh=MESH)
                operations.append_next(transaction, device.clock(), device.random, bytes(32), content, address)

        device.do(append)

    def after(self, clock: Clock, seconds: float, step: Callable[[], bool]) -> Step:
        """A step that lets time pass until it is true."""

        def look() -> bool:
            clock.now += int(seconds * 1_000_000)
            self.sender.wake()
            return step()

        return look

    def rows(self, columns: str = "status") -> list[Any]:
        """Of the operation log, in order; a column alone comes without its tuple."""
        found = self.device.look(lambda tx: tx.rows(f"SELECT {columns} FROM operation_log ORDER BY sequence"))
        return [row[0] if len(row) == 1 else row for row in found]

    def runs(self, *steps: Step) -> None:
        """Let the sender work until each step is true in its turn; one that returns anything but False is done once."""
        asyncio.run(self._run(steps))

    async def _run(self, steps: Iterable[Step]) -> None:
        running = asyncio.create_task(self.sender.run())
        try:
            await self.sender.open(144)
            for step in steps:
                await until(step, running)
        finally:
            self.sender.shut()
            self.sender.end()
            async with asyncio.timeout(WAIT_S):
                await running


async def until(step: Step, running: "asyncio.Task[None] | None" = None) -> None:
    """Wait until it is true, or done."""
    async with asyncio.timeout(WAIT_S):
        while (outcome := step()) is False:
            assert running is None or not running.done(), running
            await asyncio.sleep(LOOK_S)
        if isinstance(outcome, Awaitable):
            await outcome


def _member(member: str, name: str, pubkey: str, past: str | None = None) -> Member:
    listed = [MemberKey(pubkey=pubkey, since=2)]
    if past is not None:
        listed.append(MemberKey(pubkey=past, since=1, until=2))
    return Member(member=member, pubkey=pubkey, name=name, role="member", status="active", keys=tuple(listed))
