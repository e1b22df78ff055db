"""One relay's side played by a script: what a home believes, in which order it acts, and what it does with a no."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from holdfast.device import author as authors
from holdfast.device import feed_documents, feed_relays, outbox
from holdfast.device.author import Author
from holdfast.device.feed_link import Connect, FeedLink
from holdfast.device.forks import Fork
from holdfast.device.operations import Facts
from holdfast.device.outbox import RolledBack
from holdfast.protocol import document
from holdfast.protocol.anchor import sign_anchor
from holdfast.protocol.clock import VectorClock
from holdfast.protocol.event import encode
from holdfast.protocol.reaction import Confirmation, FaultKind
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.snapshot import Operation, Standing
from holdfast.wire.client import Information, Said, SnapshotYes
from holdfast.wire.feed_frames import CaughtUp, Changed, Compacted, Denied, Frame, Held, State
from holdfast.wire.relay_socket import SocketClosed
from tests.device.company import until
from tests.device.feed_world import AUTHOR, Dwelling
from tests.people import public_key, secret_of

URL = "http://relay.example"
RELAY, OTHER = secret_of("the relay"), secret_of("another relay")
LOG_ID = b"\x0a" * 16
NOW = 1_800_000_000_000_000


def snapshot(body: str, counter: int, name: str = "list") -> bytes:
    content = document.Content(version=1, name=name, body=body)
    sealed = document.seal_content(document.sealing_key(AUTHOR), content, bytes(32))
    clock = VectorClock((("elsewhere", counter),))
    d = document.document_id(AUTHOR, name)
    return encode(document.sign_snapshot(AUTHOR, 1, d, Operation.PUT, clock, sealed, bytes(32)))


def yes(event: bytes, *, signer: bytes = RELAY, seq: int = 1, standing: Standing = Standing.CURRENT) -> Said:
    anchor = sign_anchor(signer, LOG_ID, seq, bytes(32), bytes(32))
    event_id = feed_documents.read_kept(event).event.id
    told = SnapshotYes(
        event_id=event_id, standing=standing, history_id=seq, log_id=LOG_ID.hex(), duplicate=False, anchor=anchor
    )
    return Said(says=Confirmation.CREATED, yes=told)


class Script:
    """Frames in the order in which they come; then nothing more. What is asked and offered is noted beside them."""

    def __init__(self, frames: Sequence[Frame], answer: Callable[[bytes], Said] = yes) -> None:
        self.frames = list(frames)
        self.answer = answer
        self.asked: list[object] = []
        self.offered: list[bytes] = []

    async def information(self) -> Information:
        return Information(pubkey=public_key(RELAY), log_id=LOG_ID.hex())

    async def ask_state(self, author: str, kind: int) -> None:
        self.asked.append("state")

    async def ask_changes(self, author: str, kind: int, since: int) -> None:
        self.asked.append(since)

    async def receive(self, most: int) -> list[Frame]:
        assert not self.offered or not self.frames, "offered before everything was looked at"
        if not self.frames:
            await asyncio.Event().wait()
        return [self.frames.pop(0)]

    async def publish(self, events: Sequence[bytes]) -> list[Said]:
        self.asked.append("offer")
        self.offered += events
        return [self.answer(event) for event in events]


class Setting:
    """A home that talks to a script."""

    def __init__(self, path: Path) -> None:
        self.home = Dwelling(path, "home", lambda: NOW)
        self.home.device.do(partial(feed_relays.add, now=NOW, relay=URL))
        self.admitted: list[Author] = []
        self.link: FeedLink

    def play(self, script: Script, *conditions: Callable[[], bool]) -> None:
        """Let them talk until all of this is so."""

        async def talk() -> None:
            author = self.home.device.look(authors.need)
            self.link = FeedLink(self.home.device, URL, _connect(script), admit=self._admit, told=lambda: None)
            meeting = asyncio.create_task(self.link.meet(author))
            waiting = asyncio.create_task(until(*conditions, lambda: self.link.is_live))
            await asyncio.wait({meeting, waiting}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if meeting.done():
                meeting.result()
            meeting.cancel()
            await asyncio.gather(meeting, waiting, return_exceptions=True)

        asyncio.run(talk())

    async def _admit(self, author: Author) -> None:
        self.admitted.append(author)

    @property
    def position(self) -> tuple[bytes | None, int | None]:
        ((log_id, seq),) = self.home.rows("SELECT log_id, seq FROM feed_relay")
        return log_id, seq

    def statuses(self) -> list[str]:
        return [status for (status,) in self.home.rows("SELECT status FROM operation_log ORDER BY sequence")]


def _connect(script: Script) -> Connect:
    @asynccontextmanager
    async def connect(relay: str, secret: bytes) -> AsyncIterator[Script]:
        assert (relay, secret) == (URL, AUTHOR)
        yield script

    return connect


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    made = Setting(tmp_path)
    yield made
    made.home.check()
    made.home.close()


def test_what_was_written_here_is_offered_only_after_everything_there_was_looked_at(setting: Setting) -> None:
    setting.home.edit("list", "mine")
    script = Script([State(7), Held(snapshot("theirs", 3)), CaughtUp(7), Changed(8, snapshot("newer", 4)), CaughtUp(9)])
    setting.play(script, lambda: setting.statuses() == ["done"])
    assert script.asked == ["state", 7, "offer"]
    assert setting.position == (LOG_ID, 9)
    found = setting.home.client.document("list")
    assert (found.status, sorted(str(one.body) for one in found.versions)) == ("conflict", ["mine", "newer"])


def test_a_state_that_ends_elsewhere_than_it_began_is_not_believed(setting: Setting) -> None:
    script = Script([State(7), Held(snapshot("theirs", 1)), CaughtUp(8)])
    with pytest.raises(SocketClosed):
        setting.play(script)
    assert setting.home.shown() == {}
    assert setting.position == (None, None)


def test_a_state_that_was_not_fetched_to_its_end_counts_for_nothing(setting: Setting) -> None:
    refusal = "error: bootstrap_expired: it took longer than 600 seconds"
    with pytest.raises(Refused) as caught:
        setting.play(Script([State(7), Held(snapshot("half", 1)), Denied(refusal)]))
    assert caught.value.refusal is Refusal.BOOTSTRAP_EXPIRED
    assert setting.home.shown() == {}
    setting.play(Script([State(8), Held(snapshot("whole", 1, "other")), CaughtUp(8), CaughtUp(8)]))
    assert setting.home.shown().keys() == {"other"}
    assert setting.home.rows("SELECT count(*) FROM staged_snapshot") == [(0,)]


@pytest.mark.parametrize("refusal", ["cursor-expired", "cursor-ahead"])
def test_where_the_tail_cannot_be_had_the_state_is_fetched(setting: Setting, refusal: str) -> None:
    setting.play(Script([State(7), CaughtUp(7), CaughtUp(7)]))
    script = Script([Denied(f"invalid: {refusal}: no"), State(5), CaughtUp(5), CaughtUp(5)])
    setting.play(script)
    assert script.asked == [7, "state", 5]
    assert setting.position == (LOG_ID, 5)


def test_a_payload_that_is_gone_is_passed(setting: Setting) -> None:
    setting.play(Script([State(0), CaughtUp(0), Compacted(4), CaughtUp(4)]))
    assert setting.position == (LOG_ID, 4)


def test_what_the_author_did_not_sign_is_passed_over_and_counted(setting: Setting) -> None:
    forged = snapshot("forged", 1).replace(b'"sig":"', b'"sig":"0')[:-3] + b'"}'
    other = encode(document.sign_snapshot(OTHER, 1, "d", Operation.PUT, VectorClock((("a", 1),)), "x" * 200, bytes(32)))
    changed = snapshot("real", 2).replace(b'"elsewhere","2"', b'"elsewhere","9"')
    script = Script([State(0), CaughtUp(0), Changed(1, forged), Changed(2, other), Changed(3, changed), CaughtUp(3)])
    setting.play(script)
    assert setting.home.shown() == {}
    assert setting.link.counts["snapshots_invalid"] == 3
    assert setting.position == (LOG_ID, 3)


@pytest.mark.parametrize(
    "answer",
    [
        lambda event: yes(event, signer=OTHER),
        lambda event: yes(snapshot("something else", 1)),
        lambda event: Said(says=FaultKind.TIMEOUT),
        lambda event: Said(says=Refusal.RATE_LIMITED, retry_after_s=60),
    ],
    ids=["signed by another", "about something else", "none", "put off"],
)
def test_without_a_yes_that_can_be_believed_an_edit_waits(setting: Setting, answer: Callable[[bytes], Said]) -> None:
    setting.home.edit("list", "mine")
    script = Script([State(0), CaughtUp(0), CaughtUp(0)], answer)
    setting.play(script, lambda: bool(script.offered), lambda: setting.statuses() == ["pending"])
    assert setting.home.rows("SELECT state FROM sighting") == [("offered",)]


def test_an_author_whom_nobody_has_admitted_is_admitted_and_no_edit_is_given_up(setting: Setting) -> None:
    setting.home.edit("list", "mine")
    no = Said(says=Refusal.AUTHOR_NOT_ADMITTED)
    script = Script([State(0), CaughtUp(0), CaughtUp(0)], lambda event: yes(event) if setting.admitted else no)
    setting.play(script, lambda: setting.statuses() == ["pending"], lambda: bool(setting.admitted))
    assert [author.pubkey for author in setting.admitted] == [public_key(AUTHOR)]
    setting.home.ahead = 60_000_000
    setting.play(Script([CaughtUp(0)]), lambda: setting.statuses() == ["done"])


def test_a_version_that_the_relay_knows_to_be_dominated_is_given_up_when_nothing_newer_came(setting: Setting) -> None:
    setting.home.edit("list", "mine")
    script = Script([State(0), CaughtUp(0), CaughtUp(0)], lambda event: yes(event, seq=5, standing=Standing.DOMINATED))
    setting.play(script, lambda: setting.statuses() == ["done"])
    assert setting.home.rows("SELECT state, seq FROM sighting") == [("dominated", 5)]
    assert setting.home.client.document("list").body == "mine"  # what dominates it may be on its way
    setting.play(Script([Compacted(5), CaughtUp(5)]))
    assert setting.home.shown() == {}


def test_what_was_refused_is_offered_again_when_something_else_comes_of_the_document(setting: Setting) -> None:
    setting.home.edit("list", "mine")
    no = Said(says=Refusal.TOO_MANY_CONFLICTS)
    setting.play(Script([State(0), CaughtUp(0), CaughtUp(0)], lambda event: no), lambda: setting.statuses() == ["dead"])
    other = Script([Changed(1, snapshot("theirs", 1, "other")), CaughtUp(1)])
    setting.play(other)
    assert setting.statuses() == ["dead"]
    script = Script([Changed(2, snapshot("theirs", 1)), CaughtUp(2)])
    setting.play(script, lambda: setting.statuses() == ["dead", "done"])
    assert len(script.offered) == 1


def test_what_another_relay_has_of_the_documents_is_not_judged_by_the_restored_log_of_the_homes_own(
    setting: Setting,
) -> None:
    device, before, now = setting.home.device, b"\x0b" * 16, b"\x0c" * 16
    setting.home.edit("list", "mine")
    setting.play(Script([State(0), CaughtUp(0), CaughtUp(0)]), lambda: setting.statuses() == ["done"])
    forks = device.look(lambda tx: outbox.with_abandoned(tx, now, [Fork(before, 3)]))
    facts = Facts(mesh="mesh", member="me")
    assert device.do(lambda tx: outbox.roll_back(tx, facts, NOW, forks)) == RolledBack(0, ())
    assert setting.statuses() == ["done"]
