"""The relay without its sockets: it takes published events, and answers when what it accepted is durable.

An accept has two stages: a thread checks form and signatures, for all events that come at about the same time; then the
single writer decides the rest and commits many at once. Signatures are never checked on the event loop or by the writer.
"""

import asyncio
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import groupby, islice
from typing import Any, Protocol, TypeVar

import msgspec

from holdfast.protocol import ulid
from holdfast.protocol.anchor import Anchor, sign_anchor
from holdfast.protocol.keys import AUX_BYTES
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.schedule import SECOND
from holdfast.relay import consumers, neighbours, queue, views
from holdfast.relay import snapshots as intake
from holdfast.relay.accept import Acceptance, Request
from holdfast.relay.answer import ALL, EVERYBODY, Answer, refuse
from holdfast.relay.feed import Bootstrap
from holdfast.relay.gathering import Gathering
from holdfast.relay.limiter import Limiter
from holdfast.relay.neighbours import Reached, Seen
from holdfast.relay.offer import Lane
from holdfast.relay.screening import Offers, screen, verify_here
from holdfast.relay.settings import Settings
from holdfast.relay.sweep import SWEEPS, Gone, Rules, Sweep, Swept
from holdfast.relay.verifying import Verifiers
from holdfast.store import faults, history
from holdfast.store.engine import Engine, Transaction, Watch
from holdfast.store.world import Clock, Random, wall_clock
from holdfast.store.writer import BATCH_MAX, Later, Outcome, Told, Writer

SHARED_BATCH_MAX = 100
"""Requests that share one commit if several relays share the database, so that the others do not wait long."""

VERIFIERS = 2
"""Threads that check signatures; when a relay runs as a process of its own, each has a verifier process."""

READERS = 2
"""Threads that read for queues, the feed and HTTP; apart from those above, so that readers never delay senders."""

Work = Callable[[Transaction], Any]
Wake = Callable[[Iterable[tuple[str, str]]], None]  # called with (mesh, member) pairs
EndConnections = Callable[[str, str, Refusal], None]  # called with mesh, member and reason

T = TypeVar("T")


class Identity(Protocol):
    """The relay's key and its operators."""

    @property
    def secret(self) -> bytes: ...

    @property
    def pubkey(self) -> str: ...

    @property
    def operators(self) -> tuple[str, ...]: ...


class Relay:
    """Accepts or refuses published events, and reads what it stores."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        identity: Identity,
        *,
        clock: Clock = wall_clock,
        random: Random = os.urandom,
        inline: bool = False,
        verifiers: Verifiers | None = None,
        later: Later | None = None,
    ) -> None:
        """`inline` uses no threads; `later` schedules the writer's batches on the event loop."""
        self.settings = settings
        self.pubkey = identity.pubkey
        self._secret = identity.secret
        self._operators = frozenset(identity.operators)
        self._engine = engine
        self._clock = clock
        self._random = random
        self._processes = verifiers
        self._verify = verify_here if verifiers is None else verifiers.verify
        self._limiter = Limiter(settings.limits)
        batch_max = SHARED_BATCH_MAX if engine.is_shared else BATCH_MAX
        self._writer: Writer[Request | Work, Any] = Writer(
            engine,
            self._apply,
            inline=inline,
            later=later,
            begin=self._begin if engine.is_shared else None,
            batch_max=batch_max,
        )
        self._verifiers = None if inline else ThreadPoolExecutor(VERIFIERS, thread_name_prefix="holdfast-verify")
        self._readers = None if inline else ThreadPoolExecutor(READERS, thread_name_prefix="holdfast-read")
        self._screened: Gathering[Publication, Offers] = Gathering(
            self._screen, self._hand_on, self._verifiers, VERIFIERS
        )
        head = self.head()
        self._anchor = self._signed(head)
        self._reached = Reached(head.seq, head.log_id, head.chain)
        self._shown_anchor, self._anchor_shown = self._anchor, msgspec.to_builtins(self._anchor)
        self._is_open = True
        self._fatal: faults.Fault | None = None
        self._wakers: list[Wake] = []
        self._reachers: list[Callable[[int], None]] = []
        self._end_connections: EndConnections = lambda mesh, member, refusal: None
        # Running bootstraps, which hold back compaction. On a shared database they also have a row each.
        self.bootstraps: dict[str, Bootstrap] = {}
        self._ended_bootstraps: set[str] = set()

    @property
    def ready(self) -> bool:
        """Whether it takes requests: not while it shuts down, nor after the disk failed."""
        return self._is_open and self._fatal is None

    @property
    def log_id(self) -> str:
        """The id of the log that this relay writes; it changes only by a restore, never while the relay runs."""
        return self._anchor.log_id

    def is_operator(self, pubkey: str) -> bool:
        return pubkey in self._operators

    async def publish(
        self, raws: Sequence[bytes], *, local: bool = False, held: frozenset[Lane] = frozenset()
    ) -> list[Answer]:
        """An answer to each event, in order. Accepted events are on disk by then.

        In `held` lanes an earlier event was postponed: only repetitions are answered there, new events are held back.
        """
        reply: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()

        def told(outcome: Sequence[Answer] | Exception) -> None:
            if reply.done():
                return  # the caller has left
            if isinstance(outcome, Exception):
                reply.set_exception(outcome)
            else:
                reply.set_result(list(outcome))

        self.publish_soon(Publication(raws, told, local, held))
        return await reply

    def publish_soon(self, publication: "Publication") -> None:
        """Like `publish`, without waiting: the answers are passed to a callback."""
        self._screened.put(publication)

    def _screen(self, published: "Sequence[Publication]") -> list[Offers]:
        return screen([publication.raws for publication in published], self._verify)

    def _hand_on(self, screened: "Sequence[tuple[Publication, tuple[Offers] | Exception]]") -> None:
        """Pass the screened offers to the writer, all at once."""
        asked: list[tuple[Request | Work, Told[Any]]] = []
        for publication, outcome in screened:
            if isinstance(outcome, Exception):
                publication.told(outcome)
                continue
            (offers,) = outcome
            if offers.messages or offers.snapshots:
                asked.append((_request(publication, offers), partial(self._answer, publication, offers)))
            else:
                publication.told(_in_order(offers.answers))
        if asked:
            self._writer.put(asked)

    def _answer(self, publication: "Publication", offers: Offers, outcome: Outcome[list[Answer]]) -> None:
        if isinstance(outcome, faults.Fault):  # nothing of it is on disk, so the sender may try again
            self._note(outcome)
            said = [refuse(Refusal.UNAVAILABLE, outcome.what, event_id=offer.event.id) for _, offer in offers.all()]
        elif isinstance(outcome, BaseException):
            publication.told(outcome if isinstance(outcome, Exception) else RuntimeError(repr(outcome)))
            return
        else:
            (said,) = outcome
            self._tell_connections(said)
        numbers = (*offers.messages, *offers.snapshots)
        answers = offers.answers | dict(zip(numbers, map(self._dress, said), strict=True))
        publication.told(_in_order(answers))

    def head(self) -> history.Head:
        with self._engine.read() as transaction:
            return history.head(transaction)

    async def mesh(self, mesh: str, reader: str, *, knows: Callable[[str], bool] = lambda tag: False) -> views.Sight:
        """A mesh as one of its members, or an operator, sees it; without the document if the reader `knows` its tag."""
        is_operator = self.is_operator(reader)
        return await self.look(lambda tx: views.mesh(tx, mesh, reader, is_operator=is_operator, knows=knows))

    async def grants(self, mesh: str, topic: str, reader: str) -> dict[str, Any]:
        """The reader's own grants of a topic's keys."""
        return await self.look(lambda tx: views.grants(tx, mesh, topic, reader))

    def counts(self) -> dict[str, int]:
        with self._engine.read() as transaction:
            return views.counts(transaction, self._clock())

    async def consumer(self, name: str) -> dict[str, Any]:
        return _shown(await self.look(lambda tx: consumers.find(tx, name)))

    async def move_consumer(self, name: str, log_id: bytes, seq: int) -> dict[str, Any]:
        """Register a consumer of the history, or move its checkpoint forward."""
        return _shown(await self.decide(lambda tx: consumers.move(tx, self._clock(), name, log_id, seq)))

    async def sweep(self) -> dict[str, Gone]:
        """Run every sweep once, each in steps until it finds no more; returns what was removed."""
        await self.tell_ended()  # so that ended bootstraps do not hold back this round
        gone = {name: Gone() for name in SWEEPS}
        for name, step in SWEEPS.items():
            has_more = True
            while has_more and self.ready:
                swept: Swept = await self._do(partial(self._sweep_step, step))
                gone[name] += swept.gone
                has_more = swept.has_more
        return gone

    def watch_queues(self, wake: Wake, end: EndConnections) -> None:
        """Register callbacks for new rows in a member's queue and for the end of its connections; called after the commit."""
        self._wakers.append(wake)
        self._end_connections = end

    def watch_feeds(self, wake: Wake, reach: Callable[[int], None]) -> None:
        """Register callbacks for new snapshots of an author and for the position reached; called after the commit."""
        self._wakers.append(wake)
        self._reachers.append(reach)

    def _wake(self, keys: Iterable[tuple[str, str]]) -> None:
        for waker in self._wakers:
            waker(keys)

    def _reach(self, seq: int) -> None:
        for reacher in self._reachers:
            reacher(seq)

    @property
    def is_shared(self) -> bool:
        """Whether there may be other relays on the same database."""
        return self._engine.is_shared

    def watch(self, told: Callable[[], None]) -> Watch:
        """Watch for what other relays write, and share the duty of sweeping with them."""
        return self._engine.watch(told)

    async def seen(self) -> Seen:
        """The positions up to which other relays' changes have been seen."""
        return await self._look_on(neighbours.seen)

    async def wake_changed(self, before: Seen) -> Seen:
        """Wake readers with new rows or revoked access since `before`; returns the position looked at."""
        now, keys = await self._look_on(lambda tx: self._changed_since(tx, before))
        self._wake(keys)
        self._reach(now.seq)
        return now

    def _changed_since(self, transaction: Transaction, before: Seen) -> tuple[Seen, list[tuple[str, str]]]:
        seq, grown = queue.grown_since(transaction, before.seq)
        if not self.is_shared:
            return Seen(seq, 0), grown
        if EVERYBODY in grown:  # everybody is woken, and checks its own right to read
            return neighbours.seen(transaction), grown
        now, ended = neighbours.changed_since(transaction, before)
        return now, [*grown, *ended]

    async def begin_bootstrap(self, key: str, author: str, began_at: int) -> int:
        """Hold back compaction of what a bootstrap needs, at all relays; returns the position whose state it sends."""
        self.bootstraps[key] = Bootstrap(ALL, 0, began_at)
        # Through the writer, so that no sweep runs at the same time that does not know of it.
        begun = await self.decide(lambda tx: self._begin_bootstrap(tx, key, author, began_at))
        self.bootstraps[key] = begun
        return begun.seq

    def _begin_bootstrap(self, transaction: Transaction, key: str, author: str, began_at: int) -> Bootstrap:
        begun = Bootstrap(author, history.head(transaction).seq, began_at)
        if self.is_shared:
            neighbours.begin_bootstrap(transaction, key, begun)
        return begun

    def end_bootstrap(self, key: str) -> None:
        """End a bootstrap; the other relays learn of it in a moment."""
        self.bootstraps.pop(key, None)
        if self.is_shared:
            self._ended_bootstraps.add(key)

    async def tell_ended(self) -> None:
        """Tell the other relays which bootstraps have ended here."""
        if self._ended_bootstraps:
            keys = tuple(self._ended_bootstraps)
            await self._do(lambda tx: neighbours.end_bootstraps(tx, keys))
            self._ended_bootstraps.difference_update(keys)  # only after the write, so that a failed one is repeated

    def now(self) -> int:
        """The relay's time in microseconds."""
        return self._clock()

    def mint(self) -> str:
        """A fresh, unique id."""
        return ulid.mint(self._clock(), self._random(ulid.RANDOM_BYTES))

    async def look(self, query: Callable[[Transaction], T]) -> T:
        """Run a query on a consistent view, off the event loop."""

        def read() -> T:
            with self._engine.read() as transaction:
                return query(transaction)

        found: T = await self.off_the_loop(read)
        return found

    async def _look_on(self, query: Callable[[Transaction], T]) -> T:
        """`look`, and see whether the log of a shared database went on."""
        if not self.is_shared:
            return await self.look(query)
        known = self._known()  # before the view is taken, which has no less then

        def on(transaction: Transaction) -> T:
            self._reached = neighbours.go_on(transaction, history.head(transaction), known)
            return query(transaction)

        try:
            return await self.look(on)
        except neighbours.WentBack as fault:
            self._note(fault)
            raise

    async def decide(self, work: Callable[[Transaction], T]) -> T:
        """Run work that may refuse before it writes. A refusal is raised to the caller; the rest of the batch is not repeated."""
        found: T | Refused = await self._do(lambda tx: _refusal_returned(work, tx))
        if isinstance(found, Refused):
            raise found
        return found

    def _sweep_step(self, step: Sweep, transaction: Transaction) -> Swept:
        settings, now = self.settings, self._clock()
        since = now - settings.feed.bootstrap_timeout_s * SECOND
        bootstraps = [one for one in tuple(self.bootstraps.values()) if one.began_at > since]
        if self.is_shared:
            bootstraps += neighbours.bootstraps(transaction, since)
        return step(transaction, now, Rules(settings.retention, settings.feed, self._sign, bootstraps))

    async def close(self) -> None:
        """Take no new requests, finish those under way, and close the files."""
        self._is_open = False
        await self.off_the_loop(self._writer.close)
        for threads in (self._verifiers, self._readers):
            if threads is not None:
                threads.shutdown()
        if self._processes is not None:
            self._processes.close()
        self._engine.close()

    async def off_the_loop(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Run slow work on a thread, and return its result."""
        if self._readers is None:
            return work(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._readers, work, *arguments)

    def _tell_connections(self, answers: Sequence[Answer]) -> None:
        """After the commit: wake readers of new rows, and end connections of members who were revoked."""
        for answer in answers:
            self._wake(answer.wakes)
            for mesh, member, refusal in answer.ends:
                self._end_connections(mesh, member, refusal)
        anchors = [answer.members["anchor"] for answer in answers if answer.accepted]
        if anchors:
            self._reach(max(anchor.seq for anchor in anchors))

    async def _do(self, work: Work) -> Any:
        try:
            return await self._writer.ask_soon(work)
        except faults.Fault as fault:
            self._note(fault)
            raise

    def _note(self, fault: faults.Fault) -> None:
        if fault.fatal:
            self._fatal = fault

    def _begin(self, transaction: Transaction) -> None:
        """Before anything else is read, so that another relay's decisions come entirely before or after."""
        known = self._known()
        self._reached = neighbours.go_on(transaction, history.lock(transaction), known)

    def _known(self) -> Reached:
        """The furthest position that this relay has seen on disk; of what it said yes to since, it has an anchor."""
        anchor = self._anchor
        return max(self._reached, Reached(anchor.seq, bytes.fromhex(anchor.log_id), bytes.fromhex(anchor.chain)))

    def _apply(self, transaction: Transaction, requests: Sequence[Request | Work]) -> list[Any]:
        """Run the writer's batch in order: neighbouring publications together, other work in between."""
        answers: list[Any] = []
        taken: list[Answer] = []
        for is_publication, group in groupby(requests, key=lambda request: isinstance(request, Request)):
            if is_publication:
                published = self._accept(transaction, [request for request in group if isinstance(request, Request)])
                taken += [answer for of_request in published for answer in of_request if answer.accepted]
                answers += published
            else:
                answers += [work(transaction) for work in group if not isinstance(work, Request)]
        if taken:  # signed once per commit; it is sent with the answers, so never without the commit
            anchor = self._covering(history.head(transaction))
            for answer in taken:
                answer.members["anchor"] = anchor
        return answers

    def _accept(self, transaction: Transaction, requests: Sequence[Request]) -> list[list[Answer]]:
        now = self._clock()
        acceptance = Acceptance(transaction, now, self.settings, self._operators, self._random, self._limiter)
        published = acceptance.take(requests)
        if any(request.snapshots for request in requests):
            snapshots = intake.Intake(transaction, now, self.settings.feed, self._limiter)
            answers = iter(snapshots.take([offer for request in requests for offer in request.snapshots]))
            for request, of_request in zip(requests, published, strict=True):
                of_request.extend(islice(answers, len(request.snapshots)))
        return published

    def _covering(self, head: history.Head) -> Anchor:
        """An anchor at the head: the last one signed, if nothing was added since."""
        anchor = self._anchor
        return anchor if anchor.seq == head.seq and anchor.chain == head.chain.hex() else self._signed(head)

    def _signed(self, head: history.Head) -> Anchor:
        return self._sign(head.log_id, head.seq, head.chain)

    def _sign(self, log_id: bytes, seq: int, chain: bytes) -> Anchor:
        return sign_anchor(self._secret, log_id, seq, chain, self._random(AUX_BYTES))

    def _dress(self, answer: Answer) -> Answer:
        """The answer; a yes gets the log id and the relay's anchor of this or a later position."""
        if not answer.accepted:
            return answer
        anchor = answer.members.get("anchor", self._anchor)
        if anchor.seq > self._anchor.seq:
            self._anchor = anchor
        if anchor is not self._shown_anchor:  # all answers of one commit carry the same
            self._shown_anchor, self._anchor_shown = anchor, msgspec.to_builtins(anchor)
        members = {**answer.members, "log_id": anchor.log_id, "anchor": self._anchor_shown}
        return msgspec.structs.replace(answer, members=members)


class Publication(msgspec.Struct, frozen=True):
    """The events that one caller publishes at once, and the callback for the answers."""

    raws: Sequence[bytes]
    told: Callable[[Sequence[Answer] | Exception], None]
    local: bool = False
    held: frozenset[Lane] = frozenset()


def _request(publication: Publication, offers: Offers) -> Request:
    messages, snapshots = list(offers.messages.values()), list(offers.snapshots.values())
    return Request(messages, publication.local, snapshots, publication.held)


def _in_order(answers: dict[int, Answer]) -> list[Answer]:
    return [answers[number] for number in range(len(answers))]


def _refusal_returned(work: Callable[[Transaction], T], transaction: Transaction) -> T | Refused:
    """Return a refusal instead of raising it: it wrote nothing, so the batch's other work need not be run again."""
    try:
        return work(transaction)
    except Refused as refused:
        return refused


def _shown(consumer: consumers.Consumer) -> dict[str, Any]:
    return {**msgspec.structs.asdict(consumer), "log_id": consumer.log_id.hex()}
