"""The reading side of one connection: authentication, the queues that it follows, and its feed subscriptions.

AUTH authenticates with a key; QUEUE opens the queue of a mesh in which that key is a member's, QUEUE ACK closes rows, CLOSE
ends a stream. CHANGES and REQ belong to the feed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw

from holdfast.protocol import features as protocol_features
from holdfast.protocol.connection_auth import check_connection_auth
from holdfast.protocol.envelope import EPOCH_BYTES
from holdfast.protocol.event import DETAIL_CHARACTERS_MAX, decode
from holdfast.protocol.refusal import REFUSALS, Refusal, Refused, ok_message
from holdfast.protocol.schedule import SECOND
from holdfast.protocol.tags import IDENTIFIER, shown
from holdfast.relay import features, queue
from holdfast.relay.changes import Feeds
from holdfast.relay.feed_reading import Changes, FeedReading, Req, Request
from holdfast.relay.queue import Standing
from holdfast.relay.relay import Relay
from holdfast.relay.stream import Say, Stream, Streams

ACKNOWLEDGED_MAX = 1_000  # positions in one ACK
PUBKEYS_MAX = 16  # keys that one connection may authenticate with
STREAMS_MAX = 16  # streams of one connection, one per mesh
SHOWN_MAX = 20  # unknown positions that a refusal lists

Sub = Annotated[str, Meta(min_length=1, max_length=64)]
Position = Annotated[int, Meta(ge=1, le=2**63 - 1)]


class Auth(msgspec.Struct, array_like=True, forbid_unknown_fields=True, tag="AUTH"):
    event: Raw


class Queue(msgspec.Struct, array_like=True, forbid_unknown_fields=True, tag="QUEUE"):
    sub: Sub
    what: Raw  # an object that opens the queue, or a word such as "ACK"
    seqs: Annotated[list[Position], Meta(max_length=ACKNOWLEDGED_MAX)] | None = None


class Close(msgspec.Struct, array_like=True, forbid_unknown_fields=True, tag="CLOSE"):
    sub: Sub


class Needs(msgspec.Struct, array_like=True, forbid_unknown_fields=True, tag="FEATURES"):
    what: "_Needed"


class _Needed(msgspec.Struct, forbid_unknown_fields=True):
    require: dict[str, int] = {}
    optional: dict[str, int] = {}


Frame = Auth | Queue | Changes | Request | Close | Needs


class _Asked(msgspec.Struct, forbid_unknown_fields=True):
    mesh: str
    epoch: str | None = None
    replay: bool = False


class _Open(msgspec.Struct, frozen=True):
    stream: Stream
    task: asyncio.Task[None]


class Reading:
    """The reading side of one connection."""

    def __init__(
        self,
        relay: Relay,
        streams: Streams,
        feeds: Feeds,
        urls: Collection[str],
        challenge: str,
        say: Say,
        close: Callable[[Refusal], Awaitable[None]],
    ) -> None:
        self._relay = relay
        self._streams = streams
        self._number = streams.connect()
        self._urls = urls
        self._challenge = challenge
        self._say = say
        self._close = close
        self._pubkeys: dict[str, None] = {}  # the keys that the client has authenticated with, in order
        self._open: dict[str, _Open] = {}  # by mesh
        self._tasks: asyncio.TaskGroup | None = None
        self._is_ended = False
        self._feed = FeedReading(relay, feeds, say, self._run, self._pubkeys.keys())

    async def begin(self, tasks: asyncio.TaskGroup) -> None:
        """Send the AUTH challenge; streams will run among these tasks."""
        self._tasks = tasks
        await self._say(("AUTH", self._challenge))

    def end(self) -> None:
        """End the reading side: unacknowledged rows stay in their queues; acknowledgements that were sent still count.

        A QUEUE, CHANGES or REQ that was read and not answered yet opens nothing any more: nobody would end what it opened.
        """
        self._is_ended = True
        for opened in self._open.values():
            self._halt(opened)
        self._feed.end()

    async def handle(self, frame: Frame) -> None:
        """Answer one frame; a refusal is sent back."""
        match frame:
            case Auth():
                await self._authenticate(bytes(frame.event))
            case Close():
                self._stop_sub(frame.sub)
                self._feed.stop(frame.sub)
                await self._say(("CLOSED", frame.sub, "closed"))
            case Changes():
                await self._feed.changes(frame)
            case Queue():
                try:
                    await self._queue(frame)
                except Refused as refused:
                    await self._refuse(frame.sub, refused)
            case Request():
                await self._feed.request(frame)
            case Needs():
                await self._negotiate(frame.what)

    async def _authenticate(self, raw: bytes) -> None:
        try:
            event = decode(raw)
        except Refused as refused:
            await self._say(("OK", "", False, ok_message(Refusal.AUTH_FAILED, refused.detail)))
            return
        try:
            check_connection_auth(event, self._challenge, self._urls, self._relay.now() // SECOND)
            if len(self._pubkeys) >= PUBKEYS_MAX and event.pubkey not in self._pubkeys:
                raise Refused(Refusal.AUTH_FAILED, f"a connection may show {PUBKEYS_MAX} keys")
        except Refused as refused:
            await self._say(("OK", event.id, False, ok_message(refused.refusal, refused.detail)))
            return
        self._pubkeys[event.pubkey] = None
        await self._say(("OK", event.id, True, ""))

    async def _negotiate(self, needed: _Needed) -> None:
        """Send this relay's features; a client that requires more is refused and disconnected."""
        supported = features.supported(self._relay.settings)
        missing = protocol_features.missing(needed.require, supported)
        asked = {name: supported[name] for name in (*needed.require, *needed.optional) if name in supported}
        await self._say(("FEATURES", {"supported": asked, "missing_required": missing}))
        if missing:
            await self._close(Refusal.FEATURE_UNAVAILABLE)

    async def _queue(self, frame: Queue) -> None:
        if bytes(frame.what) == b'"ACK"':
            if frame.seqs is None:
                raise Refused(Refusal.MALFORMED, "ACK takes a list of positions")
            await self._acknowledge(frame.sub, frame.seqs)
        elif frame.seqs is None:
            await self._open_queue(frame.sub, _asked(frame.what))
        else:
            raise Refused(Refusal.MALFORMED, f"{shown(bytes(frame.what).decode())} is no word of QUEUE; ACK is")

    async def _open_queue(self, sub: str, asked: _Asked) -> None:
        standing = await self._standing(asked)
        if self._streams.is_outdated(asked.mesh, standing.member, self._number):
            await self._close(Refusal.REPLACED_BY_NEWER_CONNECTION)
            return
        number = await self._streams.take(asked.mesh, standing.member, self._number, lambda: self._is_ended)
        if self._is_ended:
            return
        self._stop(asked.mesh)
        self._stop_sub(sub)
        if len(self._open) >= STREAMS_MAX:
            raise Refused(Refusal.TOO_MANY_SUBSCRIPTIONS, f"a connection may follow {STREAMS_MAX} queues")
        stream = Stream(
            self._relay,
            asked.mesh,
            standing,
            sub,
            self._say,
            lambda why: self._end_stream(stream, why),
            connection=self._number,
            number=number,
        )
        refusal = self._streams.admit(stream)
        if refusal is not None:
            await self._close(refusal)
            return
        self._open[asked.mesh] = _Open(stream, self._run(self._follow(stream, asked.replay)))

    async def _standing(self, asked: _Asked) -> Standing:
        """The standing for the first of the connection's keys that is a member's."""
        IDENTIFIER.check(asked.mesh, "mesh")
        if not self._pubkeys:
            raise Refused(Refusal.AUTH_REQUIRED, "a queue is for its member alone")
        epoch, refused = _epoch(asked.epoch), None
        for pubkey in self._pubkeys:
            read = partial(queue.standing, now=self._relay.now(), mesh=asked.mesh, pubkey=pubkey, epoch=epoch)
            try:
                return await self._relay.look(read)
            except Refused as error:
                refused = error
        assert refused is not None  # noqa: S101 - there was a key
        raise refused

    async def _follow(self, stream: Stream, replay: bool) -> None:
        try:
            await stream.run(replay=replay)
        except Refused as refused:
            self._end_stream(stream, refused.refusal)
        finally:
            self._streams.leave(stream)

    async def _acknowledge(self, sub: str, seqs: list[int]) -> None:
        stream = self._stream(sub)
        if stream is None:
            raise Refused(Refusal.MALFORMED, f"there is no open queue {shown(sub)} on this connection")
        try:
            done = await stream.acknowledge(seqs)
        except Refused as refused:
            self._end_stream(stream, refused.refusal)
            return
        await self._say(("QUEUE", sub, "ACKED", done.closed))
        if done.unknown:
            raise Refused(Refusal.ACK_UNKNOWN, f"positions {', '.join(map(str, done.unknown[:SHOWN_MAX]))}")

    def _end_stream(self, stream: Stream, refusal: Refusal) -> None:
        """End a stream and, for some reasons, the connection; may be called from anywhere on the loop."""
        opened = self._open.get(stream.mesh)
        if opened is None or opened.stream is not stream:
            return
        self._stop(stream.mesh)
        farewell = self._farewell(stream, refusal)
        try:
            self._run(farewell)
        except RuntimeError:  # the connection is ending: nobody is left to be told
            farewell.close()

    async def _farewell(self, stream: Stream, refusal: Refusal) -> None:
        if REFUSALS[refusal].close_code is not None:
            await self._close(refusal)
        else:
            await self._refuse(stream.sub, Refused(refusal, f"the queue of member {stream.member} ends here"))

    def _run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        assert self._tasks is not None  # noqa: S101 - begun
        return self._tasks.create_task(work)

    def _stream(self, sub: str) -> Stream | None:
        return next((opened.stream for opened in self._open.values() if opened.stream.sub == sub), None)

    def _stop_sub(self, sub: str) -> None:
        stream = self._stream(sub)
        if stream is not None:
            self._stop(stream.mesh)

    def _stop(self, mesh: str) -> None:
        opened = self._open.pop(mesh, None)
        if opened is not None:
            self._halt(opened)

    def _halt(self, opened: _Open) -> None:
        self._streams.leave(opened.stream)  # at once: the caller may need its place
        opened.task.cancel()

    async def _refuse(self, sub: str, refused: Refused) -> None:
        await self._say(("QUEUE", sub, "ERR", ok_message(refused.refusal, refused.detail)))


def _asked(raw: Raw) -> _Asked:
    try:
        return msgspec.json.decode(raw, type=_Asked)
    except (msgspec.DecodeError, RecursionError) as error:
        fault = ascii(str(error))[1:-1][:DETAIL_CHARACTERS_MAX]
        raise Refused(Refusal.MALFORMED, f"QUEUE: {fault}") from error


def _epoch(text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        epoch = bytes.fromhex(text)
    except ValueError:
        epoch = b""
    if len(epoch) != EPOCH_BYTES:
        raise Refused(Refusal.MALFORMED, f"epoch {shown(text)} is not {EPOCH_BYTES} bytes in hex")
    return epoch


_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(Auth | Queue | Changes | Req | Close | Needs)


def read_frame(raw: bytes) -> Frame:
    """The reading frame in these bytes; raises `msgspec.DecodeError` if it is none."""
    frame: Frame = _decoder.decode(raw)
    return frame
