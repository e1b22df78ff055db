"""The relay without its sockets: what is published comes in, answers come out, and everything between is durable.

The order of an accept: authentic and well-formed; an id used before is answered; the sender's pace; then the single
writer, which decides the rest and commits many at once. Signatures are checked on a thread, never on the event loop or
the writer.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import groupby
from typing import Any, Protocol

import msgspec

from holdfast.protocol.administration import Administration
from holdfast.protocol.anchor import Anchor, sign_anchor
from holdfast.protocol.envelope import Envelope
from holdfast.protocol.keys import AUX_BYTES
from holdfast.protocol.refusal import REFUSALS, Refusal, Refused
from holdfast.protocol.schedule import DedupeMode
from holdfast.relay import consumers, views
from holdfast.relay.accept import HELD_BACK_DETAIL, Acceptance, Request, refuse_stranger, repeated
from holdfast.relay.answer import Answer, refuse
from holdfast.relay.directory import Earlier, Signer, found_earlier, load_earlier, load_meshes, load_signers
from holdfast.relay.limiter import Limiter
from holdfast.relay.offer import Lane, Offer, check_author, check_date, read
from holdfast.relay.settings import Settings
from holdfast.relay.sweep import SWEEPS, Sweep, forgotten_before
from holdfast.store import faults, history
from holdfast.store.engine import Engine, Transaction
from holdfast.store.world import Clock, Random, wall_clock
from holdfast.store.writer import Writer

VERIFIERS = 2
"""Threads that check signatures."""

Work = Callable[[Transaction], Any]


class Identity(Protocol):
    """Whose relay it is."""

    @property
    def secret(self) -> bytes: ...

    @property
    def pubkey(self) -> str: ...

    @property
    def operators(self) -> tuple[str, ...]: ...


class Relay:
    """Says yes or no to what is published, and tells what it keeps."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        identity: Identity,
        *,
        clock: Clock = wall_clock,
        random: Random = os.urandom,
        inline: bool = False,
    ) -> None:
        self.settings = settings
        self.pubkey = identity.pubkey
        self._secret = identity.secret
        self._operators = frozenset(identity.operators)
        self._engine = engine
        self._clock = clock
        self._random = random
        self._limiter = Limiter(settings.limits)
        self._writer: Writer[Request | Work, Any] = Writer(engine, self._apply, inline=inline)
        self._verifiers = None if inline else ThreadPoolExecutor(VERIFIERS, thread_name_prefix="holdfast-verify")
        self._anchor = self._signed(self.head())
        self._is_open = True
        self._fatal: faults.Fault | None = None

    @property
    def ready(self) -> bool:
        """Whether it takes anything: not while it drains, nor after the disk failed."""
        return self._is_open and self._fatal is None

    def is_operator(self, pubkey: str) -> bool:
        return pubkey in self._operators

    async def publish(
        self, raws: Sequence[bytes], *, local: bool = False, held: frozenset[Lane] = frozenset()
    ) -> list[Answer]:
        """An answer to each event, in order. What is not refused is on disk by then.

        In `held` lanes something was put off before: only repetitions are answered there, the rest is held back.
        """
        offers: dict[int, Offer] = {}
        answers: dict[int, Answer] = {}
        for number, raw in enumerate(raws):
            try:
                offers[number] = read(raw)
            except Refused as refused:
                answers[number] = refuse(refused.refusal, refused.detail, event_id=_claimed_id(raw))
        answers |= await self._off_the_loop(self._screen, offers, held)
        remaining = [number for number in offers if number not in answers]
        if remaining:
            request = Request([offers[number] for number in remaining], local)
            answers |= zip(remaining, await self._ask(request), strict=True)
        return [self._dress(answers[number]) for number in range(len(raws))]

    def head(self) -> history.Head:
        with self._engine.read() as transaction:
            return history.head(transaction)

    def mesh(self, mesh: str, reader: str) -> dict[str, Any]:
        """A mesh as one of its members, or an operator, sees it."""
        with self._engine.read() as transaction:
            return views.mesh(transaction, mesh, reader, is_operator=self.is_operator(reader))

    def grants(self, mesh: str, topic: str, reader: str) -> dict[str, Any]:
        """The reader's own grants of a topic's keys."""
        with self._engine.read() as transaction:
            return views.grants(transaction, mesh, topic, reader)

    def counts(self) -> dict[str, int]:
        with self._engine.read() as transaction:
            return views.counts(transaction)

    def consumer(self, name: str) -> dict[str, Any]:
        with self._engine.read() as transaction:
            return _shown(consumers.find(transaction, name))

    async def move_consumer(self, name: str, log_id: bytes, seq: int) -> dict[str, Any]:
        """Register a consumer of the history, or move its checkpoint forward."""
        found = await self._do(lambda tx: _moved(tx, self._clock(), name, log_id, seq))
        if isinstance(found, Refused):
            raise found
        return _shown(found)

    async def sweep(self) -> dict[str, int]:
        """One round of every sweep, each in steps until it finds no more; says what went."""
        gone = dict.fromkeys(SWEEPS, 0)
        retention = self.settings.retention
        for name, step in SWEEPS.items():
            count = retention.sweep_rows_max
            while count >= retention.sweep_rows_max and self.ready:
                count = await self._do(partial(self._sweep_step, step))
                gone[name] += count
        return gone

    def _sweep_step(self, step: Sweep, transaction: Transaction) -> int:
        return step(transaction, self._clock(), self.settings.retention, self._sign)

    async def close(self) -> None:
        """Take nothing new, finish what is under way, let go of the files."""
        self._is_open = False
        await self._off_the_loop(self._writer.close)
        if self._verifiers is not None:
            self._verifiers.shutdown()
        self._engine.close()

    @property
    def _window_days(self) -> int | None:
        retention = self.settings.retention
        return None if retention.dedupe_mode is DedupeMode.PERMANENT else retention.dedupe_retention_days

    async def _off_the_loop(self, work: Callable[..., Any], *arguments: Any) -> Any:
        if self._verifiers is None:
            return work(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._verifiers, work, *arguments)

    def _screen(self, offers: dict[int, Offer], held: frozenset[Lane]) -> dict[int, Answer]:
        """What can be answered without the writer: forgeries, repetitions, strangers, wrong dates, too fast a pace.

        Behind an offer that is put off here nothing of its lane goes on to the writer: order is kept.
        """
        answers: dict[int, Answer] = {}
        put_off = set(held)
        changing: set[str] = (
            set()
        )  # meshes that an earlier offer changes: who is a stranger there, only the writer knows
        authentic = self._authentic(offers, answers)
        with self._engine.read() as transaction:
            seen = _Seen.load(transaction, list(authentic.values()))
        for number, offer in authentic.items():
            found = found_earlier(offer, seen.signers, seen.earlier)
            answer = self._repeated(offer, found, seen.head) if found else self._hinder(offer, seen, put_off, changing)
            if isinstance(offer.said, Administration):
                changing.add(offer.head.mesh)
            if answer is not None:
                answers[number] = answer
            if answer is not None and answer.refusal and not REFUSALS[answer.refusal].is_permanent:
                put_off.add(offer.lane)
        return answers

    def _repeated(self, offer: Offer, earlier: Earlier, head: history.Head) -> Answer:
        """What was said before, with an anchor that covers it: the last one signed may lie behind it for a moment."""
        answer = repeated(offer, earlier)
        if answer.accepted:
            anchor = self._anchor
            answer.members["anchor"] = anchor if anchor.seq >= earlier.seq else self._signed(head)
        return answer

    def _authentic(self, offers: dict[int, Offer], answers: dict[int, Answer]) -> dict[int, Offer]:
        """The offers that their authors signed; the others are answered."""
        for number, offer in offers.items():
            try:
                check_author(offer)
            except Refused as refused:
                answers[number] = refuse(refused.refusal, refused.detail, event_id=offer.event.id)
        return {number: offer for number, offer in offers.items() if number not in answers}

    def _hinder(self, offer: Offer, seen: "_Seen", put_off: set[Lane], changing: set[str]) -> Answer | None:
        """A refusal for what need not reach the writer."""
        now = self._clock()
        try:
            check_date(offer, now, self._window_days, seen.forgotten_before)
            if offer.head.mesh not in changing:
                seen.check_stranger(offer)
        except Refused as refused:
            return refuse(refused.refusal, refused.detail, event_id=offer.event.id)
        if offer.lane in put_off:
            return refuse(Refusal.HELD_BACK, HELD_BACK_DETAIL, event_id=offer.event.id)
        wait_s = self._limiter.wait_s(offer.event.pubkey, offer.event.id, now)
        if not wait_s:
            return None
        pace = f"more than {self.settings.limits.messages_per_s:g} a second"
        return refuse(Refusal.RATE_LIMITED, pace, event_id=offer.event.id, retry_after_s=wait_s)

    async def _ask(self, request: Request) -> list[Answer]:
        try:
            answers: list[Answer] = await self._do(request)
        except faults.Fault as fault:  # nothing of it is on disk, so the sender may try again
            return [refuse(Refusal.UNAVAILABLE, fault.what, event_id=offer.event.id) for offer in request.offers]
        return answers

    async def _do(self, work: Request | Work) -> Any:
        try:
            return await self._writer.ask_soon(work)
        except faults.Fault as fault:
            if fault.fatal:
                self._fatal = fault
            raise

    def _apply(self, transaction: Transaction, requests: Sequence[Request | Work]) -> list[Any]:
        """The writer's batch: publications together, other work in its place between them."""
        history.lock(
            transaction
        )  # before anything is read: what another relay on this store decides comes before or after
        answers: list[Any] = []
        taken: list[Answer] = []
        for is_publication, group in groupby(requests, key=lambda request: isinstance(request, Request)):
            if is_publication:
                acceptance = Acceptance(transaction, self._clock(), self.settings, self._operators, self._random)
                published = acceptance.take([request for request in group if isinstance(request, Request)])
                taken += [answer for of_request in published for answer in of_request if answer.accepted]
                answers += published
            else:
                answers += [work(transaction) for work in group if not isinstance(work, Request)]
        if taken:  # signed once for all; it leaves with the answers, so never without the commit
            anchor = self._signed(history.head(transaction))
            for answer in taken:
                answer.members["anchor"] = anchor
        return answers

    def _signed(self, head: history.Head) -> Anchor:
        return self._sign(head.log_id, head.seq, head.chain)

    def _sign(self, log_id: bytes, seq: int, chain: bytes) -> Anchor:
        return sign_anchor(self._secret, log_id, seq, chain, self._random(AUX_BYTES))

    def _dress(self, answer: Answer) -> Answer:
        """Add to a yes what every yes carries: which log, and the relay's signature under it or a later position."""
        if not answer.accepted:
            return answer
        anchor = answer.members.get("anchor", self._anchor)
        if anchor.seq > self._anchor.seq:
            self._anchor = anchor
        members = {**answer.members, "log_id": anchor.log_id, "anchor": msgspec.to_builtins(anchor)}
        return msgspec.structs.replace(answer, members=members)


class _Seen(msgspec.Struct, frozen=True):
    """What the store says of a few offers, at one moment."""

    signers: dict[tuple[str, str], Signer]
    earlier: dict[tuple[str, str, str], Earlier]
    meshes: set[str]
    head: history.Head
    forgotten_before: int

    @classmethod
    def load(cls, transaction: Transaction, offers: Sequence[Offer]) -> "_Seen":
        signers = load_signers(transaction, offers)
        return cls(
            signers,
            load_earlier(transaction, offers, signers),
            load_meshes(transaction, offers),
            history.head(transaction),
            forgotten_before(transaction),
        )

    def check_stranger(self, offer: Offer) -> None:
        """Refuse the messages of strangers here, so that they cost the writer nothing."""
        is_message = isinstance(offer.said, Envelope)
        if is_message and (offer.head.mesh, offer.event.pubkey) not in self.signers:
            refuse_stranger(offer, self.meshes)


def _claimed_id(raw: bytes) -> str:
    """The id that bytes claim which were refused, so that whoever sent them knows which of its events is meant."""
    try:
        found = msgspec.json.decode(raw, type=_Claim).id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    return found if len(found) == 64 and found.isalnum() and found.isascii() else ""


class _Claim(msgspec.Struct):
    id: str = ""


def _moved(transaction: Transaction, now: int, name: str, log_id: bytes, seq: int) -> consumers.Consumer | Refused:
    """A refusal is returned: it wrote nothing, so the others of its batch need not be run again."""
    try:
        return consumers.move(transaction, now, name, log_id, seq)
    except Refused as refused:
        return refused


def _shown(consumer: consumers.Consumer) -> dict[str, Any]:
    return {**msgspec.structs.asdict(consumer), "log_id": consumer.log_id.hex()}
