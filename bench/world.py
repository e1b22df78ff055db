"""Those who take part: a relay as a process of its own with generous limits, its members, and what they have signed beforehand."""

import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the tests' people and servers

from coincurve import PrivateKey

from holdfast.protocol import event as events
from holdfast.protocol.envelope import MESSAGE_KIND, Destination, Envelope, Head, to_tags
from holdfast.protocol.event import Event, encode
from holdfast.protocol.fingerprint import DestinationKind
from tests.people import Person
from tests.relay.running import RunningRelay, running

GENEROUS = """
[limits]
queue_messages_max = 1000000
messages_burst = 1000000
messages_per_s = 1000000
connections_max = 2000
"""
BODY_BYTES = 200


class Mesh:
    """A mesh with so many members, of whom each writes to the next."""

    def __init__(self, relay: RunningRelay, members: int) -> None:
        self.relay = relay
        self.name = f"mesh-{os.urandom(6).hex()}"
        now = int(time.time())
        self.people = [Person(f"{self.name}-{number}", now_s=now, mesh=self.name) for number in range(members)]
        self._taken([self.people[0].found_mesh()])
        for person in self.people[1:]:
            secret = os.urandom(32)
            self._taken([self.people[0].invite(secret), person.join(secret)])

    def _taken(self, given: Sequence[Event]) -> None:
        body = b"[" + b",".join(map(encode, given)) + b"]"
        answers = self.relay.ask("POST", "/v1/messages", body).document["answers"]
        assert {answer["status"] for answer in answers} == {201}, answers

    def signed(self, each: int) -> list[list[bytes]]:
        """So many messages of each member, signed by as many processes as there are cores."""
        tasks = []
        for number, person in enumerate(self.people):
            to = self.people[(number + 1) % len(self.people)]
            sample = person.message(to, b"x" * BODY_BYTES)
            tasks.append((person.secret, self.name, to.member, to.key, sample.content, next(person.sequences), each))
            for _ in range(each):
                next(person.sequences)
        with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
            return pool.map(_sign, tasks, chunksize=1)


def _sign(task: tuple[bytes, str, str, str, str, int, int]) -> list[bytes]:
    secret, mesh, member, key, content, first, count = task
    private = PrivateKey(secret)
    pubkey = private.public_key.format()[1:].hex()
    now, epoch, made = int(time.time()), os.urandom(16), []
    for sequence in range(first, first + count):
        head = Head(mesh=mesh, client_message_id=os.urandom(13).hex(), epoch=epoch, sequence=sequence)
        tags = to_tags(Envelope(head=head, destination=Destination(DestinationKind.DM, member), recipient_key=key))
        identifier = events.event_id(pubkey, now, MESSAGE_KIND, tags, content)
        signature = private.sign_schnorr(bytes.fromhex(identifier), bytes(32)).hex()
        made.append(encode(Event(identifier, pubkey, now, MESSAGE_KIND, tags, content, signature)))
    return made


@contextmanager
def generous_relay(folder: Path, settings: str = "") -> Iterator[RunningRelay]:
    with running(folder / "relay", GENEROUS + settings) as relay:
        yield relay
