"""`holdfast.Client`: a program's way to the daemon of a home, and so to its mesh.

    with holdfast.Client() as client:
        client.send("bob", "lunch?")

        @client.on_message(topic="alerts")
        def act(message):
            ...

        client.run()

Every call is synchronous. A send that was accepted is on the daemon's disk; a client that loses the answer repeats the
request under the same id, so nothing is sent twice. If the daemon stays away, `SendUnanswered` has that id.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, overload

import msgspec

from holdfast.device import ipc_administration
from holdfast.device.handling import Handlers, Wanted, pause, warn
from holdfast.device.ipc_documents import (
    TOPIC_SIGN,
    Acknowledged,
    Health,
    InboxPage,
    Inspection,
    Message,
    OutboxPage,
    Peers,
    Reloaded,
    Reports,
    Requeued,
    ScheduledPage,
    ScheduledSend,
    SendAnswer,
    TokenRotated,
    Topics,
    Version,
)
from holdfast.device.ipc_link import ANSWER_TIMEOUT_S, DaemonLost, Link, NoDaemon, RequestRefused, SendUnanswered, part
from holdfast.protocol import keys, ulid
from holdfast.protocol.refusal import REFUSALS, Refusal, Refused
from holdfast.protocol.tags import shown
from holdfast.store.world import wall_clock

RECONNECT_WAIT_S = 0.5  # before a broken event stream is opened again; doubles up to the maximum
RECONNECT_WAIT_MAX_S = 5.0
SEND_WAITS_S = (0.1, 0.2, 0.4, 0.8, 1.6, 2.0)  # before each repetition of a send that got no answer
SEND_PATIENCE_S = 10.0  # no repetition begins later than this: a daemon that hangs makes each one wait long
PAGE_ROWS = 50

# The home was restored, and may lack the message that a handler had, or its history was pruned.
_START_OVER = frozenset({Refusal.OTHER_LOG, Refusal.CURSOR_AHEAD, Refusal.RANGE_PRUNED, Refusal.NOT_FOUND})

T = TypeVar("T")
Handler = TypeVar("Handler", bound=Callable[[Message], object])


class Event(msgspec.Struct, frozen=True):
    """An entry of the device's history, at position `seq`, or news about the connection to the relay, without position.

    `cursor` is what `events` takes to go on after this event; it is safe even if the home is restored meanwhile.
    """

    kind: str
    data: dict[str, Any]
    seq: int | None = None
    cursor: str | None = None


class Client:
    """A connection to the daemon of one home: the one given, that of HOLDFAST_HOME, or ~/.holdfast."""

    def __init__(
        self,
        home: str | os.PathLike[str] | None = None,
        *,
        socket: str | os.PathLike[str] | None = None,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> None:
        self._link = Link(home, socket, answer_timeout_s)
        self._handlers = Handlers(self)
        self._stopped = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._link.close()

    def send(
        self,
        to: str,
        message: str,
        *,
        client_message_id: str | None = None,
        object_id: str | None = None,
        priority: str = "next",
        meta: Mapping[str, Any] | None = None,
        reply_to: str | None = None,
        mentions: Sequence[str] = (),
        expires_at: int | None = None,
        not_before: int | None = None,
    ) -> SendAnswer:
        """Send to a member (name, id, npub, key in hex) or a `@topic`. On disk when this returns; times are microseconds."""
        optional = {
            "object_id": object_id,
            "meta": meta,
            "reply_to": reply_to,
            "mentions": list(mentions) or None,
            "expires_at": expires_at,
            "not_before": not_before,
        }
        request = {
            "to": to,
            "message": message,
            "priority": priority,
            **{name: value for name, value in optional.items() if value is not None},
        }
        return self._send_once("/v1/send", SendAnswer, request, client_message_id)

    def inbox(
        self,
        *,
        after: int = 0,
        limit: int = PAGE_ROWS,
        since: int | str | None = None,
        topic: str | None = None,
        sender: str | None = None,
        unapplied: bool = False,
        parked: bool = False,
    ) -> InboxPage:
        """A page of the messages that arrived, in the order of arrival."""
        query = {
            "after": after,
            "limit": limit,
            "since": since,
            "topic": topic,
            "from": sender,
            "unapplied": unapplied or None,
            "parked": parked or None,
        }
        return self._link.ask("GET", "/v1/inbox", InboxPage, query=query)

    def message(self, message: str) -> Message:
        """The message with this id."""
        return self._link.ask("GET", f"/v1/inbox/{part(message)}", Message)

    def mentions(self, *, after: int = 0, limit: int = PAGE_ROWS) -> InboxPage:
        """A page of the messages that mention this member."""
        return self._link.ask("GET", "/v1/mentions", InboxPage, query={"after": after, "limit": limit})

    def ack(self, *messages: str) -> Acknowledged:
        """Say that the application has acted on messages."""
        return self._link.ask("POST", "/v1/inbox/ack", Acknowledged, body={"ids": messages})

    def fail(self, message: str, error: str) -> Message:
        """Say that a handler could not act on a message; after the fifth time it is parked."""
        return self._link.ask("POST", "/v1/inbox/fail", Message, body={"id": message, "error": error})

    def trace(self, name: str) -> dict[str, Any]:
        """Every step that a message has reached, with its time; for sends of this home and for messages that it received."""
        return self._link.ask("GET", f"/v1/trace/{part(name)}", dict[str, Any])

    def outbox(
        self, *, status: str | None = None, to: str | None = None, after: int = -1, limit: int = PAGE_ROWS
    ) -> OutboxPage:
        """A page of sends by sequence: all, or those of some statuses (`pending,inflight`) or to one destination."""
        query = {"status": status, "to": to, "after": after, "limit": limit}
        return self._link.ask("GET", "/v1/outbox", OutboxPage, query=query)

    def inspect(self, name: str) -> Inspection:
        """A row of the outbox, and the rows that it replaced and was replaced by."""
        return self._link.ask("GET", f"/v1/outbox/{part(name)}", Inspection)

    def requeue(
        self,
        name: str,
        *,
        new_client_message_id: str | None = None,
        patch: Mapping[str, Any] | None = None,
        force: bool = False,
    ) -> Requeued:
        """Send the content of a stuck or dead row again, under a new id; the old id is retired for ever."""
        optional = {"new_client_message_id": new_client_message_id, "patch": patch}
        body = {"id": name, "force": force, **{key: value for key, value in optional.items() if value is not None}}
        return self._link.ask("POST", "/v1/outbox/requeue", Requeued, body=body)

    def scheduled(self, *, to: str | None = None, after: str = "", limit: int = PAGE_ROWS) -> ScheduledPage:
        """A page of scheduled sends, the next first: all, or those to one destination."""
        query = {"to": to, "after": after, "limit": limit}
        return self._link.ask("GET", "/v1/scheduled", ScheduledPage, query=query)

    def cancel(self, name: str) -> ScheduledSend:
        """Cancel a scheduled send; its id is used up all the same. Refused once its time has come."""
        return self._link.ask("POST", "/v1/outbox/cancel", ScheduledSend, body={"id": name})

    def reports(self) -> Reports:
        """What is wrong about senders: holes, equivocations, lost states."""
        return self._link.ask("GET", "/v1/reports", Reports)

    def peers(self) -> Peers:
        """The members of the mesh."""
        return self._link.ask("GET", "/v1/peers", Peers)

    def topics(self) -> Topics:
        """The topics of the mesh."""
        return self._link.ask("GET", "/v1/topic/list", Topics)

    def health(self) -> Health:
        return self._link.ask("GET", "/v1/health", Health)

    def version(self) -> Version:
        return self._link.ask("GET", "/v1/version", Version)

    def reload(self) -> Reloaded:
        """Have the daemon read its settings again."""
        return self._link.ask("POST", "/v1/reload", Reloaded)

    def rotate_token(self) -> TokenRotated:
        """Have the daemon make a new token for its loopback port."""
        return self._link.ask("POST", "/v1/token/rotate", TokenRotated)

    def administer(self, verb: str, arguments: ipc_administration.Arguments) -> ipc_administration.Done:
        """Have the daemon carry out an administration verb in its mesh."""
        return self._link.ask("POST", f"/v1/administration/{part(verb)}", ipc_administration.Done, body=arguments)

    def events(self, *, after: int | str | None = None, kinds: Sequence[str] = ()) -> Iterator[Event]:
        """All events from now on, or after a cursor or a position, without end and without a gap.

        A stream that breaks, because the daemon restarts, is opened again where it broke, as often as it takes, and though the
        daemon is busy then. If the home was restored to an earlier time, `other_log` is raised: its events do not follow the
        ones yielded so far.
        """
        cursor, wait_s = self.health().cursor if after is None else str(after), RECONNECT_WAIT_S
        is_first = True
        while not self._stopped:
            try:
                for event in self._stream(cursor, kinds):
                    cursor, wait_s = event.cursor or cursor, RECONNECT_WAIT_S
                    yield event
            except (NoDaemon, DaemonLost):
                pass
            except RequestRefused as refused:
                if is_first or REFUSALS[refused.refusal].is_permanent:
                    raise
                warn("the daemon refuses; this goes on", reason=str(refused), again_in_s=wait_s)
            is_first = False
            pause(self, wait_s)
            wait_s = min(2 * wait_s, RECONNECT_WAIT_MAX_S)

    @overload
    def on_message(self, handler: Handler) -> Handler: ...

    @overload
    def on_message(
        self, *, topic: str | None = None, sender: str | None = None, priority: str | None = None
    ) -> Callable[[Handler], Handler]: ...

    def on_message(
        self,
        handler: Handler | None = None,
        *,
        topic: str | None = None,
        sender: str | None = None,
        priority: str | None = None,
    ) -> Handler | Callable[[Handler], Handler]:
        """Register a handler for the messages that `run` finds: all, or those of a topic, sender or priority.

        The sender is resolved to a member at once, and refused if the daemon knows none of that name, id or key. A handler
        that returns acknowledges the message. After five failures the message is parked, and shown by `inbox --parked`. If
        the program dies or is stopped before the daemon has taken the acknowledgement, the handler sees the message again,
        under the same `message.id`.
        """

        wanted = Wanted(
            topic=None if topic is None else topic.removeprefix(TOPIC_SIGN),
            sender=None if sender is None else self._member(sender),
            priority=priority,
        )

        def register(function: Handler) -> Handler:
            self._handlers.add(function, wanted)
            return function

        return register if handler is None else register(handler)

    def run(self, *, until_idle: bool = False) -> None:
        """Give messages to their handlers, in the order of arrival, until `stop`; with `until_idle`, until none is left.

        If the daemon goes away or is busy meanwhile, this waits for it; if it is not there at the start, this raises.
        With `until_idle` this waits only to acknowledge what was handled, and otherwise raises.
        """
        cursor: str | None = self.health().cursor
        # Since an earlier run messages may have become readable, handlers come, or the home gone back.
        from_start = True
        while not self._stopped:
            try:
                # Asked before the inbox is read, so that no message falls between that and the stream.
                cursor = cursor or self.health().cursor
                self._handlers.work_off(from_start=from_start)
                if until_idle:
                    return
                for event in self.events(after=cursor, kinds=("stored", "opened")):
                    if event.seq is not None:
                        self._handlers.work_off(from_start=event.kind == "opened")
            except (NoDaemon, DaemonLost, RequestRefused) as trouble:
                if until_idle or (isinstance(trouble, RequestRefused) and not _passes(trouble.refusal)):
                    raise
                if isinstance(trouble, RequestRefused):
                    warn("the daemon refuses; this goes on", reason=str(trouble), again_in_s=RECONNECT_WAIT_S)
                cursor, from_start = None, True
                pause(self, RECONNECT_WAIT_S)

    def stop(self) -> None:
        """End `run` and `events`, without interrupting a handler at work. May be called from any thread."""
        self._stopped = True
        self._link.interrupt()

    @property
    def is_stopped(self) -> bool:
        return self._stopped

    def _send_once(self, path: str, answer: type[T], request: Mapping[str, Any], client_message_id: str | None) -> T:
        """The answer to a request that sends something, under an id: a repetition of it sends nothing more."""
        name = client_message_id or ulid.mint(wall_clock(), os.urandom(ulid.RANDOM_BYTES))
        named = {**request, "client_message_id": name}
        try:
            return self._link.ask("POST", path, answer, body=named)
        except DaemonLost as lost:  # it may have been accepted; the same id gets the same answer
            return self._send_again(path, answer, named, lost)

    def _send_again(self, path: str, answer: type[T], request: Mapping[str, Any], lost: DaemonLost) -> T:
        """Repeat a send that the daemon may have taken, until it answers; only a permanent refusal proves that it was not."""
        problem: Exception = lost
        give_up_at = time.monotonic() + SEND_PATIENCE_S
        for wait_s in SEND_WAITS_S:
            time.sleep(wait_s)
            try:
                return self._link.ask("POST", path, answer, body=request)
            except (NoDaemon, DaemonLost) as fault:
                problem = fault
            except RequestRefused as refused:
                if REFUSALS[refused.refusal].is_permanent:
                    raise
                problem = refused
            if time.monotonic() > give_up_at:
                break
        raise SendUnanswered(str(self._link.socket), request["client_message_id"]) from problem

    def _member(self, who: str) -> str:
        """The id of the member that the daemon knows by a name, an id or a key."""
        found = self.inbox(sender=who, limit=1).messages  # refuses whom the daemon does not know
        if found:
            return found[0].sender
        peers, pubkey = self.peers().peers, _hex(who)
        named = [peer for peer in peers if who in (peer.member, peer.name) or peer.pubkey == pubkey]
        for peer in sorted(named, key=lambda peer: (peer.member != who, peer.status != "active")):
            return peer.member
        raise Refused(Refusal.DESTINATION_UNKNOWN, f"{shown(who)} is an earlier key; name the member by its id")

    def _stream(self, cursor: str, kinds: Sequence[str]) -> Iterator[Event]:
        query = {"kinds": ",".join(kinds) or None}
        with self._link.stream("/v1/events", query, {"last-event-id": cursor}) as lines:
            fields: dict[str, str] = {}
            for line in lines:
                if self._stopped:
                    return
                if line:
                    name, _, value = line.partition(": ")
                    fields[name] = value
                elif "event" in fields:
                    data, told = msgspec.json.decode(fields["data"]), fields.get("id")
                    yield Event(fields["event"], data, None if told is None else data["seq"], told)
                    fields = {}
                else:
                    fields = {}  # the end of a comment, which only keeps the connection alive


def _passes(refusal: Refusal) -> bool:
    """Whether a program that handles messages can go on after a refusal: later, or from another place."""
    return refusal in _START_OVER or not REFUSALS[refusal].is_permanent


def _hex(key: str) -> str:
    """A public key in hex, from an npub or hex; any other text in lower case."""
    try:
        return keys.read_npub(key)
    except Refused:
        return key.lower()
