"""A relay, or somebody on the road to it, that drops, repeats, reorders, rewrites, forges and replays: what devices make of it."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast.device import inbox, link, topics
from holdfast.device.inbox import ReportKind
from holdfast.protocol import envelope, payload, sealing
from holdfast.protocol.envelope import Destination, Envelope, Head
from holdfast.protocol.event import Event, decode, encode
from holdfast.protocol.fingerprint import DestinationKind
from holdfast.protocol.receipt import Receipt, Receipted, ReceiptStatus, sign_receipt
from holdfast.protocol.schedule import SECOND
from holdfast.relay.database import open_to_read
from holdfast.store.engine import Row
from tests import ports
from tests.abuse.road import Frame, HostileRoad, honestly, hostile_road
from tests.device.company import Friend, company, until
from tests.people import public_key, secret_of
from tests.relay.running import RunningRelay, running

MESSAGE, RECEIPT = 4201, 4202

Act = Callable[[Friend, Friend, HostileRoad], Awaitable[None]]


@pytest.fixture(scope="module")
def far_relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRelay]:
    """A relay to which a road leads."""
    with running(tmp_path_factory.mktemp("far") / "relay", 'host = "127.0.0.2"\n', options=ports.options()) as relay:
        yield relay


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Daemons look at their mesh more often than they would."""
    monkeypatch.setattr(link, "LOOK_S", 0.2)


@pytest.fixture
def meet(far_relay: RunningRelay, tmp_path: Path) -> Callable[[Act], None]:
    """Ann and Bob, whose daemons reach the relay by a road that is not theirs."""

    def together(act: Act) -> None:
        async def live() -> None:
            async with company(road.url, tmp_path, "ann", "bob") as (ann, bob):
                await act(ann, bob, road)

        with hostile_road(far_relay.address, "127.0.0.1") as road:
            asyncio.run(live())

    return together


def event_in(frame: Frame, kind: int = MESSAGE) -> dict[str, Any] | None:
    """The event of a frame that brings one of this kind."""
    is_message = frame[0] == "QUEUE" and frame[2] == "MSG" and frame[5]["kind"] == kind
    return dict(frame[5]) if is_message else None


def reports(friend: Friend) -> list[ReportKind]:
    return [report.kind for report in friend.device.look(inbox.reports)]


def rewritten(event: dict[str, Any]) -> dict[str, Any]:
    """With another character in what was sealed."""
    content = event["content"]
    return {**event, "content": content[:-5] + ("A" if content[-5] != "A" else "B") + content[-4:]}


class First:
    """Does something to the first message that comes by, and lets everything else pass."""

    def __init__(self, change: Callable[[Frame], list[Frame]]) -> None:
        self.met: Frame | None = None
        self._change = change

    def __call__(self, frame: Frame) -> list[Frame]:
        if self.met is not None or event_in(frame) is None:
            return [frame]
        self.met = frame
        return self._change(frame)


FALSE_MESSAGES: dict[str, Callable[[Frame], Frame]] = {
    "rewritten": lambda frame: [*frame[:5], rewritten(frame[5])],
    "of another sender": lambda frame: [*frame[:4], {**frame[4], "sender": "somebody"}, frame[5]],
    "dated anew": lambda frame: [*frame[:5], {**frame[5], "created_at": frame[5]["created_at"] + 1}],
    "retagged": lambda frame: [*frame[:5], {**frame[5], "tags": [*frame[5]["tags"], ["mention", "x"]]}],
}


@pytest.mark.parametrize("name", FALSE_MESSAGES)
def test_what_the_sender_did_not_sign_is_no_message_and_the_next_one_shows_the_hole(
    meet: Callable[[Act], None], name: str
) -> None:
    async def act(ann: Friend, bob: Friend, road: HostileRoad) -> None:
        road.rewrite = First(lambda frame: [FALSE_MESSAGES[name](frame)])
        lost = await ann.send("bob", "first")
        await until(lambda: bob.daemon.counters["invalid"] == 1)
        await ann.send("bob", "second")
        await until(lambda: bob.bodies() == ["second"], lambda: ann.receipted() == 1)
        assert reports(bob) == [ReportKind.HOLE]
        unproven = ann.rows(
            "SELECT client_message_id FROM operation_log WHERE destination_kind = 'dm' AND sequence NOT IN "
            "(SELECT sequence FROM send_receipt)"
        )
        assert unproven == [(lost,)], "nobody has signed for it"

    meet(act)


def test_what_is_dropped_shows_as_a_hole_and_is_brought_again(meet: Callable[[Act], None]) -> None:
    async def act(ann: Friend, bob: Friend, road: HostileRoad) -> None:
        road.rewrite = First(lambda frame: [])
        await ann.send("bob", "first")
        await until(lambda: road.rewrite.met is not None)  # type: ignore[attr-defined]
        await ann.send("bob", "second")
        await until(lambda: bob.bodies() == ["second"])
        assert reports(bob) == [ReportKind.HOLE]
        road.rewrite = honestly
        road.cut()
        road.restore()
        await until(lambda: bob.bodies() == ["second", "first"], lambda: ann.receipted() == 2)
        assert reports(bob) == []

    meet(act)


def test_what_is_reordered_shows_as_a_hole_until_all_of_it_is_there(meet: Callable[[Act], None]) -> None:
    async def act(ann: Friend, bob: Friend, road: HostileRoad) -> None:
        held: list[Frame] = []
        road.rewrite = First(lambda frame: held.append(frame) or [])  # type: ignore[func-returns-value]
        await ann.send("bob", "first")
        await until(lambda: bool(held))
        await ann.send("bob", "second")
        await until(lambda: bob.bodies() == ["second"])
        assert reports(bob) == [ReportKind.HOLE]
        road.rewrite = lambda frame: [frame, held.pop()] if held and event_in(frame) else [frame]
        await ann.send("bob", "third")
        await until(lambda: bob.bodies() == ["second", "third", "first"], lambda: ann.receipted() == 3)
        assert reports(bob) == []
        sequences = [message.sequence for message in bob.messages()]
        first, second, third = sorted(sequences)
        assert sequences == [second, third, first], "the order in which they were sent is still known"

    meet(act)


def test_what_is_repeated_has_one_effect(meet: Callable[[Act], None]) -> None:
    async def act(ann: Friend, bob: Friend, road: HostileRoad) -> None:
        seen: list[Frame] = []

        def again(frame: Frame) -> list[Frame]:
            if event_in(frame) is None:
                return [frame]
            seen.append(frame)
            return [frame, frame, *seen]

        road.rewrite = again
        for number in range(5):
            await ann.send("bob", f"{number}")
        await until(lambda: len(bob.messages()) == 5, lambda: ann.receipted() == 5)
        assert bob.bodies() == [str(number) for number in range(5)]
        assert bob.rows("SELECT count(*) FROM history WHERE kind = 'stored'") == [(5,)]
        assert reports(bob) == []

    meet(act)


def test_a_receipt_that_the_recipient_did_not_sign_proves_nothing(meet: Callable[[Act], None]) -> None:
    async def act(ann: Friend, bob: Friend, road: HostileRoad) -> None:
        true: list[Frame] = []

        def forge(frame: Frame) -> list[Frame]:
            event = event_in(frame, RECEIPT)
            if event is None or true:
                return [frame]
            true.append(frame)
            return [[*frame[:5], forged] for forged in false_receipts(event)]

        road.rewrite = forge
        await ann.send("bob", "first")
        await until(lambda: ann.daemon.counters["invalid"] == 3)
        assert ann.receipted() == 0
        road.rewrite = lambda frame: [frame, true[0]] if event_in(frame, RECEIPT) else [frame]
        await ann.send("bob", "second")
        await until(lambda: ann.receipted() == 2)

    meet(act)


def false_receipts(event: dict[str, Any]) -> list[dict[str, Any]]:
    """A receipt as a relay would have it: with its own signature, under its own key, with another word in it."""
    said = Receipt(
        head=Head(mesh="m", client_message_id="x", epoch=bytes(16), sequence=0),
        destination=Destination(DestinationKind.DM, "x"),
        messages=(Receipted("00" * 32, True, ReceiptStatus.STORED),),
    )
    own = json.loads(encode(sign_receipt(secret_of("the relay"), event["created_at"], said, bytes(32))))
    tags = [
        [*tag[:2], "false" if tag[2] == "true" else "true", tag[3]] if tag[0] == "r" else tag for tag in event["tags"]
    ]
    return [own, {**event, "sig": own["sig"]}, {**event, "tags": tags}]


def test_a_yes_that_the_relay_did_not_sign_is_no_yes(meet: Callable[[Act], None]) -> None:
    """A yes is believed by the signature under the place in the history; the same bytes are offered until there is one."""

    async def act(ann: Friend, bob: Friend, road: HostileRoad) -> None:
        garbled: list[bytes] = []

        def garble(body: bytes) -> bytes:
            before, marker, after = body.partition(b'"sig":"')
            if not marker:
                return body
            garbled.append(body)
            return before + marker + (b"0" if after[:1] != b"0" else b"1") + after[1:]

        road.garble = garble
        await ann.send("bob", "first")
        await until(lambda: len(garbled) >= 2)
        (status,) = ann.statuses()  # looked at once: it goes to and fro
        assert status in ("pending", "inflight")
        road.garble = bytes
        await until(lambda: ann.statuses() == {"done"}, lambda: bob.bodies() == ["first"])

    meet(act)


def test_two_events_of_one_sender_in_one_place_are_reported(
    meet: Callable[[Act], None], far_relay: RunningRelay
) -> None:
    """A member who tells two stories under one sequence is found out by whoever hears both."""

    async def act(ann: Friend, bob: Friend, road: HostileRoad) -> None:
        await ann.send("bob", "one story")
        await until(lambda: bob.bodies() == ["one story"])
        told = decode(bytes(bob.rows("SELECT event FROM inbox")[0][0]))
        assert str(far_relay.publish(another_story(ann, bob, told))) == "201"
        await until(lambda: len(bob.messages()) == 2)
        assert ReportKind.EQUIVOCATION in reports(bob)

    meet(act)


def another_story(ann: Friend, bob: Friend, told: Event) -> Event:
    first = envelope.from_event(told)
    key = sealing.conversation_key(ann.device.secret, bob.device.pubkey)
    said = Envelope(
        head=Head(
            mesh=first.head.mesh, client_message_id="other", epoch=first.head.epoch, sequence=first.head.sequence
        ),
        destination=first.destination,
        recipient_key=bob.device.pubkey,
    )
    sealed = sealing.seal(key, payload.encode(payload.Payload(body=b"another")), os.urandom(32))
    return envelope.sign_message(ann.device.secret, ann.device.clock() // SECOND, said, sealed, bytes(32))


def waiting(relay: RunningRelay, mesh: str) -> list[Row]:
    """What a relay has not handed over yet."""
    with closing(open_to_read(relay.data / "relay.db")) as engine, engine.read() as transaction:
        return transaction.rows("SELECT 1 FROM delivery WHERE state = 'open' AND mesh = :mesh", {"mesh": mesh})


def test_captured_traffic_that_is_played_again_does_nothing(
    meet: Callable[[Act], None], far_relay: RunningRelay
) -> None:
    """Everything that two daemons ever said to a relay, byte by byte: no entry, no answer to a signed request, no queue."""

    async def act(ann: Friend, bob: Friend, road: HostileRoad) -> None:
        for number in range(3):
            await ann.send("bob", f"{number}")
        await until(lambda: ann.receipted() == 3)
        unanswered = "SELECT 1 FROM operation_log WHERE status IN ('pending', 'inflight')"
        await until(lambda: not ann.rows(unanswered), lambda: not bob.rows(unanswered))
        # The last receipts are handed over as well, which is an entry of the history when their reader has said so.
        await until(lambda: not waiting(far_relay, ann.daemon.facts.mesh))
        road.cut()
        seq = far_relay.head_seq()
        answers = b"".join(await asyncio.to_thread(road.play_again))
        assert far_relay.head_seq() == seq
        assert answers.count(b'"duplicate":true') >= 3
        assert b'"duplicate":false' not in answers
        assert b"auth_failed" in answers
        for secret_word in (b'"members":', b'"MSG"', b'"STATUS"', b'"fates":', b'"grants":'):
            assert secret_word not in answers
        road.restore()

    meet(act)


def test_what_is_sealed_to_a_key_that_was_swapped_on_the_road_is_not_taken(meet: Callable[[Act], None]) -> None:
    """Whose key is whose a device has from its relay; the relay itself takes nothing that is sealed to another."""

    async def act(ann: Friend, bob: Friend, road: HostileRoad) -> None:
        own, other = bob.device.pubkey.encode(), public_key(secret_of("the road")).encode()
        road.garble = lambda body: body.replace(own, other)
        async with ann.daemon.session() as session:
            await topics.create(session, "news")  # so that there is a mesh to look at anew
        await until(lambda: ann.daemon.directory.member_of(other.decode()) is not None)
        await ann.send("bob", "for Bob alone")
        refused = "SELECT last_error FROM operation_log WHERE destination_kind = 'dm' AND attempts > 1"
        await until(lambda: bool(ann.rows(refused)))
        assert ann.rows(refused)[0][0].startswith("stale_key")
        road.garble = bytes
        await until(lambda: bob.bodies() == ["for Bob alone"])

    meet(act)
